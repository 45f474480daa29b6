"""Tests onnxruntime's operators for linear attention against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.masked_nets import theirs
from tests.one_node import computed, one_node
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model

MICROSOFT = "com.microsoft"
RNG = np.random.default_rng(7)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def check(
    op: str, inputs: list[np.ndarray | None], constants: tuple[int, ...], **named: Any
) -> None:
    """Compare both results of a node with onnxruntime."""
    while inputs[-1] is None:
        inputs.pop()
    model, feed = one_node(op, inputs, constants, outputs=2, domain=MICROSOFT, **named)
    for ours, wanted in zip(computed(model, feed), theirs(model, feed), strict=True):
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(ours, wanted, 1e-4, 1e-5)


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("has_past", [False, True])
def test_causal_convolutions(length: int, has_past: bool) -> None:
    past = numbers(2, 6, 3) if has_past else None
    given = [numbers(2, 6, length), numbers(6, 1, 4), numbers(6), past]
    check("CausalConvWithState", given, (1, 2))
    check("CausalConvWithState", [*given[:2], None, past], (1,), activation="silu")


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize(("length", "queries", "heads"), [(1, 2, 2), (4, 2, 2)])
def test_linear_attention(rule: str, length: int, queries: int, heads: int) -> None:
    row, size, width = (2, length), 4, 3
    decay = -np.abs(numbers(*row, heads)) if "gated" in rule else None
    rate = np.abs(numbers(*row, heads)) / 3 if "delta" in rule else None
    given = [numbers(*row, queries * size), numbers(*row, heads * size) / 2]
    given += [numbers(*row, heads * width), numbers(2, heads, size, width), decay, rate]
    named = {"q_num_heads": queries, "kv_num_heads": heads, "update_rule": rule}
    check("LinearAttention", [*given], (), **named)
    given[3] = None
    check("LinearAttention", [*given], (), **named, scale=0.3)


def test_a_decay_of_each_channel_and_one_rate() -> None:
    row = (1, 3)
    given = [numbers(*row, 8), numbers(*row, 8) / 2, numbers(*row, 6), numbers(1, 2, 4, 3)]
    given += [-np.abs(numbers(*row, 8)), np.abs(numbers(*row, 1)) / 3]
    check("LinearAttention", given, (), q_num_heads=2, kv_num_heads=2)


def test_several_states_for_a_head_of_queries() -> None:
    row = (2, 3)
    given = [numbers(*row, 8), numbers(*row, 8) / 2, numbers(*row, 12), numbers(2, 4, 4, 3)]
    given += [-np.abs(numbers(*row, 4)), np.abs(numbers(*row, 4)) / 3]
    check("LinearAttention", given, (), q_num_heads=2, kv_num_heads=4)


@pytest.mark.parametrize(("op", "rank"), [("CausalConvWithState", 3), ("LinearAttention", 3)])
def test_a_window_of_states_is_refused(op: str, rank: int) -> None:
    named = {"q_num_heads": 1, "kv_num_heads": 1} if op == "LinearAttention" else {}
    inputs = [numbers(1, 2, 4), numbers(2, 1, 3) if not named else numbers(1, 2, 4)]
    inputs += [numbers(1, 2, 4)] if named else []
    model, _ = one_node(op, inputs, outputs=2, domain=MICROSOFT, state_window=2, **named)
    with pytest.raises(UnsupportedModelError, match=r"the_node.*window of states"):
        load_model(model)


def of_one(op: str, inputs: list[np.ndarray], constants: tuple[int, ...], **named: Any) -> None:
    """Compare the first result of a node with onnxruntime."""
    model, feed = one_node(op, inputs, constants, domain=MICROSOFT, **named)
    (ours,), (wanted,) = computed(model, feed), theirs(model, feed)
    assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(ours, wanted, 1e-4, 1e-5)


def test_gates() -> None:
    of_one("GatedAdd", [numbers(2, 3, 4), numbers(2, 3, 4), numbers(2, 3, 1)], ())
    of_one("GatedRMSNorm", [numbers(2, 3, 8), numbers(4), numbers(2, 3, 8)], (1,), epsilon=1e-2)
    given = [numbers(2, 3, 4), numbers(4), -np.abs(numbers(4)), numbers(2, 3, 4)]
    check("LinearAttentionGate", given, (1, 2))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 16), (2, 2, 3, 8)])
def test_rotations_by_rows_and_columns(
    shape: tuple[int, ...], layout: int, interleaved: int
) -> None:
    places = RNG.integers(0, 9, (3, 2, 3))
    given = [numbers(*shape), places, numbers(10, 4), numbers(10, 4)]
    named = {"mrope_layout": layout, "mrope_section": [2, 1, 1], "interleaved": interleaved}
    of_one("MRotaryEmbedding", given, (2, 3), num_heads=2, **named)
