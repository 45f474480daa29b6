"""Tests that random graphs that are compiled for ranges are judged rightly."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto

from tests.random_graphs import ranges
from tests.random_graphs.symbolic import SymbolicGraph
from tvm_interop.compiler.imported_sizes import Imported


class _Planted(SymbolicGraph):
    """Plants a fault: for one of the sizes, the model multiplies by another number."""

    special = 4

    def build(self) -> onnx.ModelProto:
        is_it = self.do("Equal", self.size("n"), self.ints(self.special))
        factor = self.do("Add", self.do("Cast", is_it, to=TensorProto.FLOAT), self.number(1))
        self.op("Mul", [self.at[0], factor], "y")
        return self.model("y", check=False)


def _batch_of_9() -> int:
    """A seed whose random graph has a batch of 1 to 9 and no mask."""
    graphs = ((seed, SymbolicGraph(seed)) for seed in range(1000))
    return next(
        seed for seed, graph in graphs
        if graph.ranges == {"n": (1, 9)} and graph.at[1][0] == "n" and graph.mask is None
    )  # fmt: skip


@pytest.mark.parametrize(("special", "told"), [(8, "{'n': 8}"), (1, "rows of ")])
def test_what_is_proven_wrongly_is_found(
    special: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "SymbolicGraph", _Planted)
    monkeypatch.setattr(ranges, "_RUNS", 24)
    monkeypatch.setattr(_Planted, "special", special)
    seed = _batch_of_9()
    kept = ranges.judged(seed)
    assert "wrong" not in kept
    assert ("refused" in kept) == (special == 8)
    monkeypatch.setattr(Imported, "check_sizes", lambda *_: {})
    monkeypatch.setattr(Imported, "why_not_joined", lambda *_: None)
    assert told in str(ranges.judged(seed)["wrong"])


def test_a_graph_is_the_same_for_the_same_seed() -> None:
    for seed in range(40):
        one, other = SymbolicGraph(seed), SymbolicGraph(seed)
        model = one.build()
        assert model == other.build()
        sizes = {
            name: end[1] if isinstance(end, tuple) else end for name, end in one.ranges.items()
        }
        feed = one.feed(sizes, seed)
        assert {value.name for value in model.graph.input} == feed.keys()
