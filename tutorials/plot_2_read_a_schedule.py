"""
Reading a schedule
==================

A schedule says which operators run side by side. This tutorial makes a schedule, reads it, edits it
by hand, and looks at a run of each version.
"""

import json
import tempfile
from pathlib import Path

import tvm_interop
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.models import build
from tvm_interop.viz.page import to_page
from tvm_interop.viz.record import record

compilation = Compilation(build("squeezenet", image_size=32), CompileOptions(streams=2))
folder = Path(tempfile.mkdtemp())

# %%
# Stages and groups
# -----------------
# The scheduler ``greedy`` needs no latencies: it puts all operators that are ready into the next
# stage. A stage holds *groups*. Groups run side by side. The operators of a group run in order, on
# one stream. A ``Compilation`` holds a model and its kernels, so that you can try several
# schedules.

schedule = compilation.schedule("greedy")
for i, stage in enumerate(schedule.stages[:4]):
    for group, stream in zip(stage.groups, stage.streams, strict=True):
        print(f"stage {i}, stream {stream}: {', '.join(schedule.op_names[op] for op in group)}")

# %%
# A schedule need not have stages. ``lios``, ``nimble`` and ``opara`` give every stream its own
# order of operators, and ``schedule.streams`` holds these orders. For a staged schedule,
# ``schedule.streams`` holds the orders that follow from its stages.

for stream, ops in enumerate(schedule.streams):
    print(f"stream {stream}: {len(ops)} operators, from {schedule.op_names[ops[0]]}")

# %%
# As text
# -------
# The text form of a schedule is JSON, made to be edited. It names the operators, with one group per
# line. On the command line, ``tvm-interop schedule model.onnx -o schedule.json`` writes it.

document = json.loads(schedule.to_json())
first = next(i for i, stage in enumerate(document["stages"]) if len(stage["groups"]) > 1)
print(json.dumps(document["stages"][first], indent=1))

# %%
# By hand
# -------
# Now let the groups of the printed stage take turns on one stream. ``validate`` checks the edited
# schedule. It names an operator that is missing, or that would run before an operator whose output
# it reads.

for group in document["stages"][first]["groups"]:
    group["stream"] = 0
document["scheduler"] = "by hand"
by_hand = tvm_interop.Schedule.from_json(json.dumps(document))
by_hand.validate(compilation.graph)
print(f"{by_hand.scheduler}: {len(by_hand.stages)} stages on {by_hand.num_streams} streams")

del document["stages"][first]
try:
    tvm_interop.Schedule.from_json(json.dumps(document)).validate(compilation.graph)
except tvm_interop.ScheduleError as error:
    print(f"refused: {error}")

# %%
# The plan behind it
# ------------------
# An executor runs a plan. The plan holds the streams, the fewest waits that keep every dependency,
# and the place of each tensor in memory. Streams wait for each other only where a dependency needs
# it, even if the schedule has stages.

artifact, edited = compilation.artifact(schedule), compilation.artifact(by_hand)
plan = artifact.plan
print(f"{sum(len(op.waits) for op in plan.operators)} waits for {plan.graph().num_edges} edges")
waiting = next(op for op in plan.operators if op.waits)
print(f"{waiting.name} waits for {plan.operators[waiting.waits[0]].name}")
print(f"{plan.arena_bytes / 2**20:.2f} MiB hold every intermediate tensor")

# %%
# What happened
# -------------
# A record holds the start and the end of each operator in one run. The share of time in which each
# stream is busy shows whether there was anything to gain.

seen = [record(artifact, "greedy", runs=3), record(edited, "by hand", runs=3)]
for shown in seen:
    busy = ", ".join(f"{shown.busy_share(stream):.0%}" for stream in range(len(shown.threads)))
    print(f"{shown.title}: {shown.makespan_us:.0f} us, streams busy {busy}")

# %%
# The page draws both records on one time scale. It shows streams as rows, stages shaded, waits as
# lines, and a table of the operators. ``tvm-interop show a.tar b.tar -o page.html`` writes the same
# page.

page = folder / "page.html"
page.write_text(to_page(seen, "this machine"))
print(f"wrote {page.stat().st_size // 1024} KiB; open it in a browser")
