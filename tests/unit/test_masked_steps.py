"""Ranges of lengths for models that go through a sequence step by step: sums and recurrent layers.

Padding follows the given positions. So the input of a layer that starts at the first step may be
padded. The input may not be padded if the layer starts at the last step, or uses the last step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tvm_interop
from tests.masked_nets import WIDTH, Build, Masked, model, proof, theirs
from tests.nets import Net
from tvm_interop.execution.graph_module import GraphModule
from tvm_interop.lowering.independent_rows import RowsDependError
from tvm_interop.lowering.masked_positions import Masks

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}
HIDDEN = 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(
    kind: str, output: int = 0, direction: str = "forward", lengths: bool = False, **attrs: Any
) -> onnx.ModelProto:
    """A recurrent layer on a sequence of one row. `output` is the index of the layer's output that
    is used."""
    net, count = Net(), 2 if direction == "bidirectional" else 1
    x = net.op("Transpose", [net.input("x", [1, "seq", WIDTH])], "turned", perm=[1, 0, 2])
    wide = GATES[kind] * HIDDEN
    weights = [net.weight(count, wide, WIDTH), net.weight(count, wide, HIDDEN)]
    rest = ["", net.input("steps", [1], TensorProto.INT32)] if lengths else []
    given = dict(hidden_size=HIDDEN, direction=direction, **attrs)
    net.op(kind, [x, *weights, *rest], *(f"y{i}" for i in range(output + 1)), **given)
    return net.model(f"y{output}", check=False)


def running(net: Masked, x: str, **attrs: Any) -> str:
    return net.do("CumSum", x, net.number(1, np.int64), **attrs)


def sum_of(net: Masked, x: str) -> str:
    """A sum over positions. The mask must leave padded positions out of it."""
    return net.do("ReduceSum", net.columns(x), net.ints(1))


def places_by_mask(net: Masked) -> str:
    """Embeddings by the number of given positions so far, as RoBERTa has them."""
    at = net.do("Mul", net.do("CumSum", "mask", net.number(1, np.int64)), "mask")
    return net.attention(net.do("Add", "x", net.do("Gather", net.weight(20, WIDTH), at)))


@pytest.mark.parametrize("kind", GATES)
def test_a_layer_from_the_first_step_on_is_proven(kind: str) -> None:
    assert proof(layer(kind)) == Masks((), "nowhere")


def test_a_number_of_steps_for_each_row_is_proven() -> None:
    net = Net()
    net.input("x", ["seq", 2, WIDTH])
    steps = net.constant(np.array([2, 1], np.int32))
    weights = net.weight(1, 4 * HIDDEN, WIDTH), net.weight(1, 4 * HIDDEN, HIDDEN)
    net.op("LSTM", ["x", *weights, "", steps], "y", hidden_size=HIDDEN)
    assert proof(net.model("y", check=False)) == Masks((), "nowhere")


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_a_layer_from_the_last_step_on_is_refused(kind: str, direction: str) -> None:
    with pytest.raises(RowsDependError, match=f"{kind}.* from the last to the first"):
        proof(layer(kind, direction=direction))


@pytest.mark.parametrize(("kind", "output"), [("LSTM", 1), ("LSTM", 2), ("GRU", 1), ("RNN", 1)])
def test_the_last_state_is_refused(kind: str, output: int) -> None:
    with pytest.raises(RowsDependError, match="result of the last position"):
        proof(layer(kind, output))


PROVEN: dict[str, tuple[Build, Masks]] = {
    "sum": (lambda net: running(net, net.biased()), Masks((), "nowhere")),
    "exclusive sum": (lambda net: running(net, "x", exclusive=1), Masks((), "nowhere")),
    "sum of a mask": (places_by_mask, Masks(("mask",), "any")),
    "masked sum of sums": (lambda net: sum_of(net, running(net, "x")), Masks(("mask",), "nowhere")),
}


@pytest.mark.parametrize("name", PROVEN)
def test_running_sums_are_proven(name: str) -> None:
    build, masks = PROVEN[name]
    assert proof(model(build)) == masks


def divided_by_balance(net: Masked) -> str:
    """Divide each position by a number: the given positions so far, minus the padded positions so
    far. The divisor becomes 0 at a padded position, but at no given position."""
    sign = net.do("Sub", net.do("Mul", net.float_mask(), net.number(2)), net.number(1))
    balance = net.do("Unsqueeze", net.do("CumSum", sign, net.number(1, np.int64)), net.ints(2))
    return sum_of(net, net.do("Div", "x", balance))


def divided_by_whole_balance(net: Masked) -> str:
    two, one = (net.number(n, np.int64) for n in (2, 1))
    sign = net.do("Sub", net.do("Mul", "mask", two), one)
    whole = net.do("Cast", net.do("CumSum", sign, one), to=TensorProto.FLOAT)
    return sum_of(net, net.do("Div", "x", net.do("Unsqueeze", whole, net.ints(2))))


ATTACKS: dict[str, Build] = {
    "sum from the end": lambda net: running(net, "x", reverse=1),
    "balance": divided_by_balance,
    "balance of whole numbers": divided_by_whole_balance,
    "sum of sums": lambda net: net.do("ReduceSum", running(net, net.columns("x")), net.ints(1)),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_sums_that_filled_positions_change_are_refused(name: str) -> None:
    with pytest.raises(RowsDependError, match=r"CumSum|over positions|adds up"):
        proof(model(ATTACKS[name]))


@pytest.mark.parametrize("kind", GATES)
def test_any_length_of_a_tagger_is_right(kind: str) -> None:
    made = layer(kind)
    artifact = tvm_interop.compile(made, shapes={"seq": (1, 12)}, most_sizes=3, **QUICK)
    module, rng = GraphModule(artifact), np.random.default_rng(5)
    for length in range(1, 13):
        feed = {"x": rng.standard_normal((1, length, WIDTH), np.float32)}
        np.testing.assert_allclose(module(feed)[0], theirs(made, feed)[0], atol=1e-5)
