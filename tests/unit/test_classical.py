"""Tests operators of classical machine learning against onnxruntime.

All cases of a test are in one model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.classical import X, check, model_of
from tests.one_node import computed
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model


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


@pytest.mark.parametrize(("shape", "number"), [((2, 3, 4), 4), ((2, 3, 4), 3), ((5, 4), 3)])
def test_replacements_that_do_not_fit_the_columns_are_refused(
    shape: tuple[int, ...], number: int
) -> None:
    """With more or fewer replacements than columns, onnxruntime silently uses a wrong replacement.

    It takes the replacement of another column, or only the first replacement.
    """
    node = ("Imputer", {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0][:number]})
    with pytest.raises(UnsupportedModelError, match=f"it has {number} replacements"):
        load_model(model_of([node], np.zeros(shape, np.float32)))


def test_encoders_of_integers() -> None:
    check(
        [
            ("LabelEncoder", {"keys_int64s": [1, 5, 2], "values_int64s": [10, 50, 20]}),
            ("LabelEncoder", {"keys_int64s": [1, 5], "values_floats": [0.1, 0.5]}),
            ("OneHotEncoder", {"cats_int64s": [5, 1, 2], "zeros": 1}),
            ("OneHotEncoder", {"cats_int64s": [5, 1, 5], "zeros": 1}),
            ("FeatureVectorizer", {"inputdimensions": [3]}),
        ],
        np.array([[1, 5, 0], [2, 2, 7]]),
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
        one = {**named, "classlabels_ints": [3, 9], "intercepts": [0.1]}
        nodes.append(("LinearClassifier", {"coefficients": rows[:4], **one}))
    check(nodes, x, outputs=2)


def test_linear_classification_with_strings_as_labels() -> None:
    rows = [1.0, -2.0, 0.5, 3.0, 0.0, 1.0, -1.0, 0.5, 2.0, 0.1, 0.2, -0.3]
    words, nodes = ["z", "y", "x"], []
    for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
        for classes, outputs in ((3, 3), (2, 2), (2, 1)):
            named = {"post_transform": transform, "classlabels_strings": words[:classes]}
            named |= {"coefficients": rows[: 4 * outputs], "intercepts": [0.1, -0.2, 0.1][:outputs]}
            nodes.append(("LinearClassifier", named))
    check(nodes, np.nan_to_num(X), outputs=2)


def test_linear_regression_of_several_targets() -> None:
    named = {"coefficients": [1.0, -2.0, 0.5, 3.0, 0.0, 1.0, -1.0, 0.5], "targets": 2}
    nodes = [("LinearRegressor", named | {"intercepts": [0.5, -0.5]})]
    for transform in ("LOGISTIC", "SOFTMAX"):
        nodes.append(("LinearRegressor", named | {"post_transform": transform}))
    check(nodes, np.nan_to_num(X))


def test_a_transform_of_a_single_target_is_refused() -> None:
    """ONNX transforms a single target, and onnxruntime leaves the transform out."""
    named = {"coefficients": [1.0, -2.0, 0.5, 3.0], "post_transform": "LOGISTIC"}
    with pytest.raises(UnsupportedModelError, match="`post_transform` is LOGISTIC"):
        load_model(model_of([("LinearRegressor", named)], X))


def test_a_linear_classifier_with_too_few_intercepts_is_refused() -> None:
    named = {"coefficients": [1.0] * 8, "intercepts": [0.5, 0.5], "classlabels_ints": [0, 1, 2]}
    with pytest.raises(UnsupportedModelError, match="2 intercepts for 3 classes"):
        load_model(model_of([("LinearClassifier", named)], X, outputs=2))


def test_a_category_that_is_not_known_gives_nan(caplog: pytest.LogCaptureFixture) -> None:
    """For an unknown category, onnxruntime raises an error for the whole batch."""
    known = ("OneHotEncoder", {"cats_int64s": [5, 1, 2], "zeros": 0})
    check([known], np.array([[1, 5, 2], [2, 2, 1]]))
    assert "`OneHotEncoder_0` (`OneHotEncoder`) should fail for a category" in caplog.text
    x = np.array([[1, 5], [7, 2]])
    (found,) = computed(model_of([known], x), {"x": x})
    nan = [np.nan] * 3
    np.testing.assert_array_equal(found, [[[0, 1, 0], [1, 0, 0]], [nan, [0, 0, 1]]])


@pytest.mark.parametrize("kind", ["int64", "float32", "float64"])
def test_encoders_whose_keys_and_values_are_tensors(kind: str) -> None:
    def tensors(values: list[float], of: str) -> dict[str, Any]:
        keys = numpy_helper.from_array(np.array([1, 5, 2], kind))
        return {"keys_tensor": keys, "values_tensor": numpy_helper.from_array(np.array(values, of))}

    nodes = [("LabelEncoder", tensors([10, 50, 20], kind))]
    default = numpy_helper.from_array(np.array([7], kind))
    nodes.append(("LabelEncoder", {**tensors([10, 50, 20], kind), "default_tensor": default}))
    if kind == "int64":
        nodes.append(("LabelEncoder", tensors([0.1, 0.5, 0.2], "float32")))
    check(nodes, np.array([[1, 5, 0], [2, 2, 7]], kind), version=4, tolerance=1e-12)


def test_encoders_of_strings_do_not_read_numbers() -> None:
    words = helper.make_tensor("w", onnx.TensorProto.STRING, [1], ["yes"])
    named = {"keys_tensor": words, "values_int64s": [1]}
    with pytest.raises(UnsupportedModelError, match=r"LabelEncoder.*compares strings with numbers"):
        load_model(model_of([("LabelEncoder", named)], X, version=4))


def test_a_scaler_of_large_numbers() -> None:
    """The difference of two times in seconds has no correct digit in float32."""
    scaler = {"offset": [1.7e9], "scale": [0.5]}
    check([("Scaler", scaler)], np.array([[1.7e9 + 1, 1.7e9 - 2.5]]))


@pytest.mark.parametrize("kind", ["int64", "float32", "float64"])
def test_encoders_with_many_keys(kind: str) -> None:
    """Numbers are looked up among many keys by bisection."""
    keys = np.random.default_rng(0).permutation(300)[:200].astype(kind)
    named = {
        "keys_tensor": numpy_helper.from_array(np.append(keys, keys[:9])),
        "values_tensor": numpy_helper.from_array(np.arange(209)),
        "default_tensor": numpy_helper.from_array(np.array([-5])),
    }
    x = np.arange(-3, 303).astype(kind).reshape(17, 18)
    if kind != "int64":
        x[0, :4] = [0.5, np.nan, np.inf, -np.inf]
    check([("LabelEncoder", named)], x, version=4)
