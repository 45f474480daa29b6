"""Checks whether the numbers that a model computes grow evenly with the sizes of its inputs.

One or two dimensions of the inputs have a range of sizes. A number that the model computes grows
evenly if it grows by the same amount whenever such a size grows by 1. With two dimensions, a number
may also grow with the product of both sizes. A model may treat a size of 1 differently from larger
sizes. So two combinations of sizes are compared only if they have the size 1 in the same
dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

Sizes: TypeAlias = "tuple[int, ...]"
"""One size for each dimension that has a range of sizes."""

_TOLERANCE = 1e-9
"""The relative tolerance for comparing numbers with the fitted numbers, computed in double
precision.
"""


def ones_of(sizes: Sizes) -> tuple[bool, ...]:
    """Return for each dimension whether its size is 1."""
    return tuple(size == 1 for size in sizes)


class Growth:
    """How the numbers that a model computes grow with the sizes of its inputs.

    Parameters
    ----------
    each: the numbers, as arrays of the same shape, by the sizes for which the model computed them.
    """

    def __init__(self, each: Mapping[Sizes, np.ndarray]) -> None:
        self._by_ones: dict[tuple[bool, ...], dict[Sizes, np.ndarray]] = {}
        for sizes, array in each.items():
            self._by_ones.setdefault(ones_of(sizes), {})[sizes] = array
        self._fits = {ones: _Fit(group) for ones, group in self._by_ones.items()}

    def uneven(self) -> tuple[Sizes, Sizes] | None:
        """Two combinations of sizes whose numbers show uneven growth; None if all numbers grow
        evenly.
        """
        found = (fit.uneven() for fit in self._fits.values())
        return next((pair for pair in found if pair is not None), None)

    def at(self, sizes: Sizes) -> np.ndarray | None:
        """The numbers expected for these sizes, if they grow like the given numbers.

        None if no given numbers can be compared: the given sizes never have the size 1 in the same
        dimensions as `sizes`.
        """
        fit = self._fits.get(ones_of(sizes))
        return None if fit is None else fit.at(sizes)

    def differs_at_1(self) -> Iterator[int]:
        """The dimensions for which the numbers at size 1 do not follow from the numbers at larger
        sizes.
        """
        for ones, group in self._by_ones.items():
            for number in (i for i, is_one in enumerate(ones) if is_one):
                larger = self._fits.get((*ones[:number], False, *ones[number + 1 :]))
                if larger is not None and not all(
                    larger.at(sizes).shape == array.shape
                    and _is_close(larger.at(sizes), array).all()
                    for sizes, array in group.items()
                ):
                    yield number


class Law:
    """How each element of a tensor grows with the sizes of the model's inputs.

    The tensor may have more elements for larger sizes.

    Parameters
    ----------
    corners: the tensor for the largest sizes, and the tensors for sizes that are smaller by 1 in
        one or more dimensions.
    """

    def __init__(self, corners: Mapping[Sizes, np.ndarray]) -> None:
        self._most = tuple(np.max([array.shape for array in corners.values()], 0))
        self._box = tuple(np.min([array.shape for array in corners.values()], 0))
        heads = {sizes: array[_box(self._box)] for sizes, array in corners.items()}
        self._fit = _Fit(heads)

    def fits(self, sizes: Sizes, array: np.ndarray) -> bool:
        """Whether the tensor for these sizes has the elements that the growth predicts."""
        if array.ndim != len(self._most) or not np.all(array.shape <= np.array(self._most)):
            return False
        common = _box(tuple(np.minimum(array.shape, self._box)))
        expected = self._fit.at(sizes)[common]
        return bool(_is_close(array[common].astype(np.float64), expected).all())


def _box(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in shape)


def corners_of(sizes: Sequence[Sizes]) -> list[Sizes]:
    """The combinations in `sizes` in which each size is the largest, the largest minus 1, or 1."""
    most, known = np.max(sizes, 0), set(sizes)
    each = [sorted({size for size in (1, n - 1, n) if size >= 1}) for n in map(int, most)]
    return [found for found in itertools.product(*each) if found in known]


def laws_of(corners: Mapping[Sizes, np.ndarray]) -> dict[tuple[bool, ...], Law]:
    """Return how a tensor's elements grow with the sizes, for each set of dimensions of size 1."""
    groups: dict[tuple[bool, ...], dict[Sizes, np.ndarray]] = {}
    for sizes, array in corners.items():
        groups.setdefault(ones_of(sizes), {})[sizes] = array
    ranks = {ones: {array.ndim for array in group.values()} for ones, group in groups.items()}
    return {ones: Law(group) for ones, group in groups.items() if len(ranks[ones]) == 1}


