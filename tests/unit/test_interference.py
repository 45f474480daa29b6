"""Tests the model of how much operators slow each other down side by side, and that the model is
fitted to published times."""

from __future__ import annotations

import pytest

from benchmarks.papers import ios_interference
from benchmarks.papers.ios_interference import PAPER, Greedy, error, fitted
from tvm_interop import OpGraph
from tvm_interop.errors import LatencyError
from tvm_interop.latency import LatencyTable
from tvm_interop.latency.interference import InterferingLatency
from tvm_interop.scheduling import schedule

TABLE = LatencyTable([4.0, 4.0, 1.0, 3.0])


@pytest.mark.parametrize(
    ("groups", "us"),
    [
        ([[0]], 4.0),
        ([[0], [1]], 4.0 * 1.1),
        ([[0], [1], [2, 3]], 4.0 * 1.2),
        ([[0], [2]], 4.0 * 1.025),
        ([[0, 1]], 8.0),
    ],
)
def test_each_group_beside_the_longest_slows_the_stage_down(
    groups: list[list[int]], us: float
) -> None:
    assert InterferingLatency(TABLE, 0.1).stage(groups) == pytest.approx(us)
    assert InterferingLatency(TABLE, 0.0).stage(groups) == TABLE.stage(groups)


def test_operators_of_no_time() -> None:
    assert InterferingLatency(LatencyTable([0.0, 0.0]), 0.1).stage([[0], [1]]) == 0


@pytest.mark.parametrize("share", [-0.1, float("nan"), float("inf"), "much"])
def test_shares_of_no_use(share: float) -> None:
    with pytest.raises(LatencyError, match="`interference` is"):
        InterferingLatency(TABLE, share)


def test_the_fit_finds_the_interference_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = OpGraph.from_edges(4, [])
    greedy = ios_interference.greedy(graph, TABLE)
    assert isinstance(greedy, Greedy)
    stages = schedule(graph, "greedy", InterferingLatency(TABLE, 0.05))
    slowed = stages.simulate(graph, InterferingLatency(TABLE, 0.05))
    monkeypatch.setitem(PAPER, "squeezenet", greedy.sequential_us / slowed)
    networks = {"squeezenet": greedy}
    assert fitted(networks, ["squeezenet"]) == pytest.approx(0.05)
    assert error(networks, ["squeezenet"], 0.05) == pytest.approx(0, abs=1e-9)
    assert error(networks, ["squeezenet"], 0.0) > 0.05
