"""Tests functions for which TVM's own formulas are wrong near zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
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
