"""Tests HIOS on examples that agree with every number in the paper's text on Figs. 4 and 5.

`tests/cpp/hios_test.cc` tests the steps of Algorithms 1 and 3. Operators are numbered from 0 here,
and from 1 in the paper.
"""

import pytest

from tests.gpu_evaluator import makespan_of
from tvm_interop.errors import ScheduleError
from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import Schedule, schedule
from tvm_interop.scheduling.gpu_simulation import simulate_gpus
from tvm_interop.scheduling.on_gpus import GpuPrices, with_windows

FIGURE_4 = OpGraph.from_edges(
    8, [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5), (4, 6), (5, 7), (6, 7)]
)
FIGURE_4_US = LatencyTable(
    [3, 4, 2, 1, 1, 4, 2, 3],
    transfers=dict(zip(FIGURE_4.edges, [1, 2, 1, 1, 2, 1, 1, 1, 2], strict=True)),
)
FIGURE_4_STAGES = (((0,), (1,), (3,), (5,), (7,)), ((2,), (4,), (6,)))

FIGURE_5 = OpGraph.from_edges(7, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6), (3, 4), (5, 6)])


class Figure5(LatencyTable):
    """The latencies of Fig. 5.

    The paper gives the latencies of two stages: v2 with v4, and v5 with v7.
    """

    def __init__(self):
        weights = [3, 1, 1, 3, 3, 3, 1, 2]
        super().__init__(
            [4, 5, 3, 3, 5, 1, 1], transfers=dict(zip(FIGURE_5.edges, weights, strict=True))
        )

    def stage(self, groups):
        ops = sorted(op for group in groups for op in group)
        together = {(1, 3): 7.0, (4, 6): 5.0}
        return together.get(tuple(ops), sum(map(self.op, ops)))


@pytest.mark.parametrize("name", ["hios-lp", "hios-mr"])
def test_figure_4(name):
    made = schedule(FIGURE_4, name, FIGURE_4_US, gpus=2, intra="none")
    assert made.gpu_stages == FIGURE_4_STAGES
    assert made.makespan == 16
    assert made.simulate(FIGURE_4, FIGURE_4_US) == 16


def test_figure_4_cannot_be_shorter():
    optimum = min(
        makespan_of(FIGURE_4, stages, FIGURE_4_US)
        for mapping in range(256)
        for stages in [
            [[[op] for op in range(8) if (mapping >> op & 1) == gpu] for gpu in range(2)]
        ]
    )
    assert optimum == 16


def test_figure_5():
    """Merging operators into stages (Algorithm 2) improves the makespan from 18 to 16."""
    latency = Figure5()
    prices = GpuPrices(FIGURE_5, latency)
    orders = [[0, 1, 3, 4, 6], [2, 5]]
    before, makespan = with_windows(prices, orders, 2, "none")
    assert before == [[[0], [1], [3], [4], [6]], [[2], [5]]]
    assert makespan == 18
    stages, makespan = with_windows(prices, orders, 2, "windows")
    assert stages == [[[0], [1, 3], [4, 6]], [[2], [5]]]
    assert makespan == 16
    after = Schedule.from_gpu_stages("by hand", FIGURE_5.names, stages)
    timeline = {op: end for op, _, _, end in simulate_gpus(FIGURE_5, after, latency).timeline}
    assert timeline == {0: 4, 1: 11, 2: 8, 3: 11, 4: 16, 5: 9, 6: 16}


def test_a_deadlock_along_the_gpus_is_refused():
    """The graph has no cycle. Together with the orders on the two GPUs, its edges form a cycle.

    `a` and `b` start together. `b` waits for `c`, `c` for `d`, and `d` for `a`.
    """
    graph = OpGraph.from_edges(["a", "b", "c", "d"], [("a", "d"), ("c", "b")])
    stuck = Schedule.from_gpu_stages("by hand", graph.names, [[[0, 1]], [[3], [2]]])
    with pytest.raises(ScheduleError) as caught:
        stuck.validate(graph)
    for says in (
        "circle",
        "`d` (stage 1 on GPU 1) reads the output of `a` (stage 0 on GPU 0)",
        "`b` (stage 0 on GPU 0) reads the output of `c`",
        "is behind stage 1",
    ):
        assert says in str(caught.value)
    # The search for windows never makes operators wait for each other in a cycle.
    latency = LatencyTable([5, 5, 1, 1])
    stages, makespan = with_windows(GpuPrices(graph, latency), [[0, 1], [3, 2]], 2, "windows")
    assert stages == [[[0], [1]], [[3, 2]]]
    assert makespan == 11
