"""Tests ensembles of decision trees against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.classical import X, check, model_of
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model


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
            *(
                ("TreeEnsembleRegressor", tree(n_targets=2, aggregate_function=kind, **weights))
                for kind in ("AVERAGE", "MIN", "MAX")
            ),
            *(
                ("TreeEnsembleRegressor", tree(n_targets=1, aggregate_function=kind, **one))
                for kind in ("AVERAGE", "MIN", "MAX")
            ),
        ],
        X,
    )


def test_the_first_number_of_a_leaf_counts_for_a_single_target() -> None:
    """scikit-learn exports each leaf once for each class, also if there is a single target."""
    named = {key: value * 2 for key, value in leaves("target", [0] * 5, [1.0, 2, 3, 4, 5]).items()}
    check([("TreeEnsembleRegressor", tree(n_targets=1, **named))], X)


def doubles(named: dict[str, Any]) -> dict[str, Any]:
    """The attributes with thresholds, weights and base values of 64 bits."""
    given = dict(named)
    for name in ("nodes_values", "target_weights", "class_weights", "base_values"):
        if name in given:
            array = np.asarray(given.pop(name)) + 1e-9
            given[f"{name}_as_tensor"] = numpy_helper.from_array(array)
    return given


def test_trees_with_thresholds_of_doubles() -> None:
    """The inputs differ from the thresholds so little that they would be equal in 32 bits."""
    x = np.tile(np.array([0.0, 0.5, 0.0, -0.2]), (4, 1)) + 1e-9 * np.array([[0], [0.5], [1], [2]])
    weights = leaves("target", [0] * 5, [1.0, -2.0, 0.25, 3.0, 0.5])
    regression = tree(n_targets=1, base_values=[0.5], **weights)
    check([("TreeEnsembleRegressor", doubles(regression))], x)
    scores = leaves("class", [0] * 5, [0.5, -0.5, 0.25, 1.0, -1.0])
    named = tree(classlabels_int64s=[0, 1], base_values=[0.25], **scores)
    check([("TreeEnsembleClassifier", doubles(named))], x, outputs=2)


def ensemble(dtype: str, **more: Any) -> dict[str, Any]:
    """Three trees whose branches have all modes. The last tree has one leaf."""

    def tensor(values: list[float], kind: str = dtype) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, kind))

    return {
        "tree_roots": [0, 3, 7],
        "nodes_featureids": [0, 1, 2, 3, 0, 1, 2, 3],
        "nodes_modes": tensor([0, 1, 6, 2, 3, 4, 5, 6], "uint8"),
        "nodes_splits": tensor([0.0, 0.5, 0.0, -0.25, 1.0, 0.0, 2.0, 0.0]),
        "nodes_truenodeids": [1, 0, 2, 4, 6, 4, 6, 9],
        "nodes_trueleafs": [0, 1, 1, 0, 0, 1, 1, 1],
        "nodes_falsenodeids": [2, 1, 3, 5, 8, 5, 7, 9],
        "nodes_falseleafs": [0, 1, 1, 0, 1, 1, 1, 1],
        "nodes_missing_value_tracks_true": [0, 1, 1, 0, 1, 0, 0, 0],
        "membership_values": tensor([1.0, -1.0, 0.0, np.nan, 2.0, np.nan]),
        "leaf_targetids": [0, 1] * 5,
        "leaf_weights": tensor([1.0, -2.0, 0.25, 3.0, 0.5, -1.0, 0.125, 4.0, -0.5, 0.75]),
        "n_targets": 2,
        **more,
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ensembles_with_all_modes(dtype: str) -> None:
    x = np.round(2 * np.random.default_rng(0).standard_normal((40, 4))).astype(dtype) / 2
    x[:, 2:] = np.round(x[:, 2:])  # onnxruntime rounds numbers before it looks for them in a set.
    x[::7, 2] = x[1::9, 0] = x[2::9, 1] = np.nan
    kinds = [{"aggregate_function": kind} for kind in range(4)]
    single = {"n_targets": 1, "leaf_targetids": [0] * 10}
    cases = [*kinds, *(single | kind for kind in kinds)]
    if dtype == "float32":  # onnxruntime transforms doubles in 32 bits.
        cases.append({"post_transform": 3})
    nodes = [("TreeEnsemble", ensemble(dtype, **case)) for case in cases]
    check(nodes, x, version=5, tolerance=1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("number", [1, 2, 4, 5])
def test_transforms_that_onnxruntime_numbers_otherwise_are_refused(number: int) -> None:
    node = ("TreeEnsemble", ensemble("float32", post_transform=number))
    with pytest.raises(UnsupportedModelError, match=f"`post_transform` is {number}"):
        load_model(model_of([node], X, version=5))


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes_truenodeids": [0, 0, 2, 4, 6, 4, 6, 9]},
        {"nodes_truenodeids": [1, 0, 2, 4, 3, 4, 6, 9]},
        {"nodes_truenodeids": [8, 0, 2, 4, 6, 4, 6, 9]},
        {"tree_roots": [8]},
        {"leaf_targetids": [2] * 10},
        {"membership_values": numpy_helper.from_array(np.array([1.0], "float32"))},
    ],
)
def test_ensembles_that_are_damaged_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="trees are damaged"):
        load_model(model_of([("TreeEnsemble", ensemble("float32", **wrong))], X, version=5))


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


def test_trees_that_go_in_a_circle_are_refused() -> None:
    weights = leaves("target", [0] * 5, [1.0] * 5)
    damaged = tree(n_targets=1, **weights)
    damaged["nodes_truenodeids"] = [2, 0, 2, 0, 0, 1, 0, 0]
    damaged["nodes_falsenodeids"] = [2, 0, 0, 0, 0, 2, 0, 0]
    with pytest.raises(UnsupportedModelError, match=r"`TreeEnsembleRegressor_0`.*damaged"):
        load_model(model_of([("TreeEnsembleRegressor", damaged)], X))


def test_classes_without_a_number_have_no_part_in_the_choice() -> None:
    """The leaves that a row reaches may give no number to some class. This class must not be chosen
    even if all scores of the row are negative."""
    cases = [
        leaves("class", [0, 1, 2, 1, 2], weights)
        for weights in ([0.5, 0.25, 0.75, 1.0, 0.5], [-0.5, -0.25, -0.75, -1.0, -0.5])
    ]
    named = [
        tree(classlabels_int64s=[4, 0, 5], post_transform=transform, **case)
        for case in cases
        for transform in ("NONE", "LOGISTIC")
    ]
    named.append(tree(classlabels_int64s=[4, 0, 5], base_values=[0.5, -2.0, 0.75], **cases[1]))
    check([("TreeEnsembleClassifier", each) for each in named], X, outputs=2)


def test_leaves_without_a_number_for_one_of_two_classes_are_refused() -> None:
    weights = leaves("class", [0, 1, 0, 1, 0], [0.5] * 5)
    named = tree(classlabels_int64s=[0, 1], **weights)
    with pytest.raises(UnsupportedModelError, match="give no number for an output"):
        load_model(model_of([("TreeEnsembleClassifier", named)], X, outputs=2))


def test_scores_of_the_second_of_two_classes() -> None:
    cases = [[0.5, 0.125, 0.25, 0.125, 0.5], [0.5, -0.5, 0.25, 1.0, -1.0]]
    nodes = [
        tree(classlabels_int64s=[5, 8], post_transform=transform, **leaves("class", [1] * 5, case))
        for case in cases
        for transform in ("NONE", "LOGISTIC", "SOFTMAX")
    ]
    check([("TreeEnsembleClassifier", each) for each in nodes], X, outputs=2)


@pytest.mark.parametrize(
    ("ids", "base"), [([0, 1, 0, 1, 0], [0.5]), ([0] * 5, [0.5, 0.5]), ([1] * 5, [0.5])]
)
def test_base_values_of_two_classes_are_refused(ids: list[int], base: list[float]) -> None:
    """With two classes, onnxruntime adds base values to the wrong scores, according to ONNX."""
    named = tree(classlabels_int64s=[0, 1], base_values=base, **leaves("class", ids, [0.5] * 5))
    with pytest.raises(UnsupportedModelError, match=r"two classes and . base value"):
        load_model(model_of([("TreeEnsembleClassifier", named)], X, outputs=2))


def test_base_values_of_targets_without_a_number_are_refused() -> None:
    weights = leaves("target", [0, 1, 0, 1, 0], [1.0] * 5)
    named = tree(n_targets=2, base_values=[0.5, 0.25], **weights)
    with pytest.raises(UnsupportedModelError, match="give no number for an output"):
        load_model(model_of([("TreeEnsembleRegressor", named)], X))


def test_a_transform_of_a_single_target_is_refused() -> None:
    """ONNX transforms a single target, and onnxruntime leaves the transform out."""
    named = tree(n_targets=1, post_transform="LOGISTIC", **leaves("target", [0] * 5, [1.0] * 5))
    with pytest.raises(UnsupportedModelError, match="`post_transform` is LOGISTIC"):
        load_model(model_of([("TreeEnsembleRegressor", named)], X))


def test_a_model_of_one_class_is_refused() -> None:
    named = tree(classlabels_int64s=[0], **leaves("class", [0] * 5, [1.0] * 5))
    with pytest.raises(UnsupportedModelError, match="1 labels of classes"):
        load_model(model_of([("TreeEnsembleClassifier", named)], X, outputs=2))


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_labels_may_be_strings(transform: str) -> None:
    """How onnxruntime decides between two classes depends on the classes and signs of weights."""
    signs = [0.5, -0.5, 0.25, 1.0, -1.0], [0.5, 0.125, 0.25, 0.125, 0.5]
    cases = [(2, leaves("class", [i] * 5, weights)) for i in (0, 1) for weights in signs]
    cases.append((2, full_leaves([[0.5, -0.5], [0, 0.25], [0.5, 0], [-0.5, 0.5], [0.25, 0.25]])))
    tied = full_leaves([[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 0], [0.5, 0, 0.5], [0, 0, 0]])
    cases.append((3, tied))
    words = ["no", "yes", "perhaps"]
    nodes = [
        tree(classlabels_strings=words[:count], post_transform=transform, **weights)
        for count, weights in cases
    ]
    check([("TreeEnsembleClassifier", node) for node in nodes], X, outputs=2)
