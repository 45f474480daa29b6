"""
Tuning with the learned model
=============================

IOS spends its time on measurements, because a network has thousands of possible stages. With
``latency="learned"``, a model predicts the latencies of most stages. It learns from operators that
were measured alone, and from every stage that was measured on this device. Only the stages that
decide between schedules are measured.
"""

import importlib.util
import sys

if importlib.util.find_spec("xgboost") is None:
    print("xgboost is not installed: `pip install 'tvm-interop[learned]'`, and run this again")
    sys.exit()

import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx

import tvm_interop
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.latency.features import OperatorTable
from tvm_interop.latency.learned import LearnedLatency, prediction_error
from tvm_interop.measure.store import LatencyStore
from tvm_interop.models.onnx_net import OnnxNet

folder = Path(tempfile.mkdtemp())
database = folder / "latency.db"

# %%
# A network with a choice
# -----------------------
# The network is the last block of Inception-V3 with fewer channels. It has an input and four
# branches, two of which branch again. Large operators are divided into parts, so even this block
# has tens of thousands of stages.

net = OnnxNet("block", seed=0)
x = net.input("image", (1, 96, 16, 16))
one = net.conv(x, "one", 80)
three = net.conv(x, "three", 96)
double = net.conv(net.conv(x, "double_1", 112), "double_2", 96, 3)
pool = net.conv(net.avg_pool(x, "pool_1", 3, stride=1, pad=1), "pool_2", 48)
pairs = [
    net.conv(branch, f"{branch.split('/')[0]}_{side}", 96, kernel)
    for branch in (three, double)
    for side, kernel in (("a", (1, 3)), ("b", (3, 1)))
]
net.output(net.classifier(net.concat([one, *pairs, pool], "block"), "head"), "logits")
model = net.model()
onnx.save(model, folder / "block.onnx")

# %%
# The search, round by round
# --------------------------
# First, each operator is measured alone. Then each round predicts the latencies of the stages that
# could change the schedule, measures these stages, and learns from the measurements. It prints how
# far the predictions were from the measurements. In the first round, the latency model has learned
# nothing yet, so there are no predictions. The exception is a network whose operators are divided
# into parts: the latency model then has learned a little from the undivided operators. The budget
# here is small, because this is a tutorial. By default the search ends when the schedule gets no
# better.

options = CompileOptions(streams=2, threads=1, latency_db=database, providers=["tvm"])
compilation = Compilation(model, options)


def tell(done):
    """Print one line for each round."""
    error = f"off by {done.error.mape:.0%}" if done.error.stages else "no predictions yet"
    print(
        f"round {done.number}: {done.measured:3} stages measured, {done.unmeasured} not, best "
        f"{done.best_us:.0f} us, {error}"
    )


learned = compilation.schedule("ios", "learned", max_measurements=90, on_round=tell)
print(f"{learned.stats['stages_measured']} of {learned.stats['stages']} stages were measured")

# %%
# Stages it has never seen
# ------------------------
# The rounds above chose their stages themselves. For a fair sample, draw pairs of independent
# operators that have never been measured side by side. Predict the latency of each pair, and only
# then measure it. The baseline for comparison needs no learning: it says that a pair takes as long
# as its longer operator alone. On a busy machine, latencies of small stages are mostly noise. Noise
# affects the rank correlation less than the error.

measured, store, graph = compilation.measured_latency, LatencyStore(database), compilation.graph
operators = OperatorTable.from_workloads(
    [measured.workload(i) for i in range(graph.num_ops)],
    [measured.op(i) for i in range(graph.num_ops)],
)
model_of_stages = LearnedLatency(operators, measured.setting)
model_of_stages.observe_records(store.records(), store.workloads())

side_by_side = [
    [[i], [j]] for i in range(graph.num_ops) for j in range(i) if not graph.reaches(j, i)
]
unseen = [stage for stage in side_by_side if np.isnan(measured.known([stage])[0])]
unseen = [unseen[i] for i in np.random.default_rng(0).permutation(len(unseen))[:24]]
predicted_us = model_of_stages.stages(unseen)
longer_us = np.array([max(measured.op(i), measured.op(j)) for [i], [j] in unseen])
measured_us = measured.stages(unseen)
for name, guess_us in (("learned", predicted_us), ("longer one alone", longer_us)):
    error = prediction_error(guess_us, measured_us)
    print(
        f"{name:16} off by {error.mape:.0%} on {error.stages} stages never trained on, "
        f"rank correlation {error.spearman:.2f}"
    )

# %%
# Going on
# --------
# All measurements are in the database. So a search that has ended, or that was stopped with Ctrl-C,
# can go on. On the command line, ``tvm-interop tune`` does that. It measures stages that were not
# measured before, and makes predictions from its first round on.


def type_in(*words):
    """Print a command line and its output."""
    print("$ tvm-interop " + " ".join(words))
    ran = subprocess.run(
        [sys.executable, "-m", "tvm_interop", *words, "--latency-db", str(database)],
        check=True, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    print(ran.stdout)


where = ("--streams", "2", "--threads", "1", "--providers", "tvm")
type_in("tune", "block.onnx", "--max-measurements", "32", *where)
type_in("db", "stats")

# %%
# Using it
# --------
# ``tvm-interop compile block.onnx --schedule schedule.json`` takes the schedule that ``tune``
# wrote. ``compile`` in Python takes it too, and can also search by itself. Either way, the schedule
# runs against sequential execution before it goes into the artifact. The block takes less than a
# millisecond, so do not be surprised if the artifact runs sequentially.

schedule = tvm_interop.Schedule.from_json((folder / "schedule.json").read_text())
artifact = tvm_interop.compile(
    model, schedule=schedule, streams=2, threads=1, latency_db=database, providers=["tvm"]
)
checked = artifact.manifest.speed_check
if checked is not None:  # None if one stream is best, since nothing is compared then.
    print(f"scheduled / sequential: {checked.ratio:.2f}; noise: {checked.noise_ratio:.2f}")
    print(f"it ships {checked.shipped}")

# %%
# ``latency="learned"`` searches and compiles in one call. If no measurements are allowed, it uses
# only the latencies in the database and gives the best schedule so far. Its predicted time can
# differ a little from the time that ``tune`` printed. At its end, a search measures the stages that
# it chose once more, and the database keeps both measurements.
again = tvm_interop.compile(
    model, latency="learned", max_measurements=0, keep_slower=True,
    streams=2, threads=1, latency_db=database, providers=["tvm"],
)  # fmt: skip
print(f"predicted, now / then: {again.schedule.makespan / schedule.makespan:.3f}")
