"""Tests the proof that padded positions of a masked sequence do not change the results at other
positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tvm_interop
from tests.masked_nets import (
    GIVEN,
    LENGTH,
    LOWEST,
    WIDTH,
    Build,
    Masked,
    encoder,
    model,
    of_given,
    proof,
    shapes_of,
    theirs,
)  # fmt: skip
from tests.nets import Net
from tvm_interop.execution.graph_module import GraphModule
from tvm_interop.lowering.independent_rows import RowsDependError
from tvm_interop.lowering.masked_positions import Masks

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}


def feed(made: onnx.ModelProto, masks: Masks, garbage: int | None) -> dict[str, np.ndarray]:
    """Inputs of `GIVEN` positions, padded with garbage unless `garbage` is None."""
    rng, junk = np.random.default_rng(3), np.random.default_rng(garbage)
    found = {}
    for value in made.graph.input:
        shape = shapes_of(made, GIVEN)[value.name]
        more = tuple(np.array(shapes_of(made, LENGTH)[value.name]) - shape)
        axis = int(np.argmax(more))
        rest = (*shape[:axis], LENGTH - GIVEN, *shape[axis + 1 :])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if value.name == "x":
            given = rng.standard_normal(shape)
            fill = junk.standard_normal(rest) * 10.0 ** junk.integers(0, 4)
            fill *= value.name not in masks.names
        else:
            given = rng.integers(0, 2, shape)
            given[..., [0, 1]] = 1, 0
            fill = np.zeros(rest) if value.name in masks.names else junk.integers(0, 2, rest)
        both = given if garbage is None else np.concatenate([given, fill], axis)
        found[value.name] = both.astype(dtype)
    return found


def mean(net: Masked) -> str:
    total = net.do("ReduceSum", net.columns("x"), net.ints(1), keepdims=0)
    count = net.do("ReduceSum", net.float_mask(), net.ints(1), keepdims=1)
    return net.do("Div", total, net.do("Clip", count, net.number(1e-9)))


def where_infinite(net: Masked) -> str:
    keep = net.do("Unsqueeze", net.do("Cast", "mask", to=TensorProto.BOOL), net.ints(1))
    return net.mixed(net.do("Where", keep, net.scores(), net.number(-np.inf)))


def maximum(net: Masked) -> str:
    keep = net.do("Unsqueeze", net.do("Cast", "mask", to=TensorProto.BOOL), net.ints(2))
    found = net.do("Where", keep, "x", net.number(-np.inf))
    return net.do("ReduceMax", found, axes=[1], keepdims=0)


def relative(net: Masked) -> str:
    """Attention with a summand for each distance of two positions, as in T5."""
    at = net.positions()
    far = net.do("Sub", net.do("Unsqueeze", at, net.ints(0)), net.do("Unsqueeze", at, net.ints(1)))
    bucket = net.do("Min", net.do("Abs", far), net.number(5, np.int64))
    bias = net.do("Squeeze", net.do("Gather", net.weight(6, 1), bucket), net.ints(2))
    return net.mixed(net.do("Add", net.do("Add", net.scores(), bias), net.left_out()))


def by_places(net: Masked) -> str:
    """Reads the mask by indices into a flattened tensor, as newer exports of Hugging Face do."""
    first = net.do("Mul", net.constant(np.arange(net.batch).reshape(-1, 1)), net.length())
    places = net.do("Add", first, net.positions())
    flat = net.do("Reshape", "mask", net.ints(-1))
    found = net.do("Gather", flat, places)
    return net.mixed(net.do("Add", net.scores(), net.left_out(mask=found)))


def normed(net: Masked) -> str:
    """Numbers from a table, normed as in T5 and added to the input; then attention."""
    x = net.do("Gather", net.weight(20, WIDTH), net.positions())
    x = net.do("Unsqueeze", x, net.ints(0))
    squares = net.do("Pow", x, net.number(2))
    mean = net.do("ReduceMean", squares, axes=[-1], keepdims=1)
    size = net.do("Sqrt", net.do("Add", mean, net.number(1e-6)))
    return net.attention(net.do("Add", "x", net.do("Div", x, size)))


def embedded(net: Masked) -> str:
    return net.attention(
        net.do("Add", "x", net.do("Gather", net.weight(20, WIDTH), net.positions()))
    )


def first_of(net: Masked, x: str) -> str:
    return net.do("Gather", x, net.number(0, np.int64), axis=1)


def causal(net: Masked) -> str:
    return net.mixed(net.do("Add", net.scores(), net.later()))


def causal_and_masked(net: Masked) -> str:
    both = net.do("Max", net.do("Add", net.later(), net.left_out()), net.number(LOWEST))
    return net.mixed(net.do("Add", net.scores(), both))


PROVEN: dict[str, tuple[Build, Masks]] = {
    "position by position": (lambda net: net.do("Softmax", "x", axis=-1), Masks((), "nowhere")),
    "least float": (lambda net: net.attention(), Masks(("mask",), "any")),
    "minus infinity": (where_infinite, Masks(("mask",), "nowhere")),
    "two layers": (lambda net: net.attention(net.attention()), Masks(("mask",), "any")),
    "masked mean": (mean, Masks(("mask",), "nowhere")),
    "masked maximum": (maximum, Masks(("mask",), "nowhere")),
    "masked product": (
        lambda net: net.do(
            "MatMul", net.do("Transpose", net.biased(), perm=[0, 2, 1]), net.columns(net.biased())
        ),
        Masks(("mask",), "nowhere"),
    ),
    "distances": (relative, Masks(("mask",), "any")),
    "positions": (embedded, Masks(("mask",), "any")),
    "norm": (normed, Masks(("mask",), "any")),
    "places": (by_places, Masks(("mask",), "any")),
    "sum of an input": (
        lambda net: net.do("ReduceSum", "x", net.ints(1)),
        Masks(("x",), "nowhere"),
    ),
    "first position": (lambda net: first_of(net, net.attention()), Masks(("mask",), "any")),
    "causal": (causal, Masks((), "first")),
    "causal and masked": (causal_and_masked, Masks(("mask",), "first")),
}


@pytest.mark.parametrize("name", PROVEN)
def test_filled_positions_change_nothing(name: str) -> None:
    build, masks = PROVEN[name]
    made = model(build)
    assert proof(made) == masks
    module = GraphModule(tvm_interop.compile(made, input_shapes=shapes_of(made, LENGTH), **QUICK))
    outputs = [of_given(np.asarray(module(feed(made, masks, seed))[0]).copy()) for seed in (0, 1)]
    np.testing.assert_array_equal(*outputs)
    expected = theirs(made, feed(made, masks, None))[0]
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT32])
def test_the_mask_may_have_any_type(dtype: int) -> None:
    assert proof(model(Masked.attention, mask_type=dtype)) == Masks(("mask",), "any")


def test_several_rows_must_all_begin_with_1() -> None:
    """If each row of a mask has a 1 somewhere, there may be no position with a 1 in all rows."""
    assert proof(model(Masked.attention, batch=2)) == Masks(("mask",), "first")
    assert proof(model(by_places, batch=2)) == Masks(("mask",), "first")


def test_a_mask_of_four_dimensions() -> None:
    def build(net: Masked) -> str:
        wide = net.input("wide", [1, 1, 1, "seq"])
        left_out = net.do("Mul", net.do("Sub", net.number(1), wide), net.number(LOWEST))
        return net.mixed(net.do("Add", net.scores(), net.do("Squeeze", left_out, net.ints(1))))

    assert proof(model(build)) == Masks(("wide",), "any")


def test_two_masks() -> None:
    def build(net: Masked) -> str:
        net.input("other", [1, "seq"], TensorProto.INT64)
        left_out = net.left_out(mask="other")
        return net.mixed(net.do("Add", net.scores(), left_out), net.attention())

    assert proof(model(build)) == Masks(("mask", "other"), "first")


def inverted(net: Masked) -> str:
    wide = net.do("Unsqueeze", net.float_mask(), net.ints(1))
    return net.mixed(net.do("Add", net.scores(), net.do("Mul", wide, net.number(LOWEST))))


def masked_too_late(net: Masked) -> str:
    weights = net.do("Softmax", net.scores(), axis=-1)
    return net.do(
        "MatMul", net.do("Mul", weights, net.do("Unsqueeze", net.float_mask(), net.ints(1))), "x"
    )


def small_share(net: Masked) -> str:
    """The scores of padded positions are below all other scores, but their exponentials are not
    0."""
    keep = net.do("Unsqueeze", net.do("Cast", "mask", to=TensorProto.BOOL), net.ints(1))
    above = net.do("Exp", net.do("Mul", net.scores(), net.number(0.1)))
    return net.mixed(net.do("Where", keep, above, net.number(-2.0)))


def over_queries(net: Masked) -> str:
    masked = net.do("Add", net.scores(), net.left_out())
    return net.do("MatMul", net.do("Softmax", masked, axis=1), "x")


def share_of_length(net: Masked) -> str:
    total = net.do("ReduceSum", net.columns("x"), net.ints(1), keepdims=0)
    return net.do("Div", total, net.do("Cast", net.length(), to=TensorProto.FLOAT))


def last_of(net: Masked) -> str:
    return net.do("Gather", "x", net.number(-1, np.int64), axis=1)


def convolution(net: Masked) -> str:
    turned = net.do("Transpose", net.biased(), perm=[0, 2, 1])
    return net.do("Conv", turned, net.weight(4, WIDTH, 3), kernel_shape=[3], pads=[1, 1])


def reversed_positions(net: Masked) -> str:
    ends = net.ints(-1), net.ints(-(2**31)), net.ints(1), net.ints(-1)
    return net.do("Slice", net.columns("x"), *ends)


def divided_by_garbage(net: Masked) -> str:
    """A padded position gives 0 / x, which is NaN for x = 0."""
    return net.do("ReduceSum", net.do("Div", net.columns("x"), net.do("Relu", "x")), net.ints(1))


def logarithm(net: Masked) -> str:
    """The product of 0 and an infinite number is NaN."""
    log = net.do("Log", net.do("Unsqueeze", net.float_mask(), net.ints(2)))
    return net.do("ReduceSum", net.do("Mul", net.columns(net.biased()), log), net.ints(1))


REFUSED: dict[str, tuple[Build, str]] = {
    "no mask": (lambda net: net.mixed(net.scores()), "Softmax` takes the maximum over positions"),
    "not negative enough": (
        lambda net: net.mixed(net.do("Add", net.scores(), net.left_out(-10000.0))),
        "Softmax` takes the maximum over positions",
    ),
    "small share": (small_share, "Softmax` takes the maximum over positions"),
    "inverted": (inverted, "Softmax` takes the maximum over positions"),
    "masked too late": (masked_too_late, "Softmax` takes the maximum over positions"),
    "over queries": (over_queries, "Softmax` takes the maximum over positions"),
    "sum": (
        lambda net: net.do("ReduceSum", net.biased(), net.ints(1)),
        "ReduceSum` sums over positions",
    ),
    "product": (
        lambda net: net.do(
            "MatMul", net.do("Transpose", net.biased(), perm=[0, 2, 1]), net.biased()
        ),
        "MatMul` sums over positions",
    ),
    "mean": (lambda net: net.do("ReduceMean", "x", axes=[1]), "ReduceMean`"),
    "maximum": (lambda net: net.do("ReduceMax", "x", axes=[1]), "ReduceMax` takes the maximum"),
    "minimum": (lambda net: net.do("ReduceMin", "x", axes=[1]), "ReduceMin` takes the minimum"),
    "greatest position": (lambda net: net.do("ArgMax", "x", axis=1), "ArgMax`"),
    "share of the length": (
        share_of_length,
        "has different values for different lengths|computes something else",
    ),
    "last position": (last_of, "`.*Gather.*`|constant"),
    "convolution": (convolution, "Conv"),
    "running sum from the end": (
        lambda net: net.do("CumSum", net.biased(), net.number(1, np.int64), reverse=1),
        "CumSum`",
    ),
    "reversed": (reversed_positions, "Slice` reads another position"),
    "divided by garbage": (divided_by_garbage, "ReduceSum` sums over positions"),
    "logarithm": (logarithm, "ReduceSum` sums over positions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_filled_positions_may_change_is_refused(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(RowsDependError, match=message):
        proof(model(build))


@pytest.mark.parametrize("name", sorted(set(REFUSED) - {"not negative enough"}))
def test_what_is_refused_does_change(name: str) -> None:
    """A rule that allowed one of these models would be wrong: padding changes their results."""
    made = model(REFUSED[name][0])
    masks = Masks(("mask",), "any")
    given, filled = feed(made, masks, None), feed(made, masks, 0)
    if name == "divided by garbage":
        filled["x"][:, GIVEN:] = 0
    if name == "logarithm":
        given["mask"][:] = filled["mask"][:, :GIVEN] = 1
    alone = theirs(made, given)[0]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(of_given(theirs(made, filled)[0]), alone, rtol=1e-4, atol=1e-4)


def test_a_position_that_is_always_given_may_be_read() -> None:
    def third(net: Masked) -> str:
        return net.do("Gather", "x", net.number(2, np.int64), axis=1)

    assert proof(model(third), least=3) == Masks((), "nowhere")
    with pytest.raises(RowsDependError, match="reads position 2, which may be a padded position"):
        proof(model(third), least=2)


def test_an_output_of_pairs_is_refused() -> None:
    with pytest.raises(RowsDependError, match=r"output `t.*` has the positions twice"):
        proof(model(lambda net: net.do("Add", net.scores(), net.left_out())))


def test_kernels_written_by_hand_are_refused() -> None:
    net = Net()
    net.input("x", ["seq", 1, WIDTH])
    weights = net.weight(1, 12, 6), net.weight(1, 12, 3)
    net.op("LSTM", ["x", *weights], "y", hidden_size=3, direction="reverse")
    with pytest.raises(RowsDependError, match="y/LSTM"):
        proof(net.model("y", check=False))


@pytest.mark.parametrize("batch", [1, 2])
def test_an_encoder_is_proven(batch: int) -> None:
    expected = Masks(("attention_mask",), "any" if batch == 1 else "first")
    assert proof(encoder(batch)) == expected
