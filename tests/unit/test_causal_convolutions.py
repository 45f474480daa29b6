"""Tests the proof that padding after a sequence does not change results of causal convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_interop
from tests.masked_nets import (
    LENGTH,
    WIDTH,
    Build,
    Masked,
    model,
    of_given,
    proof,
    shapes_of,
    theirs,
)
from tests.unit.test_masked_positions import QUICK, feed
from tvm_interop.execution.graph_module import GraphModule
from tvm_interop.lowering.independent_rows import RowsDependError
from tvm_interop.lowering.masked_positions import Masks


def turned(net: Masked, x: str) -> str:
    return net.do("Transpose", x, perm=[0, 2, 1])


def conv(
    net: Masked,
    x: str,
    pads: tuple[int, int],
    *,
    size: int = 3,
    dilation: int = 1,
    group: int = 1,
    channels: int = WIDTH,
) -> str:
    """A convolution of a tensor whose channels come before its positions."""
    weights = net.weight(channels, WIDTH // group, size), net.weight(channels)
    options = {"kernel_shape": [size], "pads": list(pads), "group": group}
    return net.do("Conv", x, *weights, dilations=[dilation], **options)


def alone(**options: Any) -> Build:
    return lambda net: turned(net, conv(net, turned(net, "x"), **options))


def padded(net: Masked, mode: str = "constant") -> str:
    """Zero padding as a separate operator, as PyTorch's `pad` is exported."""
    wide = net.do("Pad", turned(net, "x"), net.ints(0, 0, 2, 0, 0, 0), mode=mode)
    return turned(net, conv(net, wide, (0, 0)))


def cut(net: Masked, x: str, first: int, last: int, pad: int = 4) -> str:
    """A convolution that is padded on both sides, and a slice that drops the first `first` and
    the last `last` results."""
    wide = conv(net, x, (pad, pad), dilation=2)
    ends = net.ints(first), net.ints(-last if last else 2**40), net.ints(2)
    return net.do("Slice", wide, *ends)


def temporal(net: Masked) -> str:
    """Two residual blocks of a temporal convolutional network."""
    x = turned(net, "x")
    for _ in range(2):
        made = net.do("Relu", cut(net, net.do("Relu", cut(net, x, 0, 4)), 0, 4))
        x = net.do("Relu", net.do("Add", made, x))
    return turned(net, x)


def gated(net: Masked) -> str:
    """A layer of WaveNet."""
    x = turned(net, "x")
    one, other = (conv(net, x, (2, 0), size=2, dilation=2) for _ in range(2))
    mixed = net.do("Mul", net.do("Tanh", one), net.do("Sigmoid", other))
    return turned(net, net.do("Add", conv(net, mixed, (0, 0), size=1), x))


def masked_mean(net: Masked) -> str:
    made = turned(net, conv(net, turned(net, "x"), (2, 0)))
    return net.do("ReduceSum", net.columns(made), net.ints(1))


def attention(net: Masked) -> str:
    """A layer of a streaming model: a causal convolution of each channel, then attention."""
    return net.attention(turned(net, conv(net, turned(net, "x"), (4, 0), size=5, group=WIDTH)))


def shifted(net: Masked, x: str, by: int) -> str:
    """`x` moved `by` positions later, with zeros before it, as by the token shift of RWKV."""
    return net.do("Pad", x, net.ints(0, by, 0, 0, -by, 0))


def mixed_with_shift(net: Masked) -> str:
    share = net.positive(WIDTH)
    both = net.do("Add", net.do("Mul", "x", share), shifted(net, "x", 1))
    return net.attention(net.do("Tanh", net.do("MatMul", both, net.weight(WIDTH, WIDTH))))


def sum_of_shifted(net: Masked) -> str:
    """At the first padded position, the shifted tensor has the last given number."""
    return net.do("ReduceSum", shifted(net, net.columns(net.biased()), 1), net.ints(1))


PROVEN: dict[str, tuple[Build, Masks]] = {
    "padded at the beginning": (alone(pads=(2, 0)), Masks((), "nowhere")),
    "padding of its own": (padded, Masks((), "nowhere")),
    "two taps": (alone(pads=(1, 0), size=2), Masks((), "nowhere")),
    "with gaps": (alone(pads=(6, 0), dilation=3), Masks((), "nowhere")),
    "more padding than positions": (alone(pads=(24, 0), dilation=12), Masks((), "nowhere")),
    "by channel": (alone(pads=(2, 0), group=WIDTH), Masks((), "nowhere")),
    "in groups": (alone(pads=(2, 0), group=2), Masks((), "nowhere")),
    "temporal": (temporal, Masks((), "nowhere")),
    "gated": (gated, Masks((), "nowhere")),
    "masked sum": (masked_mean, Masks(("mask",), "nowhere")),
    "attention": (attention, Masks(("mask",), "any")),
    "shifted": (lambda net: net.do("Mul", "x", shifted(net, "x", 2)), Masks((), "nowhere")),
    "shifted before attention": (mixed_with_shift, Masks(("mask",), "any")),
}


