"""Finds the axis of a tensor along which the rows of a batch lie."""

from __future__ import annotations

from collections.abc import Sequence

MASK_TYPES = ("bool", "uint8", "int8", "int32", "int64", "float32", "float64")
"""The types of inputs that can be masks; see `artifact.manifest.RowMask`."""


def axis_of_rows(shapes: Sequence[Sequence[int]], sizes: Sequence[int]) -> int | None:
    """The axis along which the rows of a tensor lie; None if there is no such axis.

    It is the only axis that differs from shape to shape, and it has the same number of indices for
    each row in all shapes.

    Parameters
    ----------
    shapes: the tensor's shape for each number of rows; at least two.
    sizes: the numbers of rows, all different.
    """
    if len({len(shape) for shape in shapes}) > 1:
        return None
    changing = [a for a, dims in enumerate(zip(*shapes, strict=True)) if len(set(dims)) > 1]
    if len(changing) != 1:
        return None
    each = {divmod(shape[changing[0]], size) for shape, size in zip(shapes, sizes, strict=True)}
    return changing[0] if len(each) == 1 and each.pop()[1] == 0 else None
