"""Helpers for converting PyTorch's operators. They make constant lists of integers, and read fixed
sizes of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxscript import opset18 as op


def ints(*values: int) -> Any:
    """Return a constant tensor of one dimension with these integers."""
    return op.Constant(value_ints=list(values))


def fixed_sizes(shape: Sequence[Any], axes: Sequence[int]) -> list[int]:
    """Return the sizes of the dimensions `axes`.

    Raises
    ------
    TypeError: a size is not fixed.
    """
    found = [shape[axis] for axis in axes]
    if not all(isinstance(size, int) for size in found):
        raise TypeError("this operator is converted only for dimensions of a fixed size")
    return found
