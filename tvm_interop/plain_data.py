"""Checks whether values from users are whole numbers, finite numbers or text, or types floats."""

from __future__ import annotations

import math
from typing import TypeGuard

import numpy as np

LARGEST = 2**63 - 1
"""The largest whole number that the native code takes, which is the largest int64."""


def is_whole(value: object) -> TypeGuard[int]:
    """Whether `value` is an int or a numpy integer; True and False do not count."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_finite(value: object) -> TypeGuard[float]:
    """Whether `value` is a number of Python or numpy that is finite as a float."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # An int such as 10**400 is too large for a float.
        return False


def is_text(value: object) -> TypeGuard[str]:
    """Whether UTF-8 can encode the string `value`. It cannot if `value` has a lone surrogate."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_float(dtype: object) -> bool:
    """Whether a type of tensors, or its name, is a floating-point type.

    bfloat16 and the types of 8 bits are floating-point types.
    """
    name = str(dtype)
    return name.startswith(("bfloat", "float")) or np.dtype(name).kind == "f"
