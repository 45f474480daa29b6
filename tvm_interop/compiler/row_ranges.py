"""Compiles a model for a range of sizes of one dimension, such as any batch from 1 to 32.

The model is compiled for some sizes of the range. Between them, a run takes the next larger one and
fills the inputs up. This is right if each row of an output depends on the same row of the inputs
alone, which `lowering.independent_rows` proves. It is right too for the positions of a sequence if
those that are filled up change nothing at the others, which `lowering.masked_positions` proves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..artifact.manifest import RowMask
from ..errors import InputError, UnsupportedModelError
from ..frontend.load import load_model
from ..frontend.open_dimensions import axes_of_dim, shapes_of_dims
from ..lowering.extract import extract
from ..lowering.independent_rows import RowsDependError, independent_rows
from ..lowering.lower import LowerToUnits
from ..lowering.masked_positions import masked_positions
from ..plain_data import is_whole
from ..program.program import Program

_LOG = logging.getLogger("tvm_interop")

MOST_SIZES = 8
"""By default a range is compiled for at most this many sizes."""
MOST_ROWS = 4096
"""The largest size of a dimension with a range."""
_FIXED_ROWS = 1.0
"""The time of a run that does not grow with its rows, as a number of rows that take as long."""

Ranges: TypeAlias = "Mapping[str, int | tuple[int, int]]"
"""A size, or the least and the greatest size, by the name of the dimension."""


class RowRange(NamedTuple):
    """A range of sizes of one dimension, and the sizes that it is compiled for.

    Attributes
    ----------
    dimension: the name of the dimension.
    sizes: the sizes to compile for, ascending. The first and the last are the ends of the range.
    shapes: the shapes of the model's open inputs for each of these sizes.
    """

    dimension: str
    sizes: list[int]
    shapes: list[dict[str, tuple[int, ...]]]


def row_range(model: Any, ranges: Ranges, most_sizes: int = MOST_SIZES) -> RowRange:
    """Choose the sizes to compile a model for.

    Parameters
    ----------
    ranges: the sizes of all open dimensions, one of them with a range.
    most_sizes: the largest number of sizes to compile for.

    Raises
    ------
    InputError
        There is no such dimension, a range is empty, or not exactly one dimension has a range.
    UnsupportedModelError
        The model is not ONNX or cannot be read.
    """
    fixed, wide = {}, {}
    for name, size in ranges.items():
        least, most = (size, size) if is_whole(size) else _ends(name, size)
        if not 1 <= least <= most <= MOST_ROWS:
            raise InputError(
                f"`shapes` gives `{name}` the sizes {least} to {most}: give sizes from 1 to "
                f"{MOST_ROWS}, the smaller first"
            )
        if least < most:
            wide[name] = (least, most)
        else:
            fixed[name] = least
    if len(wide) != 1:
        raise InputError(
            f"`shapes` gives a range for {len(wide)} dimensions: give one dimension a range, and "
            "each other open dimension one size"
        )
    if not is_whole(most_sizes) or most_sizes < 2:
        raise InputError(f"`most_sizes` is {most_sizes!r}: give a whole number, 2 or more")
    ((name, (least, most)),) = wide.items()
    sizes = chosen_sizes(least, most, most_sizes)
    return RowRange(name, sizes, [shapes_of_dims(model, {**fixed, name: s}) for s in sizes])


def _ends(name: str, given: Any) -> tuple[int, int]:
    ends = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    if len(ends) != 2 or not all(map(is_whole, ends)):
        raise InputError(
            f"`shapes` gives `{name}` the value {given!r}: give a size, or the least and the "
            "greatest size, such as (1, 32)"
        )
    return ends[0], ends[1]


def chosen_sizes(least: int, most: int, count: int) -> list[int]:
    """The sizes from `least` to `most` to compile for, at most `count`.

    They minimise the mean, over all sizes of the range, of the time of a run at the next larger
    chosen size over the time at its own size. The time is taken to grow with the size, from the
    time of `_FIXED_ROWS` rows on. Ties: the smaller sizes.
    """
    count = min(count, most - least + 1)
    sizes = np.arange(least, most + 1)
    costs = sizes + _FIXED_ROWS
    shares = np.concatenate([[0.0], np.cumsum(1 / costs)])
    # best[i]: the sum of the ratios of all sizes up to number i, where number i is chosen.
    best = np.full(len(sizes), np.inf)
    best[0] = 1.0  # The least size is always chosen, since it need not be like the larger ones.
    before: list[np.ndarray] = []
    for _ in range(count - 1):
        previous = np.full(len(sizes), -1)
        longer = best.copy()
        for i in range(1, len(sizes)):
            sums = best[:i] + costs[i] * (shares[i + 1] - shares[1 : i + 1])
            j = int(np.argmin(sums))
            if sums[j] < longer[i]:
                longer[i], previous[i] = sums[j], j
        before.append(previous)
        best = longer
    found, i = [len(sizes) - 1], len(sizes) - 1
    for previous in reversed(before):
        if previous[i] >= 0:
            i = int(previous[i])
            found.append(i)
    return [int(sizes[i]) for i in reversed(found)]


def check_rows(model: Any, chosen: RowRange) -> tuple[bool, tuple[RowMask, ...]]:
    """Prove that the model may be filled up between the sizes.

    Returns
    -------
    Whether the dimension is the first one of all inputs and outputs, that is, a batch; and the
    inputs that are filled up with 0.

    Raises
    ------
    InputError
        There is no proof; the message names the operator.
    """
    axes = axes_of_dim(model, chosen.dimension)
    try:
        shapes = dict(zip(chosen.sizes, chosen.shapes, strict=True))
        programs, _ = _programs(model, {**shapes, **_shapes_between(chosen, axes)}, axes)
        try:
            ins, outs = independent_rows(programs, axes)
        except RowsDependError:
            if not any(axes.values()):
                raise  # It is a batch.
            masks = masked_positions(programs, axes, min(chosen.sizes))
            return False, tuple(RowMask(name, masks.anchor) for name in masks.names)
    except RowsDependError as error:
        raise InputError(
            f"the model cannot be compiled for a range of `{chosen.dimension}`: runs are filled up "
            f"to a size that was compiled, and this could change results, since {error}. Compile "
            "it for the sizes that you need instead: give `input_shapes` for each of them (on the "
            "command line, --input-shapes several times)"
        ) from None
    return all(rows == (0, 1) for rows in (*ins.values(), *outs.values())), ()


def _shapes_between(
    chosen: RowRange, axes: Mapping[str, int]
) -> dict[int, dict[str, tuple[int, ...]]]:
    """The input shapes for the two smallest sizes that are filled up.

    A number that the model computes from the size, such as the smaller one of the size and 16, may
    be the same for all sizes that are compiled. It differs for one of these then, unless it is a
    number such as whether the size is 77.
    """
    filled = [s for s in range(chosen.sizes[0] + 1, chosen.sizes[-1]) if s not in chosen.sizes]
    return {
        size: {
            name: tuple(
                size * (d // chosen.sizes[0]) if a == axes.get(name) else d
                for a, d in enumerate(shape)
            )
            for name, shape in chosen.shapes[0].items()
        }
        for size in filled[:2]
    }


def warn_of_dependent_rows(model: Any, shapes: Mapping[int, Mapping[str, tuple[int, ...]]]) -> None:
    """Log a warning unless it can be proven that the rows of a batch are independent.

    Parameters
    ----------
    shapes: the shapes of the model's open inputs, by batch size.
    """
    try:
        programs, axes = _programs(model, shapes, None)
        if programs:
            independent_rows(programs, axes)
    except RowsDependError as error:
        _LOG.warning(
            "the rows of a batch may depend on each other, so that requests which are joined may "
            "change each other's answers: %s",
            error,
        )


def _programs(
    model: Any, shapes: Mapping[int, Mapping[str, tuple[int, ...]]], axes: Mapping[str, int] | None
) -> tuple[dict[int, Program], Mapping[str, int]]:
    """The lowered model by the size of the dimension, and the axis of the dimension by input.

    There are programs for the sizes above 1, and at least two unless there is no such size. A
    single row is run as it is, so nothing needs to be proven about it.

    Parameters
    ----------
    axes: the axis of the dimension by input; None for the first axis of all inputs.
    """
    programs = {size: _lowered(model, given) for size, given in shapes.items() if size > 1}
    if not programs:
        return {}, axes or {}
    size, first = next(iter(programs.items()))
    if axes is None:
        axes = {first.values[v].name: 0 for v in first.inputs}
    if len(programs) == 1:
        # Two sizes are compared, to know which numbers of the program come from the size.
        grown = {
            name: tuple(d + (a == axes.get(name)) for a, d in enumerate(value.shape))
            for name, value in ((first.values[v].name, first.values[v]) for v in first.inputs)
        }
        programs[size + 1] = _lowered(model, grown)
    return programs, axes


def _lowered(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> Program:
    lower: Any = LowerToUnits("llvm")
    try:
        return extract(lower(load_model(model, shapes)))
    except UnsupportedModelError as error:
        raise RowsDependError(
            f"it cannot be imported for the input shapes {dict(shapes)}: {error}"
        ) from error
