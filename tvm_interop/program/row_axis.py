"""Finds the axes along which a tensor has the rows of a batch, or the positions of a sequence.

In this module, a range is a dimension of the model that may have several sizes, such as the batch.
The model is compiled for some of these sizes. A row is one index of such a dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MASK_TYPES = ("bool", "uint8", "int8", "int32", "int64", "float32", "float64")
"""The types of inputs that can be masks; see `artifact.manifest.RowMask`."""
UNNAMED = "?"
"""A dimension that has no name, because the name of its input cannot be a part of a name."""


def unnamed_dimension(input_name: str, axis: int) -> str:
    """The name of an open dimension that the model does not name: `x[0]` for axis 0 of input `x`.

    Users give sizes to dimensions by their names, such as `--shapes "x[0]=1..8"`. If the name of
    the input contains a character with a meaning in such a text, the result is `UNNAMED`.
    """
    return UNNAMED if set("+*,=") & set(input_name) else f"{input_name}[{axis}]"


def axis_of_rows(shapes: Sequence[Sequence[int]], sizes: Sequence[int]) -> int | None:
    """Find the axis along which the rows of a tensor lie; None if there is no such axis.

    The axis of rows must be the only axis whose size differs between the shapes. Its size must be a
    multiple of the number of rows, with the same factor in all shapes.

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


def axes_of_ranges(
    shapes: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]
) -> list[int | None]:
    """For each range of sizes, the axis along which its rows lie; None if there is no such axis.

    Parameters
    ----------
    shapes: the tensor's shape for each combination of sizes.
    sizes: for each shape, the number of rows of each range. Every combination of sizes occurs.
    """
    found: list[int | None] = []
    for number in range(len(sizes[0])):
        others = [[s for i, s in enumerate(each) if i != number] for each in sizes]
        alike = [i for i, other in enumerate(others) if other == others[0]]
        rows = [sizes[i][number] for i in alike]
        found.append(axis_of_rows([shapes[i] for i in alike], rows))
    return found


def grows_with_rows(shapes: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> bool:
    """Whether each range of sizes either makes the tensor grow along an axis of its own, or does
    not change the tensor's shape.

    For the parameters see `axes_of_ranges`.
    """
    axes = axes_of_ranges(shapes, sizes)
    known = {axis: number for number, axis in enumerate(axes) if axis is not None}
    if len(known) < len(axes) - axes.count(None):
        return False  # Two ranges of sizes make the tensor grow along the same axis.

    def expected(each: Sequence[int]) -> list[int]:
        return [
            size if axis not in known else size // sizes[0][known[axis]] * each[known[axis]]
            for axis, size in enumerate(shapes[0])
        ]

    return all(list(shape) == expected(each) for shape, each in zip(shapes, sizes, strict=True))


def next_larger(sizes: Sequence[Sequence[int]], rows: Sequence[int]) -> int:
    """The index of the smallest compiled combination of sizes into which the given rows fit.

    The smallest combination is the one with the least product of its sizes, because the time of a
    run grows with the number of computed elements. The model is compiled for every combination of
    the ranges' sizes. So the result has the next larger size of each range, and there are no ties.

    Parameters
    ----------
    sizes: the compiled combinations. Each has a number of rows for each range of sizes.
    rows: the number of rows to fit, for each range of sizes.
    """
    fit = [size for size in sizes if all(s >= r for s, r in zip(size, rows, strict=True))]
    return sizes.index(min(fit, key=lambda size: (math.prod(size), size)))
