"""Tests support vector machines against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.classical import RNG, X, check, model_of
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model

KERNELS = ["LINEAR", "RBF", "POLY", "SIGMOID"]


@pytest.mark.parametrize("kernel", KERNELS)
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


def test_a_transform_of_a_single_result_is_refused() -> None:
    """ONNX transforms a single result, and onnxruntime leaves the transform out."""
    named = {"coefficients": [1.0], "n_supports": 1, "support_vectors": [1.0] * 4, "rho": [0.2]}
    node = ("SVMRegressor", named | {"kernel_params": [1.0] * 3, "post_transform": "LOGISTIC"})
    with pytest.raises(UnsupportedModelError, match="`post_transform` is LOGISTIC"):
        load_model(model_of([node], X))


def classifier(classes: int, *, probabilities: bool, **more: Any) -> tuple[str, dict[str, Any]]:
    """A support vector machine with at most three support vectors for each class."""
    sizes = [1 + i % 3 for i in range(classes)]
    pairs = classes * (classes - 1) // 2
    named: dict[str, Any] = {
        "kernel_params": [0.3, 0.1, 3.0],
        "vectors_per_class": sizes,
        "support_vectors": RNG.standard_normal(4 * sum(sizes)).tolist(),
        "coefficients": RNG.standard_normal((classes - 1) * sum(sizes)).tolist(),
        "rho": RNG.standard_normal(pairs).tolist(),
        "classlabels_ints": [7 * i - 3 for i in range(classes)],
    }
    if probabilities:
        named["prob_a"] = (-RNG.random(pairs) - 0.5).tolist()
        named["prob_b"] = RNG.standard_normal(pairs).tolist()
    return "SVMClassifier", named | more


@pytest.mark.parametrize("kernel", KERNELS)
def test_classification_by_support_vectors(kernel: str) -> None:
    check(
        [
            classifier(number, probabilities=probabilities, kernel_type=kernel)
            for number in (2, 3, 5)
            for probabilities in (False, True)
        ],
        X[3:],
        outputs=2,
    )


def test_labels_of_support_vectors_may_be_strings() -> None:
    nodes = []
    for number in (2, 3, 5):
        for probabilities in (False, True):
            kind, named = classifier(number, probabilities=probabilities)
            del named["classlabels_ints"]
            nodes.append(
                (kind, named | {"classlabels_strings": ["z", "y", "x", "w", "v"][:number]})
            )
    check(nodes, X[3:], outputs=2)


def test_transforms_of_support_vectors() -> None:
    check(
        [
            classifier(number, probabilities=probabilities, post_transform=transform)
            for number in (2, 4)
            for probabilities in (False, True)
            for transform in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
        ],
        X[3:],
        outputs=2,
    )


def test_support_vectors_of_doubles_and_integers() -> None:
    for kind in ("float64", "int64", "int32"):
        nodes = [classifier(3, probabilities=True, kernel_type="RBF")]
        check(nodes, (3 * X[3:]).astype(kind), outputs=2)


def test_large_terms_that_cancel_each_other() -> None:
    """The terms are so large that their sum in 32 bits would have no correct digit. scikit-learn's
    `NuSVC` has such terms."""
    large = RNG.integers(500, 1000, 40)
    small = RNG.integers(-8, 8, 40) / 1024
    vectors = RNG.integers(-3, 4, (40, 4)).astype("float64").ravel().tolist()
    node = classifier(
        2,
        probabilities=False,
        vectors_per_class=[40, 40],
        support_vectors=[*vectors, *vectors],
        coefficients=[*large.astype("float64").tolist(), *(small - large).tolist()],
        rho=[0.0],
    )
    check([node], np.round(X[3:]), outputs=2)


def test_transforms_that_are_not_supported_are_refused() -> None:
    for number in (2, 3):
        node = classifier(number, probabilities=False, post_transform="PROBIT")
        with pytest.raises(UnsupportedModelError, match="`post_transform` is PROBIT"):
            load_model(model_of([node], X, outputs=2))


def test_a_classifier_without_support_vectors_is_refused() -> None:
    node = classifier(3, probabilities=False)
    del node[1]["vectors_per_class"]
    with pytest.raises(UnsupportedModelError, match="support vectors of 0 classes"):
        load_model(model_of([node], X, outputs=2))
