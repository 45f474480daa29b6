"""Models on batches of sequences that were built to mislead the proof that padding of both ranges,
batch and length, changes no results."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from tests.masked_nets import WIDTH, Build, Masked
from tests.pair_nets import is_true, pair_model, proven
from tvm_interop.errors import InputError


def left(net: Masked) -> str:
    """A tensor that is 1 where the mask is 0, and 0 elsewhere."""
    return net.do("Sub", net.number(1), net.do("Unsqueeze", net.float_mask(), net.ints(2)))


def sum_unless(net: Masked, is_large: str) -> str:
    """A sum over positions.

    If `is_large` is set, a padded position adds a number other than 0 to it.
    """
    chosen = net.do("Where", is_large, net.biased(), net.columns("x"))
    return net.do("ReduceSum", chosen, net.ints(1), keepdims=0)


def rounded_up(net: Masked) -> str:
    """The number 4.5 is below the limit 4.8, but exceeds it after rounding up."""
    whole = net.do("Ceil", net.do("Mul", left(net), net.number(4.5)))
    return sum_unless(net, net.do("Greater", whole, net.number(4.8)))


def rounded_down(net: Masked) -> str:
    whole = net.do("Floor", net.do("Mul", left(net), net.number(-4.5)))
    return sum_unless(net, net.do("Less", whole, net.number(-4.8)))


def rounded_to_even(net: Masked) -> str:
    whole = net.do("Round", net.do("Mul", left(net), net.number(4.7)))
    return sum_unless(net, net.do("Greater", whole, net.number(4.8)))


def exponential_of_0(net: Masked) -> str:
    """The exponential of one feature is 0, and the exponential of another feature is large."""
    ends = net.constant(np.linspace(-110, 70, WIDTH, dtype=np.float32))
    small = net.do("Exp", net.do("Add", net.columns("x"), ends))
    return sum_unless(net, net.do("LessOrEqual", small, net.number(0)))


def double_that_becomes_0(net: Masked) -> str:
    """The smallest feature is above 0 only in double precision."""
    features = net.constant(np.geomspace(1e-50, 1e7, WIDTH))
    wide = net.do("Add", net.do("Cast", net.columns("x"), to=TensorProto.DOUBLE), features)
    small = net.do("Cast", wide, to=TensorProto.FLOAT)
    return sum_unless(net, net.do("LessOrEqual", small, net.number(0)))


REFUSED: dict[str, Build] = {
    build.__name__: build
    for build in (
        rounded_up, rounded_down, rounded_to_even, exponential_of_0, double_that_becomes_0,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_misleads_the_bounds_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="sums over positions"):
        proven(pair_model(REFUSED[name]))


def test_a_rounded_mask_is_proven() -> None:
    """The proof's bounds contain the rounded numbers, and a rounded 0 is still 0."""
    made = pair_model(lambda net: sum_unless(net, net.do("Greater", rounded(net), net.number(6))))
    assert is_true(made, proven(made))


def rounded(net: Masked) -> str:
    return net.do("Ceil", net.do("Mul", left(net), net.number(4.5)))
