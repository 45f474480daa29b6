"""
Your own scheduler in thirty lines
==================================

A scheduler is a function that takes a graph and a latency model, and returns a ``Schedule``. Once
it is registered, ``compile``, ``schedulers()``, and the command line in the same process find it.

This tutorial writes HEFT, an old and good scheduler. HEFT sorts the operators by the longest path
from each operator to the end of the graph, longest first. It puts each operator on the stream where
it ends first. (The scheduler here is called ``my-heft``, because ``heft`` is the name of a
scheduler for several GPUs.)
"""

import numpy as np

import tvm_interop
from tvm_interop import LatencyTable, OpGraph, Schedule, operator_graph, register_scheduler
from tvm_interop.models import build, skeleton

# %%
# The scheduler
# -------------
# The parameters after the first two are the options of the scheduler. Its result is checked. If an
# operator is missing, or comes before an operator whose output it reads, a ``ScheduleError`` names
# it. A scheduler should give the same schedule for the same input, so this one breaks ties by the
# lowest id.


@register_scheduler("my-heft")
def heft(graph: OpGraph, latency, *, streams: int = 2, wait_us: float = 1.0) -> Schedule:
    """Topcuoglu et al., "Performance-Effective and Low-Complexity Task Scheduling", 2002."""
    took = [latency.op(op) for op in range(graph.num_ops)]
    to_end = [0.0] * graph.num_ops
    for op in reversed(graph.topological_order()):
        to_end[op] = took[op] + max((to_end[s] for s in graph.successors(op)), default=0.0)

    free = [0.0] * streams
    stream_of, end = {}, {}
    order = [[] for _ in range(streams)]
    for op in sorted(graph.topological_order(), key=lambda op: (-to_end[op], op)):

        def start_on(stream, op=op):
            ready = (
                end[p] + (wait_us if stream_of[p] != stream else 0) for p in graph.predecessors(op)
            )
            return max([free[stream], *ready])

        stream_of[op] = min(range(streams), key=start_on)
        end[op] = free[stream_of[op]] = start_on(stream_of[op]) + took[op]
        order[stream_of[op]].append(op)
    return Schedule("my-heft", graph.names, streams=[ops for ops in order if ops])


# %%
# On a graph alone
# ----------------
# You can try a scheduler without a device. The graph here is NASNet-A, with latencies drawn at
# random. ``makespan`` is predicted in the same way for every schedule.

graph = operator_graph(skeleton("nasnet_a"))
table = LatencyTable(np.random.default_rng(0).lognormal(3, 1, graph.num_ops))
for name in ("sequential", "greedy", "lios", "lios+", "my-heft"):
    options = {} if name in ("sequential", "greedy") else {"streams": 4}
    schedule = tvm_interop.schedule(graph, name, latency=table, **options)
    print(f"{name:11} {schedule.makespan / 1e3:6.2f} ms on {schedule.num_streams} streams")

# %%
# On a network
# ------------
# ``compile`` takes the scheduler by name, like any other. It measures the latencies that the
# scheduler asks for, and passes the scheduler's options on.

model = build("squeezenet", image_size=32)
artifact = tvm_interop.compile(model, scheduler="my-heft", streams=2, wait_us=2.0, keep_slower=True)
print(f"{artifact.schedule.scheduler}: {len(artifact.plan.operators)} operators")

# %%
# The output of every schedule has the same bits as the output of sequential execution. You need not
# prove that for your scheduler.

image = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype("float32")
outputs = []
for compiled in (artifact, tvm_interop.compile(model, scheduler="sequential")):
    module = tvm_interop.GraphModule(compiled)
    module.run(image=image)
    outputs.append(module.get_output(0).numpy())
assert np.array_equal(*outputs)
print("bit-equal to sequential execution")
