"""Tests operators of classical machine learning against onnxruntime.

All cases of a test are in one model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.masked_nets import theirs
from tests.one_node import computed
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model

DOMAIN = "ai.onnx.ml"
RNG = np.random.default_rng(3)
X = np.vstack([RNG.standard_normal((9, 4)), np.zeros((1, 4)), np.full((1, 4), -7)]).astype(
    "float32"
)
X[2, 1] = np.nan


def model_of(nodes: list[tuple[str, dict[str, Any]]], x: np.ndarray, outputs: int = 1) -> Any:
    """A model of nodes beside each other, all of which read `x`."""
    made, results = [], []
    for i, (op, attributes) in enumerate(nodes):
        names = [f"y{i}_{k}" for k in range(outputs)]
        results += [onnx.ValueInfoProto(name=name) for name in names]
        made.append(helper.make_node(op, ["x"], names, f"{op}_{i}", domain=DOMAIN, **attributes))
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        made, "g", [helper.make_tensor_value_info("x", kind, x.shape)], results
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(nodes: list[tuple[str, dict[str, Any]]], x: np.ndarray, outputs: int = 1) -> None:
    model = model_of(nodes, x, outputs)
    feed = {"x": x}
    for ours, wanted in zip(computed(model, feed), theirs(model, feed), strict=True):
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(ours, wanted, 1e-5, 1e-6)


def test_scalers_and_encoders_of_floats() -> None:
    check(
        [
            ("Scaler", {"offset": [1.0, 0.0, -2.0, 0.5], "scale": [2.0, 1.0, 0.1, -1.0]}),
            ("Scaler", {"offset": [1.0], "scale": [0.5]}),
            *(("Normalizer", {"norm": norm}) for norm in ("MAX", "L1", "L2")),
            ("Imputer", {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0]}),
            ("Imputer", {"imputed_value_floats": [5.0], "replaced_value_float": np.nan}),
            ("Imputer", {"imputed_value_floats": [9.0], "replaced_value_float": 0.0}),
            ("LinearRegressor", {"coefficients": [1.0, -2.0, 0.5, 3.0], "intercepts": [0.7]}),
        ],
        X,
    )


def test_encoders_of_integers() -> None:
    check(
        [
            ("LabelEncoder", {"keys_int64s": [1, 5, 2], "values_int64s": [10, 50, 20]}),
            ("LabelEncoder", {"keys_int64s": [1, 5], "values_floats": [0.1, 0.5]}),
            ("OneHotEncoder", {"cats_int64s": [5, 1, 2], "zeros": 1}),
            ("FeatureVectorizer", {"inputdimensions": [3]}),
        ],
        np.array([[1, 5, 0], [2, 2, 7]]),
    )


def tree(**more: Any) -> dict[str, Any]:
    """Two trees of 5 nodes and 3 nodes, without leaves' weights."""
    return {
        "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
        "nodes_featureids": [0, 0, 1, 0, 0, 3, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "BRANCH_LT", "LEAF", "LEAF", "BRANCH_GT"]
        + ["LEAF"] * 2,
        "nodes_values": [0.0, 0.0, 0.5, 0.0, 0.0, -0.2, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 3, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [2, 0, 4, 0, 0, 2, 0, 0],
        "nodes_missing_value_tracks_true": [0, 0, 1, 0, 0, 0, 0, 0],
        **more,
    }


LEAVES = {"treeids": [0, 0, 0, 1, 1], "nodeids": [1, 3, 4, 1, 2]}


def leaves(kind: str, ids: list[int], weights: list[float]) -> dict[str, Any]:
    """The weights of the leaves of `tree`."""
    named = {**LEAVES, "ids": ids, "weights": weights}
    return {f"{kind}_{name}": value for name, value in named.items()}


def full_leaves(weights: list[list[float]]) -> dict[str, Any]:
    """The weights of the leaves of `tree`, one for each class."""
    named: dict[str, list[Any]] = {"treeids": [], "nodeids": [], "ids": [], "weights": []}
    for tree_, node, row in zip(LEAVES["treeids"], LEAVES["nodeids"], weights, strict=True):
        for index, weight in enumerate(row):
            for name, value in zip(named, (tree_, node, index, float(weight)), strict=True):
                named[name].append(value)
    return {f"class_{name}": value for name, value in named.items()}


def test_regression_by_trees() -> None:
    weights = leaves("target", [0, 1, 0, 1, 0], [1.0, -2.0, 0.25, 3.0, 0.5])
    one = leaves("target", [0] * 5, [1.0, -2.0, 0.25, 3.0, 0.5])
    check(
        [
            ("TreeEnsembleRegressor", tree(n_targets=2, **weights)),
            ("TreeEnsembleRegressor", tree(n_targets=1, base_values=[1.5], **one)),
            ("TreeEnsembleRegressor", tree(n_targets=2, aggregate_function="AVERAGE", **weights)),
        ],
        X,
    )


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_classification_by_trees(transform: str) -> None:
    named = {"post_transform": transform}
    three = full_leaves([[0.5, -0.5, 0], [0, 0.5, 0.25], [-1, 0, 0], [0.5, 0, 0], [0, 0, 0.75]])
    two = full_leaves([[0.5, -0.5], [0, 0.25], [0.5, 0], [-0.5, 0.5], [0.25, 0.25]])
    mixed = leaves("class", [0] * 5, [0.5, -0.5, 0.25, 1.0, -1.0])
    positive = leaves("class", [0] * 5, [0.5, 0.125, 0.25, 0.125, 0.5])
    check(
        [
            ("TreeEnsembleClassifier", tree(classlabels_int64s=[7, 8, 9], **three, **named)),
            ("TreeEnsembleClassifier", tree(classlabels_int64s=[0, 1], **two, **named)),
            ("TreeEnsembleClassifier", tree(classlabels_int64s=[0, 1], **mixed, **named)),
            ("TreeEnsembleClassifier", tree(classlabels_int64s=[3, 4], **positive, **named)),
        ],
        X,
        outputs=2,
    )


def test_linear_classification() -> None:
    rows = [1.0, -2.0, 0.5, 3.0, 0.0, 1.0, -1.0, 0.5, 2.0, 0.1, 0.2, -0.3]
    x = np.nan_to_num(X)
    nodes = []
    for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
        named: dict[str, Any] = {"post_transform": transform, "classlabels_ints": [4, 5, 6]}
        nodes.append(("LinearClassifier", {"coefficients": rows, "intercepts": [0.1] * 3, **named}))
        two = {**named, "classlabels_ints": [0, 1], "intercepts": [0.1, -0.2]}
        nodes.append(("LinearClassifier", {"coefficients": rows[:8], **two}))
    check(nodes, x, outputs=2)


@pytest.mark.parametrize("kernel", ["LINEAR", "RBF", "POLY", "SIGMOID"])
def test_regression_by_support_vectors(kernel: str) -> None:
    named = {
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.1, 3.0],
        "n_supports": 3,
        "support_vectors": RNG.standard_normal(12).tolist(),
        "coefficients": [1.0, -0.5, 0.25],
        "rho": [0.2],
    }
    check([("SVMRegressor", named), ("SVMRegressor", named | {"one_class": 1})], X[3:])


