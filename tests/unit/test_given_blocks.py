"""Tests IOS with the blocks that a user gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.graphs import latencies, layered
from tvm_interop import InputError, LatencyTable, OpGraph, ScheduleError, operator_graph, schedule
from tvm_interop.cli.options import read_blocks
from tvm_interop.latency import LatencyModel
from tvm_interop.scheduling.given_blocks import block_ids

CHAIN = OpGraph.from_edges(["a/x", "a/y", "b/x", "b/y[1/2]", "b/y[2/2]"], [(0, 2), (1, 3), (1, 4)])


def test_names_and_patterns_make_blocks() -> None:
    assert block_ids(CHAIN, [["a/x", "a/y"], ["b/x", "b/y"]]) == [(0, 1), (2, 3, 4)]
    assert block_ids(CHAIN, [["a/*"], ["b/?"]]) == [(0, 1), (2, 3, 4)]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([["a/*"], ["b/x"]], r"operator `b/y\[1/2\]` is in none"),
        ([["a/*"], ["a/x", "b/*"]], "operator `a/x` is in two"),
        ([["b/*"], ["a/*"]], "operator `b/x` reads `a/x` of a later block"),
        ([["a/*", "c/*"], ["b/*"]], r"names `c/\*`, and no operator has this name"),
        ([["a/*"], [3]], "holds 3; it must hold names"),
        ("a/*", "`blocks`"),
    ],
)
def test_wrong_blocks_are_refused(blocks: object, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        block_ids(CHAIN, blocks)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheduler", ["ios", "ios-both"])
def test_the_blocks_of_the_graph_give_the_same_makespan(scheduler: str) -> None:
    graph = operator_graph("squeezenet")
    latency = LatencyTable(latencies(graph.num_ops, 0))
    blocks = [[graph.names[op] for op in ops] for ops in graph.blocks()]
    found = schedule(graph, scheduler, latency, blocks=blocks)
    whole = schedule(graph, scheduler, latency)
    assert found.makespan == pytest.approx(whole.makespan)
    for count in ("states", "transitions", "blocks"):
        assert found.stats[count] == whole.stats[count]


def test_a_graph_without_operators_has_no_blocks() -> None:
    assert schedule(OpGraph.from_edges(0, []), "ios", LatencyTable([]), blocks=[]).stages == ()


def test_no_stage_crosses_a_border() -> None:
    graph = layered(24, seed=3, layer=4)
    latency = LatencyTable(latencies(24, 1))
    order = graph.topological_order()
    blocks = [[graph.names[op] for op in order[i : i + 8]] for i in range(0, 24, 8)]
    found = schedule(graph, "ios", latency, blocks=blocks)
    names = [{graph.names[op] for op in stage.ops} for stage in found.stages]
    assert all(any(ops <= {*block} for block in blocks) for ops in names)
    assert found.makespan is not None
    whole = schedule(graph, "ios", latency)
    assert whole.makespan is not None
    assert found.makespan >= whole.makespan
    assert found.simulate(graph, latency) <= found.makespan * (1 + 1e-9)


def test_parts_of_a_divided_operator_stay_together() -> None:
    latency = LatencyTable([3.0, 1.0, 4.0, 2.0, 2.0])
    found = schedule(
        CHAIN, "ios", latency, parts=[[0], [1], [2], [3, 4]], streams=2, blocks=[["a/*"], ["b/*"]]
    )
    assert sorted(op for stage in found.stages for op in stage.ops) == [0, 1, 2, 3, 4]
    assert sum({3, 4} <= {*stage.ops} for stage in found.stages) == 1


def test_the_cells_of_nasnet_are_blocks() -> None:
    graph = operator_graph("nasnet_a")
    cells = dict.fromkeys(graph.names[op].split("/")[0] for op in graph.topological_order())
    blocks = [[f"{cell}/*"] for cell in cells]
    assert len(block_ids(graph, blocks)) == len(cells) == 24


class _Asked(LatencyModel):
    """A latency model that notes the operators of each stage that it is asked for."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def op(self, op: int) -> float:
        return 1.0

    def stage(self, groups: object) -> float:
        self.seen |= {op for group in groups for op in group}  # type: ignore[attr-defined]
        return 1.0


def test_the_model_is_asked_for_the_operators_of_the_whole_graph() -> None:
    graph = OpGraph.from_edges(6, [(0, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5)])
    asked = _Asked()
    names = graph.names
    schedule(graph, "ios", asked, blocks=[names[:3], names[3:]], bounds=False)
    assert asked.seen == {*range(6)}


def test_a_file_of_blocks(tmp_path: Path) -> None:
    path = tmp_path / "blocks.json"
    path.write_text('[["a/*"], ["b/x", "b/y"]]')
    assert read_blocks(path) == [["a/*"], ["b/x", "b/y"]]
    for text, message in (("[", "cannot be read as JSON"), ('{"a": 1}', "a list of lists")):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_blocks(path)
