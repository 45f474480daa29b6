"""
Choosing a scheduler
====================

Every scheduler decides which operators run side by side, but each uses different information. This
tutorial compares schedulers on the example of the LIOS paper. Then it compares them on a network,
where only a measurement can decide.
"""

import numpy as np

import tvm_interop
from tvm_interop import LatencyTable, OpGraph
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.models import build

# %%
# On paper
# --------
# The example is Table III of the LIOS paper: ten operators with latencies in microseconds, and
# three streams. One after the other, the operators take 73 us.

edges = "1-2 1-3 1-4 1-5 5-8 2-6 3-6 4-7 6-9 7-9 8-9 9-10".split()  # noqa: SIM905
graph = OpGraph.from_edges(
    [str(i) for i in range(1, 11)], [tuple(edge.split("-")) for edge in edges]
)
latency = LatencyTable([3, 5, 5, 5, 8, 15, 10, 7, 13, 2], streams=3)

for name in ("sequential", "greedy", "ios", "lios", "nimble", "opara"):
    options = {"streams": 3} if "streams" in tvm_interop.scheduling.options_of(name) else {}
    schedule = tvm_interop.schedule(graph, name, latency=latency, **options)
    print(
        f"{name:11} {schedule.makespan:5.0f} us on {schedule.num_streams} streams, "
        f"{len(schedule.stages) or 'no'} stages"
    )

# %%
# The schedulers use this information:
#
# - ``greedy`` uses only the dependencies: all operators that are ready go into the next stage. It
#   costs no measurements, and is often hard to beat.
# - ``ios`` tries every way to cut the graph into stages, by dynamic programming, and *measures* the
#   stages. So it knows how operators slow each other down when they share the caches. It finds the
#   best stages, at the price of thousands of measurements on a wide graph. The measurements are
#   kept, so a second search is quick.
# - ``lios`` measures each operator alone and assigns operators to streams, longest first. It needs
#   one measurement per operator. Its search takes milliseconds on a network of hundreds of
#   operators.
# - ``nimble`` uses no latencies. It gives the largest possible parallelism with the fewest waits.
# - ``opara`` orders the launches so that memory-bound operators run beside compute-bound operators.
#   It was made for GPUs.
#
# Each scheduler has its own options. If you give an option that it does not have, the error lists
# the options that it has.

print(tvm_interop.scheduling.options_of("ios"))
try:
    tvm_interop.schedule(graph, "lios", latency=latency, max_groups=2)
except tvm_interop.ScheduleError as error:
    print(f"refused: {error}")

# %%
# On the machine
# --------------
# A ``Compilation`` holds one model with its kernels, so that you can compare schedulers without
# compiling again. ``tvm-interop bench model.onnx`` does the same as the code below.

compilation = Compilation(build("squeezenet", image_size=32), CompileOptions(streams=2))
artifacts = {
    name: compilation.artifact(compilation.schedule(name))
    for name in ("sequential", "greedy", "lios")
}
modules = {name: tvm_interop.GraphModule(artifact) for name, artifact in artifacts.items()}
modules["sequential again"] = tvm_interop.GraphModule(artifacts["sequential"])

# %%
# The modules take turns, in a new random order in each round. Sequential execution takes part
# twice. Its ratio to itself is the noise: smaller differences mean nothing. A ratio below 1 is
# faster.

times_us = tvm_interop.measure_interleaved(modules, repeats=15)
base = np.median(times_us["sequential"])
for name, times in times_us.items():
    print(f"{name:17} {np.median(times):8.0f} us, ratio {np.median(times) / base:.2f}")

# %%
# ``compile`` measures the schedule of any scheduler against sequential execution, and puts the
# faster of the two into the artifact. So a bad scheduler costs you only the search.
