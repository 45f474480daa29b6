"""Tests functions for which TVM's own formulas are wrong near zero, or fail in vectorised
kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from ..one_node import computed, one_node

NEAR_ZERO = [1e-40, -1e-20, 1e-10, -1e-5, 0.3, -0.7, 0.0]


@pytest.mark.parametrize(("dtype", "digits"), [("float32", 1e-6), ("float64", 1e-14)])
@pytest.mark.parametrize(("operator", "wanted"), [("Tanh", np.tanh), ("Atanh", np.arctanh)])
def test_no_digit_is_lost_near_zero(
    operator: str, wanted: Callable[[Any], Any], dtype: str, digits: float
) -> None:
    x = np.array(NEAR_ZERO, dtype)
    np.testing.assert_allclose(computed(*one_node(operator, [x]))[0], wanted(x), digits, atol=0)


def test_hyperbolic_functions_are_summed_up_in_vectors() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
        g (float[1,16,6,3] x) => (float[1,6,3] y) <int64[1] axis = {1}>
        { a = Sinh(x) b = Cosh(a) y = ReduceSum<keepdims = 0>(b, axis) }""")
    x = np.linspace(-1, 1, 288, dtype=np.float32).reshape(1, 16, 6, 3)
    wanted = np.cosh(np.sinh(x)).sum(1)
    np.testing.assert_allclose(computed(model, {"x": x})[0], wanted, 1e-5)
