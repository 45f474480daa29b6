"""Tests the proof that padding of two ranges, batch and length, changes no results. The models on
batches of sequences were built to mislead the proof."""

from __future__ import annotations

import numpy as np
import pytest

from tests.masked_nets import LOWEST, WIDTH, Build, Masked, encoder
from tests.pair_nets import is_true, pair_model, proven, shared_mask_model
from tests.random_masked import RandomPair
from tvm_interop.artifact.manifest import RowMask, RowSizes, SecondRange
from tvm_interop.errors import InputError

SIZES, LENGTHS = (1, 1, 3, 3), (1, 7, 1, 7)
BATCH_FIRST = RowSizes("batch", SIZES, (RowMask("mask", "any"),), SecondRange("seq", LENGTHS))


def dims(net: Masked) -> list[str]:
    shape = net.do("Shape", "x")
    return [net.do("Gather", shape, net.ints(axis)) for axis in range(3)]


def shaped(net: Masked, x: str, *parts: str) -> str:
    return net.do("Reshape", x, net.do("Concat", *parts, axis=0))


def merged_and_back(net: Masked) -> str:
    flat = net.do("Reshape", "x", net.ints(-1, WIDTH))
    made = net.do("MatMul", flat, net.weight(WIDTH, WIDTH))
    return net.attention(shaped(net, made, *dims(net)))


def position_first(net: Masked) -> str:
    return net.do("Transpose", net.attention(), perm=[1, 0, 2])


def computed_position_first(net: Masked) -> str:
    turned = net.do("Transpose", "x", perm=[1, 0, 2])
    made = net.do("MatMul", turned, net.weight(WIDTH, WIDTH))
    return net.attention(net.do("Transpose", made, perm=[1, 0, 2]))


def pooled(net: Masked) -> str:
    total = net.do("ReduceSum", net.columns("x"), net.ints(1), keepdims=0)
    count = net.do("ReduceSum", net.float_mask(), net.ints(1), keepdims=1)
    return net.do("Div", total, net.do("Clip", count, net.number(1)))


def expanded_mask(net: Masked) -> str:
    batch, length, _ = dims(net)
    wide = net.do("Unsqueeze", "mask", net.ints(1, 2))
    wide = net.do("Expand", wide, net.do("Concat", batch, net.ints(1), length, length, axis=0))
    keep = net.do("Cast", net.do("Squeeze", wide, net.ints(1)), to=9)
    return net.mixed(net.do("Where", keep, net.scores(), net.number(LOWEST)))


def numbers_that_cancel(net: Masked) -> str:
    batch, length, _ = dims(net)
    one = net.do("Div", net.do("Mul", batch, length), net.do("Mul", length, batch))
    return net.do("Mul", net.attention(), net.do("Cast", one, to=1))


