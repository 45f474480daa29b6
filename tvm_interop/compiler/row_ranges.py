"""Chooses the sizes that a model is compiled for, for ranges such as any batch from 1 to 32.

A run whose size is not compiled uses the next larger compiled size, and its inputs are padded
("filled up"). The module `range_proofs` proves that the results stay right. One or two dimensions
may have a range: in a batch of sequences, for example, the batch and the length. For two ranges, a
few sizes of each dimension are chosen, and the model is compiled for all pairs of these sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..artifact.layout import MAX_SHAPES
from ..errors import CannotFillUpError, InputError
from ..frontend.open_dimensions import (
    axes_of_dim,
    check_all_given,
    may_be_onnx,
    shapes_in_words,
    shapes_of_dims,
)
from ..plain_data import is_whole
from .joined_names import joined_names

MOST_SIZES = 8
"""The default limit on the number of sizes, or of combinations of two sizes, that are compiled."""
MOST_ROWS = 4096
"""The largest size that a dimension with a range may have."""
_FIXED_ROWS = 1.0
"""A run is assumed to take a constant time and the same time for each row. This is the constant
time, divided by the time for a row."""

Ranges: TypeAlias = "Mapping[str, int | tuple[int, int] | Set[int]]"
"""For each dimension, by its name: a size, the least and the greatest size, or a set of sizes."""


class RowRange(NamedTuple):
    """The ranges of one or two dimensions, and the sizes that they are compiled for.

    Attributes
    ----------
    dimensions: the names of the dimensions.
    sizes: for each dimension, the sizes to compile for, ascending. The first and the last size are
        the ends of the range. The model is compiled for all combinations of sizes.
    axes: for each dimension, its axis in each input that has it, by the input's name. The axis may
        be a multiple of the dimension, such as `2*batch`.
    least_shapes: the shapes of the model's open inputs for the least size of each dimension.
    """

    dimensions: tuple[str, ...]
    sizes: tuple[list[int], ...]
    axes: tuple[dict[str, int], ...]
    least_shapes: dict[str, tuple[int, ...]]

    @property
    def combinations(self) -> list[tuple[int, ...]]:
        """All combinations of sizes to compile for; each has one size for each dimension."""
        return list(itertools.product(*self.sizes))

    def shapes(self, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The shapes of the model's open inputs, given a size for each dimension."""
        # Each size, the least size of its dimension, and the axes of the dimension.
        known = list(zip(sizes, (each[0] for each in self.sizes), self.axes, strict=True))
        return {
            name: tuple(
                next((d // least * size for size, least, at in known if at.get(name) == a), d)
                for a, d in enumerate(shape)
            )
            for name, shape in self.least_shapes.items()
        }

    def filled(self, number: int) -> list[int]:
        """The two smallest sizes in a dimension's range for which the model is not compiled.

        The inputs of a run at such a size are padded. The list is shorter if there are fewer than
        two sizes to list.
        """
        sizes = self.sizes[number]
        between = (s for s in range(sizes[0] + 1, sizes[-1]) if s not in sizes)
        return list(itertools.islice(between, 2))


def exact_shapes(
    model: Any, ranges: Any, most_sizes: int | None
) -> list[dict[str, tuple[int, ...]]] | None:
    """The shapes of the open inputs for each combination of the sizes that `ranges` lists.

    Return None if a dimension has a range. A model without ranges runs only at the listed sizes, so
    inputs are never padded, and nothing needs to be proven.

    Raises
    ------
    InputError
        A named dimension does not exist, a size is not a whole number above 0, another dimension
        has a range, there are too many combinations, or `most_sizes` is given.
    UnsupportedModelError
        The model is not ONNX or cannot be read, or another dimension is left open.
    """
    if not isinstance(ranges, Mapping) or not ranges or not all(map(_is_name, ranges)):
        return None  # `check_range` later refuses a value that is not a mapping from names.
    is_set = any(isinstance(given, Set) for given in ranges.values())
    if not is_set and not all(map(is_whole, ranges.values())):
        return None
    if most_sizes is not None:
        raise InputError(
            "`most_sizes` is for a range, but `shapes` gives sizes, which are all compiled: leave "
            "`most_sizes` out"
        )
    sizes: list[list[int]] = []
    for name, given in ranges.items():
        each = given if isinstance(given, Set) else {given}
        if isinstance(given, Sequence) and not isinstance(given, str):
            raise InputError(
                f"`shapes` gives `{name}` a range, and another dimension a set of sizes: give both "
                "dimensions sets of sizes, or one dimension a single size"
            )
        if not each or not all(is_whole(size) and size > 0 for size in each):
            raise InputError(
                f"`shapes` gives `{name}` the value {given!r}: give whole numbers above 0"
            )
        sizes.append(sorted(each))
    count = math.prod(map(len, sizes))
    if count > MAX_SHAPES:
        raise InputError(
            f"`shapes` gives {count} combinations of sizes, and the model is compiled for each of "
            f"them: give at most {MAX_SHAPES}"
        )
    found = [
        shapes_of_dims(model, dict(zip(ranges, each, strict=True)))
        for each in itertools.product(*sizes)
    ]
    check_all_given(model, found[0])
    return found


def row_range(model: Any, ranges: Ranges, most_sizes: int = MOST_SIZES) -> RowRange:
    """Choose the sizes to compile a model for.

    Parameters
    ----------
    ranges: the sizes of all open dimensions, one or two of them with a range.
    most_sizes: the largest number of combinations of sizes to compile the model for.

    Raises
    ------
    InputError
        A named dimension does not exist, a range is empty, or no dimension has a range.
    CannotFillUpError
        More than two dimensions have a range, or a range is too long. Or a dimension with a range
        occurs twice in an input's shape, or in a sum such as `past + 1`.
    UnsupportedModelError
        The model is not ONNX or cannot be read.
    """
    if not may_be_onnx(model):
        raise InputError(
            "a range is for ONNX models and for programs of torch.export only: for a Relax module "
            "give several `input_shapes`"
        )
    fixed: dict[str, int] = {}
    wide: dict[str, tuple[int, int]] = {}
    for name, size in ranges.items():
        least, most = (size, size) if is_whole(size) else _ends(name, size)
        if not 1 <= least <= most:
            raise InputError(
                f"`shapes` gives `{name}` the sizes {least} to {most}: give sizes from 1 to "
                f"{MOST_ROWS}, the smaller first"
            )
        if least < most:
            wide[name] = (least, most)
        else:
            fixed[name] = least
    _check_lengths(model, wide, fixed)
    wide, joined = joined_names(model, wide, fixed)
    if not wide:
        raise InputError(
            f"`shapes` is {ranges!r}, and gives no dimension a range: give one or two "
            'dimensions a range, such as {"batch": (1, 32)}, or all dimensions sizes'
        )
    if len(wide) > 2:
        raise CannotFillUpError(
            f"`shapes` gives a range for {len(wide)} dimensions",
            ": give one or two dimensions a range, and each other open dimension one size",
        )
    fewest = 2 ** len(wide)
    if not is_whole(most_sizes) or most_sizes < fewest:
        raise InputError(
            f"`most_sizes` is {most_sizes!r}: give a whole number, {fewest} or more"
            + (", since both ends of both ranges are compiled" if len(wide) > 1 else "")
        )
    least_sizes = {**fixed, **{name: least for name, (least, _) in wide.items()}}
    least_sizes.update({name: least_sizes[first] for name, first in joined.items()})
    least_shapes = shapes_of_dims(model, least_sizes)
    axes = tuple(
        _axes_of(model, (name, *(n for n in joined if joined[n] == name))) for name in wide
    )
    for name, at in zip(wide, axes, strict=True):
        if not at.keys() <= least_shapes.keys():
            missing = sorted(at.keys() - least_shapes.keys())
            raise InputError(
                f"`shapes` gives `{name}` a range, but gives no size for other open dimensions of "
                f"{shapes_in_words(model, missing)}: give all sizes"
            )
    return RowRange(
        tuple(wide), chosen_sizes_of(list(wide.values()), most_sizes), axes, least_shapes
    )


def _check_lengths(
    model: Any, wide: Mapping[str, tuple[int, int]], fixed: Mapping[str, int]
) -> None:
    """Refuse ranges with sizes above `MOST_ROWS`."""
    for name, (least, most) in wide.items():
        if most > MOST_ROWS:
            shapes_of_dims(model, {**fixed, **{n: ends[0] for n, ends in wide.items()}})
            raise CannotFillUpError(
                f"`shapes` gives `{name}` the sizes {least} to {most}",
                f": give sizes from 1 to {MOST_ROWS}",
            )


def _axes_of(model: Any, names: Sequence[str]) -> dict[str, int]:
    """The axis of one dimension in each input that has it, by the input's name. The dimension may
    have several names.
    """
    axes: dict[str, int] = {}
    for name in names:
        for input_name, axis in axes_of_dim(model, name).items():
            if axes.setdefault(input_name, axis) != axis:
                raise CannotFillUpError(
                    f"input `{input_name}` has the dimension `{names[0]}` twice, also as `{name}`, "
                    "so it cannot have a range",
                    f": give `{names[0]}` one size",
                )
    return axes


def _is_name(name: Any) -> bool:
    return isinstance(name, str)


def _ends(name: str, given: Any) -> tuple[int, int]:
    ends = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    if len(ends) != 2 or not all(map(is_whole, ends)):
        raise InputError(
            f"`shapes` gives `{name}` the value {given!r}: give a size, the least and the greatest "
            "size, such as (1, 32), or a set of sizes, such as {1, 8, 32}"
        )
    return ends[0], ends[1]


def chosen_sizes_of(ends: Sequence[tuple[int, int]], count: int) -> tuple[list[int], ...]:
    """The sizes of each dimension to compile for, at most `count` combinations of them.

    The combinations minimise the mean of this ratio: the time of a run that is padded to a chosen
    size, divided by the time of a run at its own size. A run's time is assumed to be the product of
    one factor for each dimension (see `chosen_sizes`). So the mean is the product of the means of
    both dimensions. Long ranges get more sizes than short ranges: a batch of 1 to 8 gets 2 sizes,
    and a length of 1 to 128 gets 4. Ties: the fewest combinations, then the fewest sizes of the
    first dimension.
    """
    if len(ends) == 1:
        return (chosen_sizes(*ends[0], count),)
    found: dict[tuple[int, int], list[list[int]]] = {}
    for first in range(2, count // 2 + 1):
        each = [chosen_sizes(*e, n) for e, n in zip(ends, (first, count // first), strict=True)]
        found.setdefault((len(each[0]), len(each[1])), each)

    def cost(counts: tuple[int, int]) -> tuple[float, int, int]:
        means = (_mean_ratio(sizes) for sizes in found[counts])
        return round(math.prod(means), 9), math.prod(counts), counts[0]

    return tuple(found[min(found, key=cost)])


def _mean_ratio(sizes: Sequence[int]) -> float:
    """The mean over a range of this ratio: the time of a run at the next larger chosen size,
    divided by the time of a run at its own size."""
    own = np.arange(sizes[0], sizes[-1] + 1)
    chosen = np.array(sizes)[np.searchsorted(sizes, own)]
    return float(np.mean((chosen + _FIXED_ROWS) / (own + _FIXED_ROWS)))


def chosen_sizes(least: int, most: int, count: int) -> list[int]:
    """The sizes from `least` to `most` to compile for, at most `count`.

    The chosen sizes minimise the mean, over all sizes of the range, of this ratio: the time of a
    run at the next larger chosen size, divided by the time of a run at its own size. The time of a
    run is assumed to be proportional to its size plus `_FIXED_ROWS`. Ties: the smaller sizes.
    """
    count = min(count, most - least + 1)
    sizes = np.arange(least, most + 1)
    costs = sizes + _FIXED_ROWS
    shares = np.concatenate([[0.0], np.cumsum(1 / costs)])
    # best[i] is the least sum of the ratios for the sizes 0 to i (by index), if size i is chosen.
    best = np.full(len(sizes), np.inf)
    # The least size is always chosen, because the model may treat it differently from larger sizes.
    best[0] = 1.0
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
