"""Models that were built to mislead the proof that padding does not change masked sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import tvm_interop
from tests.masked_nets import LOWEST, WIDTH, Build, Masked, model, proof
from tvm_interop.errors import InputError
from tvm_interop.lowering.independent_rows import RowsDependError
from tvm_interop.lowering.masked_positions import Masks

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}


def column(net: Masked) -> str:
    return net.do("Unsqueeze", net.float_mask(), net.ints(2))


def left(net: Masked) -> str:
    """A tensor that is 1 where the mask is 0, and 0 elsewhere."""
    return net.do("Sub", net.number(1), column(net))


def total(net: Masked, x: str) -> str:
    return net.do("ReduceSum", x, net.ints(1))


def masked_total(net: Masked, x: str) -> str:
    return total(net, net.columns(x))


def tens(net: Masked) -> str:
    """The number 10 for each element, computed so that no constant shows it."""
    ten = net.do("Add", net.do("Mul", column(net), net.number(0)), net.number(10))
    return net.do("Mul", ten, net.constant(np.ones((1, 1, WIDTH), np.float32)))


def above(net: Masked, x: str, least: float) -> str:
    """A sum. Its terms are not 0 where `x` is above `least`."""
    some = net.do("Where", net.do("Greater", x, net.number(least)), net.biased(), net.number(0))
    return total(net, some)


def norm_of_zeros(net: Masked) -> str:
    """At a padded position, the quotient is 0 / 0."""
    x = net.columns("x")
    return masked_total(net, net.do("Div", x, net.do("ReduceL1", x, axes=[2], keepdims=1)))


def divided_by_function_of_zero(net: Masked) -> str:
    return masked_total(net, net.do("Div", "x", net.do("Tanh", net.columns("x"))))


def divided_by_centred_function(net: Masked) -> str:
    half = net.do("Sub", net.do("Sigmoid", net.columns("x")), net.number(0.5))
    return masked_total(net, net.do("Div", "x", half))


def divided_by_remainder(net: Masked) -> str:
    rest = net.do("Cast", net.do("Mod", "mask", net.number(2, np.int64)), to=TensorProto.FLOAT)
    return masked_total(net, net.do("Div", "x", net.do("Unsqueeze", rest, net.ints(2))))


def long_product(net: Masked) -> str:
    return above(net, net.do("ReduceProd", tens(net), axes=[2], keepdims=1), 100)


def long_running_sum(net: Masked) -> str:
    return above(net, net.do("CumSum", tens(net), net.number(2, np.int64)), 25)


def whole_number_that_wraps(net: Masked) -> str:
    """The largest integer plus 1 wraps around to the smallest."""
    one = net.do("Sub", net.number(1, np.int32), net.do("Cast", "mask", to=TensorProto.INT32))
    sum_ = net.do("Add", one, net.number(2**31 - 1, np.int32))
    is_low = net.do("Unsqueeze", net.do("Less", sum_, net.number(0, np.int32)), net.ints(2))
    return total(net, net.do("Where", is_low, net.biased(), net.number(0)))


def rounded_mask(net: Masked) -> str:
    """A large number is added to the mask and subtracted again. Rounding loses the mask's 1."""
    near = net.do("Add", net.do("Add", left(net), net.number(1e8)), net.number(-1e8))
    masked = net.do("Mul", net.do("Transpose", near, perm=[0, 2, 1]), net.number(LOWEST))
    return net.mixed(net.do("Add", net.scores(), masked))


def exponential_of_0(net: Masked) -> str:
    small = net.do("Exp", net.do("Mul", left(net), net.number(-200)))
    is_some = net.do("Greater", small, net.number(0))
    return total(net, net.do("Where", is_some, net.columns(net.biased()), net.number(7)))


def product_of_0(net: Masked) -> str:
    small = net.do("Mul", net.do("Mul", left(net), net.number(1e-30)), net.number(1e-30))
    is_some = net.do("Greater", small, net.number(0))
    return total(net, net.do("Where", is_some, net.number(0), net.biased()))


REFUSED: dict[str, Build] = {
    build.__name__: build
    for build in (
        norm_of_zeros, divided_by_function_of_zero, divided_by_centred_function,
        divided_by_remainder, long_product, long_running_sum, whole_number_that_wraps,
        rounded_mask, exponential_of_0, product_of_0,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_misleads_the_bounds_is_refused(name: str) -> None:
    with pytest.raises(RowsDependError, match="over positions"):
        proof(model(REFUSED[name]))


def test_the_greatest_feature_of_each_position_is_proven() -> None:
    """In the kernel of ArgMax, two statements of one loop read each other's results. The proof must
    still find bounds of both results."""
    assert proof(model(lambda net: net.do("ArgMax", "x", axis=2))) == Masks((), "nowhere")


def divided_by_small_length(net: Masked) -> str:
    least = net.do("Min", net.length(), net.number(5, np.int64))
    return net.do("Div", masked_total(net, "x"), net.do("Cast", least, to=TensorProto.FLOAT))


def with_short_flag(net: Masked) -> str:
    is_short = net.do("Less", net.length(), net.number(6, np.int64))
    return net.do("Add", "x", net.do("Cast", is_short, to=TensorProto.FLOAT))


@pytest.mark.parametrize("build", [divided_by_small_length, with_short_flag])
def test_a_number_may_be_the_same_for_all_compiled_lengths_only(build: Build) -> None:
    """Each model uses a number that depends on the length.

    The number is the same for all compiled lengths. It differs for the length 2, which is in the
    range.
    """
    with pytest.raises(InputError, match="this could change results"):
        tvm_interop.compile(model(build), shapes={"seq": (1, 16)}, most_sizes=3, **QUICK)
