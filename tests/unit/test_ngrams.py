"""Tests `TfIdfVectorizer`, of integers and of strings, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.masked_nets import theirs
from tests.one_node import computed, one_node
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model

NGRAMS: dict[str, Any] = {
    "pool_int64s": [2, 3, 5, 5, 6, 7, 8, 6, 7, 5, 5, 5, 6, 7, 7, 8, 6],
    "ngram_counts": [0, 3, 11],
    "ngram_indexes": [0, 1, 4, 3, 2, 7, 5, 6, 8],
}
"""Three single numbers, four pairs and two triples."""
X = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8], [5, 5, 6, 7, 7, 8], [2, 9, 2, 9, 5, 5]])


@pytest.mark.parametrize(
    ("mode", "lengths", "skips", "x"),
    [
        ("TF", (1, 1), 0, X),
        ("TF", (1, 3), 1, X.astype("int32")),
        ("TF", (2, 2), 5, X[1]),
        ("IDF", (1, 2), 1, X),
        ("TFIDF", (2, 3), 1, X),
        ("TFIDF", (3, 3), 5, X[:, :2].copy()),
    ],
)
def test_integers(mode: str, lengths: tuple[int, int], skips: int, x: np.ndarray) -> None:
    named = {**NGRAMS, "mode": mode, "max_skip_count": skips}
    named |= {"min_gram_length": lengths[0], "max_gram_length": lengths[1]}
    if mode != "TF":
        named["weights"] = [0.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    model, feeds = one_node("TfIdfVectorizer", [x], opset=9, **named)
    (got,), (wanted,) = computed(model, feeds), theirs(model, feeds)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(got, wanted)


def test_strings() -> None:
    x = np.array([["a", "b", "c"], ["b", "a", "b"], ["?", "", "a"]], object)
    node = helper.make_node(
        "TfIdfVectorizer",
        ["x"],
        ["y"],
        mode="TF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=0,
        pool_strings=["a", "c", "a", "b", "b", "a"],
        ngram_counts=[0, 2],
        ngram_indexes=[0, 1, 2, 3],
    )
    ports = [
        helper.make_tensor_value_info("x", onnx.TensorProto.STRING, x.shape),
        helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3, 4)),
    ]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    (got,), (wanted,) = computed(model, {"x": x}), theirs(model, {"x": x})
    np.testing.assert_array_equal(got, wanted)


def test_two_ngrams_with_one_place_are_refused() -> None:
    named = {**NGRAMS, "ngram_indexes": [0] * 9, "mode": "TF", "max_skip_count": 0}
    model, _ = one_node("TfIdfVectorizer", [X], min_gram_length=1, max_gram_length=3, **named)
    with pytest.raises(UnsupportedModelError, match=r"`the_node` .* counted at the same place"):
        load_model(model)
