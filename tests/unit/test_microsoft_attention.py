"""Tests attention and embeddings as onnxruntime fuses them, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.masked_nets import theirs
from tests.one_node import computed
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model

MICROSOFT = "com.microsoft"
Arrays = dict[str, np.ndarray]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def whole(*values: object) -> np.ndarray:
    return np.array(values, np.int32)


def one(
    op: str,
    inputs: Sequence[str],
    feed: Arrays,
    weights: Mapping[str, np.ndarray] | None = None,
    outputs: Sequence[str] = ("y",),
    **attributes: object,
) -> onnx.ModelProto:
    """A model of one operator; its `inputs` are in `feed`, in `weights`, or left out."""
    graph = helper.make_graph(
        [helper.make_node(op, inputs, outputs, "the_node", domain=MICROSOFT, **attributes)],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feed.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(model: onnx.ModelProto, feed: Arrays) -> None:
    for ours, wanted in zip(computed(model, feed), theirs(model, feed), strict=True):
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(ours, wanted, 1e-4, 1e-4)


X = numbers(2, 4, 8)
PROJECTION = {"w": numbers(8, 24), "b": numbers(24)}
MASKS = {
    "none": None,
    "by position": whole([0, 1, 1, 0], [1, 0, 1, 1]),
    "nothing counts": whole([0, 0, 0, 0], [1, 0, 1, 1]),
    "ends": whole(0, 2),
    "ends and beginnings": whole(3, 4, 1, 0),
    "by query": np.random.default_rng(0).integers(0, 2, (2, 4, 4)).astype(np.int32),
}


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_attention(mask: str, unidirectional: int) -> None:
    given = MASKS[mask]
    feed = {"x": X, **({} if given is None else {"mask": given})}
    inputs = ["x", "w", "b", "" if given is None else "mask"]
    attributes = {"num_heads": 2, "unidirectional": unidirectional}
    check(one("Attention", inputs, feed, PROJECTION, **attributes), feed)
    if given is not None:
        attributes["mask_filter_value"] = -3.0
        check(one("Attention", inputs, feed, PROJECTION, **attributes), feed)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_a_past(unidirectional: int) -> None:
    feed = {"x": X, "past": numbers(2, 2, 2, 3, 4), "mask": np.eye(2, 7, dtype=np.int32)}
    inputs, outputs = ["x", "w", "b", "mask", "past"], ["y", "present"]
    attributes = {"num_heads": 2, "unidirectional": unidirectional}
    check(one("Attention", inputs, feed, PROJECTION, outputs, **attributes), feed)


def test_attention_with_a_bias_of_scores_and_other_widths() -> None:
    feed = {"x": X, "s": numbers(1, 2, 4, 4)}
    weights = {"w": numbers(8, 28), "b": numbers(28)}
    attributes = {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12], "scale": 0.3}
    check(one("Attention", ["x", "w", "b", "", "", "s"], feed, weights, **attributes), feed)


KEYS = {"q": X, "k": numbers(2, 5, 8), "v": numbers(2, 5, 12)}


@pytest.mark.parametrize(
    "mask", [None, whole(3, 5), np.eye(2, 5, dtype=np.int32), np.ones((2, 4, 5), np.int32)]
)
def test_attention_of_queries_and_keys(mask: np.ndarray | None) -> None:
    feed = {**KEYS, "s": numbers(2, 1, 4, 5), **({} if mask is None else {"m": mask})}
    inputs = ["q", "k", "v", "b", "" if mask is None else "m", "s"]
    weights = {"b": numbers(28)}
    check(one("MultiHeadAttention", inputs, feed, weights, num_heads=2), feed)


def test_attention_to_keys_of_separate_heads() -> None:
    feed = {"q": X, "k": numbers(2, 2, 5, 4), "v": numbers(2, 2, 5, 4) + 1}
    weights = {"b": numbers(24)}
    check(one("MultiHeadAttention", ["q", "k", "v", "b"], feed, weights, num_heads=2), feed)


@pytest.mark.parametrize("weights", [{}, {"b": numbers(24)}], ids=len)
@pytest.mark.parametrize("number", [2, 3])
def test_packed_queries_and_keys(number: int, weights: Arrays) -> None:
    """onnxruntime supports packed queries and keys only on GPUs, so it gets unpacked ones here."""
    feed = {"q": X, "k": numbers(2, 4, 8), "v": numbers(2, 4, 8) + 1}
    last = [*weights]
    model = one("MultiHeadAttention", [*"qkv", *last], feed, weights, num_heads=2)
    (wanted,) = theirs(model, feed)
    by_heads = [array.reshape(2, 4, 2, 4) for array in feed.values()]
    packed = {"qkv"[-number]: np.stack(by_heads[-number:], 3)}
    packed = packed if number == 3 else {"q": X, **packed}
    names = (["q", "", ""] if number == 3 else ["q", "k", ""]) + last
    (ours,) = computed(one("MultiHeadAttention", names, packed, weights, num_heads=2), packed)
    np.testing.assert_allclose(ours, wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_of_queries_with_a_past(unidirectional: int) -> None:
    past = {"pk": numbers(2, 2, 3, 4), "pv": numbers(2, 2, 3, 4) + 1}
    feed = {"q": X, "k": X + 1, "v": X - 1, **past}
    inputs, outputs = ["q", "k", "v", "", "", "", "pk", "pv"], ["y", "keys", "values"]
    attributes = {"num_heads": 2, "unidirectional": unidirectional}
    check(one("MultiHeadAttention", inputs, feed, outputs=outputs, **attributes), feed)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [np.array([2]), np.array([[5, 0, 9], [1, 1, 3]])])
@pytest.mark.parametrize("shape", [(2, 3, 32), (2, 4, 3, 8)])
@pytest.mark.parametrize("half", [2, 4])
def test_rotary_embeddings(
    half: int, shape: tuple[int, ...], positions: np.ndarray, interleaved: int
) -> None:
    feed = {"x": numbers(*shape), "p": positions}
    weights = {"cos": numbers(10, half), "sin": numbers(10, half) + 1}
    attributes = {"interleaved": interleaved}
    if half == 2:
        attributes |= {"num_heads": 4, "rotary_embedding_dim": 4}
    check(one("RotaryEmbedding", ["x", "p", "cos", "sin"], feed, weights, **attributes), feed)


@pytest.mark.parametrize("extra", [[], ["segments"], ["mask"], ["positions"]])
def test_embeddings(extra: list[str]) -> None:
    others = {
        "segments": whole([0, 1, 1, 0], [1, 1, 0, 0]),
        "mask": whole([1, 1, 1, 0], [1, 0, 1, 3]),
        "positions": whole([3, 2, 1, 0], [5, 5, 5, 5]),
    }
    feed = {"words": whole([1, 9, 3, 3], [0, 4, 2, 1]), **{name: others[name] for name in extra}}
    tables = {"of_words": numbers(10, 8), "of_positions": numbers(6, 8)}
    weights = {**tables, "scale": numbers(8), "shift": numbers(8) + 1}
    has_segments = "segments" in extra
    if has_segments:
        weights["of_segments"] = numbers(2, 8)
    inputs = [
        *("words", "segments" if has_segments else "", "of_words", "of_positions"),
        *("of_segments" if has_segments else "", "scale", "shift"),
        *("mask" if "mask" in extra else "", "positions" if "positions" in extra else ""),
    ]
    outputs = ["y", "lengths", "sums"]
    check(one("EmbedLayerNormalization", inputs, feed, weights, outputs, epsilon=1e-3), feed)


def test_what_is_refused() -> None:
    def refused(message: str, model: onnx.ModelProto) -> None:
        with pytest.raises(UnsupportedModelError, match=message):
            load_model(model)

    causal = {"num_heads": 2, "unidirectional": 1}
    refused("keys after the last query", one("MultiHeadAttention", [*"qkv"], KEYS, **causal))
    alone = {"q": X, "k": numbers(2, 5, 8)}
    refused("keys without values", one("MultiHeadAttention", ["q", "k"], alone, num_heads=2))
    masked = {"x": X, "m": whole([1], [1])}
    refused(
        r"mask of shape \(2, 1\)",
        one("Attention", ["x", "w", "b", "m"], masked, PROJECTION, num_heads=2),
    )
    rotated = {"x": numbers(2, 3, 8), "p": np.array([2])}
    tables = {"cos": numbers(10, 4), "sin": numbers(10, 4)}
    refused("a scale", one("RotaryEmbedding", ["x", "p", "cos", "sin"], rotated, tables, scale=2.0))
