"""
Choosing a scheduler
====================

Every scheduler answers the same question from other knowledge. Here they meet on the example of the
LIOS paper, then on a network, where only a measurement decides.
"""

import numpy as np

import tvm_interop
from tvm_interop import LatencyTable, OpGraph
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.models import build

# %%
# On paper
# --------
# Ten operators, their latencies in microseconds, three streams: Table III of the LIOS paper. One
# after the other they take 73 us.

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
# What each knows:
#
# - ``greedy`` only who depends on whom: all that is ready goes into the next stage. Free, and often
#   hard to beat.
# - ``ios`` tries every way of cutting the graph into stages, by dynamic programming, and *measures*
#   the stages: it knows what happens when two operators share the caches. The best stages there
#   are, for a price: thousands of measurements on a wide graph. They are kept, so the second search
#   is quick.
# - ``lios`` measures each operator alone and sorts them onto streams, longest first: one
#   measurement an operator, and a search of milliseconds on a network of hundreds.
# - ``nimble`` asks for no latencies: as much parallelism as there is with the fewest waits.
# - ``opara`` orders launches so that operators that need memory and operators that need arithmetic
#   meet. Made for GPUs.
#
# Options belong to a scheduler; one it does not have is refused, with those it has.

print(tvm_interop.scheduling.options_of("ios"))
try:
    tvm_interop.schedule(graph, "lios", latency=latency, max_groups=2)
except tvm_interop.ScheduleError as error:
    print(f"refused: {error}")

# %%
# On the machine
# --------------
# A ``Compilation`` holds one model with its kernels, so that schedulers can be compared without
# compiling again. ``tvm-interop bench model.onnx`` does what follows.

compilation = Compilation(build("squeezenet", image_size=32), CompileOptions(streams=2))
artifacts = {
    name: compilation.artifact(compilation.schedule(name))
    for name in ("sequential", "greedy", "lios")
}
modules = {name: tvm_interop.GraphModule(artifact) for name, artifact in artifacts.items()}
modules["sequential again"] = tvm_interop.GraphModule(artifacts["sequential"])

# %%
# They take turns, in an order drawn anew each round, and sequential execution takes part twice: how
# far it is from itself is how little a difference may mean. A ratio below 1 is faster.

times_us = tvm_interop.measure_interleaved(modules, repeats=15)
base = np.median(times_us["sequential"])
for name, times in times_us.items():
    print(f"{name:17} {np.median(times):8.0f} us, ratio {np.median(times) / base:.2f}")

# %%
# Whatever you choose, ``compile`` measures its schedule against sequential execution before it
# ships, and ships the faster. So a scheduler that does badly costs you the search, and no more.