def begin_alike(arrays: Sequence[np.ndarray]) -> bool:
    """Whether arrays have the same numbers at all indices that all of them have."""
    if len({array.ndim for array in arrays}) > 1:
        return False
    common = tuple(map(slice, np.min([array.shape for array in arrays], 0)))
    first = arrays[0][common]
    is_float = first.dtype.kind == "f"
    return all(np.array_equal(each[common], first, equal_nan=is_float) for each in arrays)


def are_same(arrays: Sequence[np.ndarray]) -> bool:
    """Whether arrays have the same shape and the same numbers."""
    return len({array.shape for array in arrays}) == 1 and begin_alike(arrays)


class _Fit:
    """The function of the inputs' sizes that fits given numbers best, by least squares.

    In each dimension, the given sizes are either all 1 or all larger than 1.
    """

    def __init__(self, group: Mapping[Sizes, np.ndarray]) -> None:
        self._sizes = list(group)
        arrays = [np.asarray(array) for array in group.values()]
        self._shape = arrays[0].shape
        with np.errstate(invalid="ignore"):
            self._values = np.array([array.reshape(-1) for array in arrays], np.float64)
        # Numbers that are equal for all sizes are not fitted. If they are large or infinite, they
        # would spoil the fit of the other numbers.
        self._are_equal = _is_close(self._values, self._values[:1], 0.0).all(0)
        self._are_bools = arrays[0].dtype == np.bool_
        wanted = np.where(self._are_equal, 0, self._values)
        self._can_fit = np.isfinite(wanted).all(0)
        wanted = np.where(self._can_fit, wanted, 0)
        self._factors = np.linalg.lstsq(self._columns(self._sizes), wanted, rcond=None)[0]

    def uneven(self) -> tuple[Sizes, Sizes] | None:
        if self._are_bools or not self._can_fit.all():
            wrong = ~self._are_equal
        else:
            fitted = self._columns(self._sizes) @ self._factors
            near = _is_close(fitted, np.where(self._are_equal, 0, self._values))
            wrong = ~near.all(0)
        if not wrong.any():
            return None
        values = self._values[:, int(np.argmax(wrong))]
        # The error message compares two combinations of sizes. In the first, the number has the
        # value that occurs for the fewest combinations. The second is the nearest combination with
        # another value.
        _, places, counts = np.unique(
            values, return_inverse=True, return_counts=True, equal_nan=True
        )
        rare = int(np.argmin(counts[places]))
        other = next(i for i in _beside(rare, len(values)) if places[i] != places[rare])
        return self._sizes[rare], self._sizes[other]

    def at(self, sizes: Sizes) -> np.ndarray:
        fitted = (self._columns([sizes]) @ self._factors)[0]
        found: np.ndarray = np.where(self._are_equal, self._values[0], fitted)
        return found.reshape(self._shape)

    def _columns(self, sizes: list[Sizes]) -> np.ndarray:
        """The values of the terms of the fitted function: a constant, the sizes, and their
        product.
        """
        given = np.array(sizes, np.float64).reshape(len(sizes), -1)
        columns = [np.ones(len(sizes)), *given.T]
        if given.shape[1] > 1:
            columns.append(given.prod(1))
        return np.stack(columns, 1)


def _beside(index: int, count: int) -> Iterator[int]:
    """All indices below `count` except `index`, sorted by their distance to it."""
    yield from sorted((i for i in range(count) if i != index), key=lambda i: abs(i - index))


def _is_close(given: np.ndarray, wanted: np.ndarray, tolerance: float = _TOLERANCE) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        near = np.abs(given - wanted) <= tolerance * np.maximum(np.abs(wanted), 1)
        found: np.ndarray = near | (given == wanted) | (np.isnan(given) & np.isnan(wanted))
    return found