PROVEN: dict[str, Build] = {
    build.__name__: build
    for build in (
        merged_and_back, position_first, computed_position_first, pooled, expanded_mask,
        numbers_that_cancel,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", PROVEN)
def test_batches_of_masked_sequences_are_proven(name: str) -> None:
    made = pair_model(PROVEN[name])
    rows = proven(made)
    assert (rows.dimension, rows.second) == ("batch", SecondRange("seq", LENGTHS))
    assert rows.where_one.keys() == {"mask"}
    assert is_true(made, rows)


def test_causal_attention_needs_no_mask() -> None:
    made = pair_model(lambda net: net.mixed(net.do("Add", net.scores(), net.later())))
    rows = proven(made)
    assert rows == RowSizes("batch", SIZES, second=SecondRange("seq", LENGTHS))
    assert is_true(made, rows)


def test_each_row_may_begin_with_0_but_not_with_a_causal_mask_too() -> None:
    """With a causal mask, the first position sees only itself. If the mask of padding is 0 at the
    first position, this position has nothing left to attend to."""
    attention = pair_model(lambda net: net.attention())
    rows = proven(attention)
    assert rows == BATCH_FIRST
    assert is_true(attention, rows, first=0)

    def both(net: Masked) -> str:
        scores = net.do("Add", net.do("Add", net.scores(), net.later()), net.left_out())
        return net.mixed(scores)

    causal = pair_model(both)
    assert proven(causal).where_one == {"mask": "first"}
    assert is_true(causal, proven(causal))


def test_a_mask_that_all_rows_share() -> None:
    made = shared_mask_model(lambda net: net.attention())
    rows = proven(made)
    assert rows == BATCH_FIRST
    assert is_true(made, rows)


def test_steps_of_a_dense_network_are_rows_too() -> None:
    made = pair_model(lambda net: net.do("Relu", net.do("MatMul", "x", net.weight(WIDTH, WIDTH))))
    rows = proven(made)
    assert rows == RowSizes("batch", SIZES, second=SecondRange("seq", LENGTHS))
    assert is_true(made, rows)


def test_other_inputs_may_have_one_of_the_dimensions() -> None:
    def conditioned(net: Masked) -> str:
        each = net.do("Unsqueeze", "of_batch", net.ints(1))
        return net.do("Add", net.attention(net.do("Add", "x", each)), "of_seq")

    made = pair_model(conditioned, of_batch=["batch", WIDTH], of_seq=["seq", WIDTH])
    assert is_true(made, proven(made))


@pytest.mark.parametrize("ends", [(1, 6), (2, 6)])
def test_an_encoder_whose_ranges_are_equal(ends: tuple[int, int]) -> None:
    rows = proven(encoder("batch", layers=1), {"batch": ends, "seq": ends})
    assert (rows.dimension, rows.where_one) == ("batch", {"attention_mask": "any"})


def swapped(net: Masked) -> str:
    batch, length, width = dims(net)
    turned = shaped(net, "x", length, batch, width)
    most = net.do("ReduceMax", turned, axes=[1], keepdims=1)
    return shaped(net, net.do("Mul", turned, most), batch, length, width)


def mask_of_first_row(net: Masked) -> str:
    mask = net.do("Gather", "mask", net.ints(0), axis=0)
    return net.mixed(net.do("Add", net.scores(), net.left_out(mask=mask)))


def mask_of_last_row(net: Masked) -> str:
    mask = net.do("Gather", "mask", net.ints(-1), axis=0)
    return net.mixed(net.do("Add", net.scores(), net.left_out(mask=mask)))


def mask_of_any_row(net: Masked) -> str:
    mask = net.do("ReduceMax", "mask", axes=[0], keepdims=1)
    return net.mixed(net.do("Add", net.scores(), net.left_out(mask=mask)))


def attention_over_all_rows(net: Masked) -> str:
    x, mask = (
        net.do("Reshape", "x", net.ints(1, -1, WIDTH)),
        net.do("Reshape", "mask", net.ints(1, -1)),
    )
    mixed = net.mixed(net.do("Add", net.scores(x), net.left_out(mask=mask)), x)
    return shaped(net, mixed, *dims(net))


def pairs_of_rows(net: Masked) -> str:
    total = net.do("ReduceSum", net.columns("x"), net.ints(1), keepdims=0)
    return net.do("MatMul", total, net.do("Transpose", total, perm=[1, 0]))


def rows_in_reverse(net: Masked) -> str:
    ends = net.ints(-1), net.ints(-99), net.ints(0), net.ints(-1)
    return net.do("Slice", net.attention(), *ends)


def row_by_number(net: Masked) -> str:
    chosen = net.do("ReduceSum", "mask", net.ints(1), keepdims=0)
    return net.do("Gather", "x", net.do("Mod", chosen, net.number(2, np.int64)), axis=0)


def divided_by(net: Masked, number: str) -> str:
    return net.do("Div", net.attention(), net.do("Cast", number, to=1))


def divided_by_batch(net: Masked) -> str:
    return divided_by(net, dims(net)[0])


def divided_by_both(net: Masked) -> str:
    return divided_by(net, net.do("Mul", *dims(net)[:2]))


def divided_by_the_smaller(net: Masked) -> str:
    return divided_by(net, net.do("Min", *dims(net)[:2]))


def divided_by_a_quotient(net: Masked) -> str:
    batch, length, _ = dims(net)
    return divided_by(net, net.do("Div", net.do("Mul", batch, length), batch))


def no_mask(net: Masked) -> str:
    return net.mixed(net.scores())


def last_position(net: Masked) -> str:
    return net.do("Gather", net.attention(), net.number(-1, np.int64), axis=1)


REFUSED: dict[str, tuple[Build, str]] = {
    build.__name__: (build, message)
    for build, message in (
        (swapped, "for `batch`, operator `.*ReduceMax` combines rows"),
        (mask_of_first_row, "for `batch`, operator `.*Gather` reads another row"),
        (mask_of_last_row, "for `batch`, constant"),
        (mask_of_any_row, "for `batch`, operator `.*ReduceMax` combines rows"),
        (attention_over_all_rows, "for `batch`, operator `.*MatMul`"),
        (pairs_of_rows, "for `batch`, operator `.*MatMul`"),
        (rows_in_reverse, "for `batch`, operator `.*Slice` reads another row"),
        (row_by_number, "for `batch`, operator `.*Mod` computes something else"),
        (divided_by_batch, "for `batch`, constant"),
        (divided_by_both, "for `batch`, constant"),
        (divided_by_the_smaller, "for `batch`, constant"),
        (divided_by_a_quotient, "constant `.*` has different values for different lengths"),
        (no_mask, "operator `.*Softmax` takes the maximum over positions"),
        (last_position, "constant `.*` has different values for different lengths"),
    )
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_filled_rows_or_positions_may_change_is_refused(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(InputError, match=rf"ranges of `batch` and `seq`.*{message}"):
        proven(pair_model(build))


@pytest.mark.parametrize("begin", range(0, 20, 10))
def test_what_is_proven_of_random_graphs_is_true(begin: int) -> None:
    count = 0
    for seed in range(begin, begin + 10):
        made = RandomPair(seed).model()
        try:
            rows = proven(made)
        except InputError:
            continue
        count += 1
        assert is_true(made, rows), f"seed {seed}"
    assert 1 <= count < 10