def test_trees_that_go_in_a_circle_are_refused() -> None:
    weights = leaves("target", [0] * 5, [1.0] * 5)
    damaged = tree(n_targets=1, **weights)
    damaged["nodes_truenodeids"] = [2, 0, 2, 0, 0, 1, 0, 0]
    damaged["nodes_falsenodeids"] = [2, 0, 0, 0, 0, 2, 0, 0]
    with pytest.raises(UnsupportedModelError, match=r"`TreeEnsembleRegressor_0`.*damaged"):
        load_model(model_of([("TreeEnsembleRegressor", damaged)], X))


def test_leaves_without_a_number_for_each_class_are_refused() -> None:
    weights = leaves("class", [0, 1, 2, 1, 2], [0.5] * 5)
    named = tree(classlabels_int64s=[0, 1, 2], **weights)
    with pytest.raises(UnsupportedModelError, match="give no number for an output"):
        load_model(model_of([("TreeEnsembleClassifier", named)], X, outputs=2))


def test_labels_that_are_strings_are_refused() -> None:
    weights = leaves("class", [0, 1, 0, 1, 0], [1.0] * 5)
    named = tree(classlabels_strings=["no", "yes"], **weights)
    with pytest.raises(UnsupportedModelError, match="labels are strings"):
        load_model(model_of([("TreeEnsembleClassifier", named)], X, outputs=2))