@pytest.mark.parametrize("name", PROVEN)
@pytest.mark.parametrize("batch", [1, 2])
def test_filled_positions_change_nothing(name: str, batch: int) -> None:
    build, masks = PROVEN[name]
    if batch > 1 and masks.anchor == "any":
        masks = Masks(masks.names, "first")
    made = model(build, batch=batch)
    assert proof(made) == masks
    for options in (QUICK, {**QUICK, "providers": None}) if batch == 1 else (QUICK,):
        module = GraphModule(
            tvm_interop.compile(made, input_shapes=shapes_of(made, LENGTH), **options)
        )
        feeds = [feed(made, masks, seed) for seed in (0, 1)]
        outputs = [of_given(np.asarray(module(each)[0]).copy()) for each in feeds]
        np.testing.assert_array_equal(*outputs)
        expected = theirs(made, feed(made, masks, None))[0]
        np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-4)


def masked_before(net: Masked) -> str:
    """Sums over all positions, of which some are padding.

    The convolution at a padded position also reads positions of the input, so the padded position
    adds a number other than 0 to the sum.
    """
    made = turned(net, conv(net, turned(net, net.columns("x")), (2, 0)))
    return net.do("ReduceSum", made, net.ints(1))


def no_number(net: Masked) -> str:
    """A padded position gives 0 / 0, and the next position reads this result too."""
    x = net.columns("x")
    bad = net.do("Div", x, net.do("ReduceL1", x, axes=[2], keepdims=1))
    made = turned(net, conv(net, turned(net, bad), (2, 0)))
    return net.do("ReduceSum", net.columns(made), net.ints(1))


REFUSED: dict[str, Build] = {
    "padded on both sides": alone(pads=(1, 1)),
    "padded at the end": alone(pads=(0, 2)),
    "one position too late": alone(pads=(3, 1), dilation=2),
    "one of eight taps too late": alone(pads=(6, 1), size=8),
    "without the first results": lambda net: turned(net, cut(net, turned(net, "x"), 4, 0)),
    "without too few results": lambda net: turned(net, cut(net, turned(net, "x"), 1, 3)),
    "sum": lambda net: net.do("ReduceSum", alone(pads=(2, 0))(net), net.ints(1)),
    "masked before it": masked_before,
    "shifted to the beginning": lambda net: net.do("Mul", "x", shifted(net, "x", -1)),
    "sum of shifted positions": sum_of_shifted,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_filled_positions_may_change_is_refused(name: str) -> None:
    made = model(REFUSED[name])
    with pytest.raises(RowsDependError):
        proof(made)
    masks = Masks(("mask",), "any")
    own = theirs(made, feed(made, masks, None))[0]
    filled = of_given(theirs(made, feed(made, masks, 0))[0])
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(filled, own, rtol=1e-4, atol=1e-4)


def test_a_convolution_of_what_may_be_no_number_is_refused() -> None:
    with pytest.raises(RowsDependError, match="ReduceSum"):
        proof(model(no_number))


def test_a_border_of_reflections_is_refused() -> None:
    with pytest.raises(RowsDependError, match="no fixed number of elements for each position"):
        proof(model(lambda net: padded(net, "reflect")))


def test_the_error_says_that_positions_are_joined() -> None:
    """As in wav2vec2, convolutions with strides reduce the number of positions, and then
    constants are added."""

    def speech(net: Masked) -> str:
        weights = net.weight(WIDTH, WIDTH, 3)
        made = net.do("Conv", turned(net, "x"), weights, strides=[2], pads=[1, 1])
        x = turned(net, made)
        length = net.do("Gather", net.do("Shape", x), net.number(1, np.int64))
        places = net.do("Range", net.number(0, np.int64), length, net.number(1, np.int64))
        return net.do("Add", x, net.do("Gather", net.weight(20, WIDTH), places))

    with pytest.raises(RowsDependError, match="merges several positions into one"):
        proof(model(speech))


def test_the_error_says_that_the_convolution_is_not_causal() -> None:
    with pytest.raises(RowsDependError, match=r"Conv` reads positions after .* non-causal"):
        proof(model(REFUSED["padded on both sides"]))


@pytest.mark.parametrize("batch", [1, (1, 4)])
def test_an_artifact_runs_any_length(batch: Any) -> None:
    made = model(temporal, batch="batch")
    artifact = tvm_interop.compile(
        made, shapes={"batch": batch, "seq": (2, 16)}, most_sizes=4, **QUICK
    )
    module, rng = GraphModule(artifact), np.random.default_rng(0)
    for length in range(2, 17):
        rows = 1 if batch == 1 else 1 + length % 4
        x = rng.standard_normal((rows, length, WIDTH)).astype(np.float32)
        feeds = {"x": x, "mask": np.ones((rows, length), np.int64)}
        expected = theirs(made, feeds)[0]
        np.testing.assert_allclose(module(feeds)[0], expected, rtol=1e-4, atol=1e-4)
