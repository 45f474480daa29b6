"""Runs a model for any number of rows in a range.

The inputs are padded to the next larger number of rows that the model was compiled for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .._native.runtime import Port
from ..errors import CannotFillUpError, InputError
from ..program.row_axis import axes_of_ranges, next_larger


class RowRange:
    """Knows on which axes a model's rows lie, and for which numbers of rows it was compiled.

    A model may have one or two dimensions with a range of sizes. If it has two, such as the batch
    and the length of its sequences, then a "number of rows" is a pair of sizes.

    Attributes
    ----------
    dimensions: the names of the dimensions with a range of sizes, such as `batch`. Their sizes are
        the numbers of rows. A dimension whose rows are the positions of a sequence comes last.
    sizes: for each of the model's sets of input shapes, the number of rows of each dimension.
    """

    def __init__(
        self,
        ranges: Mapping[str, Sequence[int]],
        inputs: Sequence[Sequence[Port]],
        outputs: Sequence[Sequence[Port]],
        masks: Mapping[str, str] | None = None,
    ) -> None:
        """Find the axes along which the rows lie.

        Parameters
        ----------
        ranges: the number of rows of each set of input shapes, by the dimension's name.
        inputs, outputs: the inputs and outputs for each set of input shapes.
        masks: for each input that is a mask, by name, the positions at which it must be 1, so that
            a run may be padded: `first`, `any`, `all`, or `nowhere` (see
            `artifact.manifest.RowMask`). Masks are padded with 0.
        """
        positions = {port.name: i for i, port in enumerate(inputs[0])}
        self._masks = {positions[name]: one_at for name, one_at in (masks or {}).items()}
        self.dimensions = tuple(ranges)
        self.sizes: list[tuple[int, ...]] = list(zip(*ranges.values(), strict=True))
        self._first = inputs[0], outputs[0]
        # The axis of each dimension, for each input and output.
        self._axes = tuple(
            [
                axes_of_ranges([port.shape for port in each], self.sizes)
                for each in zip(*ports, strict=True)
            ]
            for ports in (inputs, outputs)
        )

    def in_words(self, rows: Sequence[int]) -> str:
        """Numbers of rows as a text, such as `7 rows` or `batch 2 and seq 7`."""
        if len(rows) == 1:
            return f"{rows[0]} rows"
        return " and ".join(f"{d} {n}" for d, n in zip(self.dimensions, rows, strict=True))

    @property
    def sizes_in_words(self) -> str:
        """The compiled sizes as a text, such as `1, 8` or `batch 1, 8 and seq 1, 34, 128`."""
        each = [", ".join(map(str, sorted(set(s)))) for s in zip(*self.sizes, strict=True)]
        if len(each) == 1:
            return each[0]
        return " and ".join(f"{d} {s}" for d, s in zip(self.dimensions, each, strict=True))

    @property
    def limits_in_words(self) -> str:
        """The ranges as a text, such as `1 to 8` or `batch 1 to 8 and seq 1 to 128`."""
        each = [f"{min(s)} to {max(s)}" for s in zip(*self.sizes, strict=True)]
        if len(each) == 1:
            return each[0]
        return " and ".join(f"{d} {s}" for d, s in zip(self.dimensions, each, strict=True))

    def _known_axes(self, position: int, *, is_output: bool) -> list[tuple[int, int, int]]:
        """Find which axes of an input or output have a range of sizes.

        Return a triple for each axis with a range: the index of its dimension in `dimensions`, the
        axis, and how many elements along the axis make up one row.
        """
        shape, first = self._first[is_output][position].shape, self.sizes[0]
        return [
            (number, axis, shape[axis] // first[number])
            for number, axis in enumerate(self._axes[is_output][position])
            if axis is not None
        ]

    def open_shape(self, port: Port, position: int, *, is_output: bool) -> tuple[int | str, ...]:
        """The shape of an input or output, with names in place of sizes that have a range."""
        shape: list[int | str] = list(port.shape)
        for number, axis, each in self._known_axes(position, is_output=is_output):
            name = self.dimensions[number]
            shape[axis] = name if each == 1 else f"{each}*{name}"
        return tuple(shape)

    def rows_of(
        self, shapes: Mapping[int, tuple[int, ...]], current: Sequence[int]
    ) -> tuple[int, ...] | None:
        """The number of rows that inputs of the given shapes have, for each dimension with a range.

        The keys of `shapes` are the inputs' positions. A dimension that none of these inputs has
        keeps its `current` number of rows. The result is None in three cases: an input does not
        have the rank of the model's input, its size differs along an axis without rows, or no input
        has rows.

        Raises
        ------
        InputError
            Two inputs have different numbers of rows.
        """
        found: dict[int, tuple[int, str]] = {}
        for i, shape in shapes.items():
            port, known = self._first[False][i], self._known_axes(i, is_output=False)
            own = {axis for _, axis, _ in known}
            others = [a for a in range(len(port.shape)) if a not in own]
            if known and len(shape) != len(port.shape):
                return None
            if known and any(shape[a] != port.shape[a] for a in others):
                return None
            for number, axis, each in known:
                rows, rest = divmod(shape[axis], each)
                if rest:
                    return None
                before, name = found.setdefault(number, (rows, port.name))
                if before != rows:
                    dimension = self.dimensions[number]
                    raise InputError(
                        f"input `{name}` has {dimension} {before}, and input `{port.name}` has "
                        f"{dimension} {rows}: give all inputs the same {dimension}"
                    )
        if not found:
            return None
        return tuple(found[n][0] if n in found else rows for n, rows in enumerate(current))

    def check_shapes(self, shapes: Mapping[int, tuple[int, ...]]) -> None:
        """Raise an error for the first input whose shape fits no number of rows of the model.

        Parameters
        ----------
        shapes: the shapes of inputs, by their positions.

        Raises
        ------
        InputError
            An input's shape fits no number of rows; the message names the input.
        """
        for i, shape in shapes.items():
            port = self._first[False][i]
            wanted = self.open_shape(port, i, is_output=False)
            if len(shape) != len(wanted) or any(
                isinstance(size, int) and size != given
                for size, given in zip(wanted, shape, strict=True)
            ):
                raise InputError(
                    f"input `{port.name}` has shape {shape}, and the model was compiled for "
                    f"({', '.join(map(str, wanted))}): give it this shape"
                )

    def shape_for(self, rows: Sequence[int]) -> int:
        """The index of the set of input shapes on which inputs with `rows` rows run.

        The chosen set has the next larger compiled size of each dimension (see `next_larger`).

        Raises
        ------
        InputError
            A number of rows is out of its range.
        """
        limits = zip(
            rows, *(map(f, zip(*self.sizes, strict=True)) for f in (min, max)), strict=True
        )
        if not all(least <= count <= most for count, least, most in limits):
            of = f" of `{self.dimensions[0]}`" if len(self.dimensions) == 1 else ""
            advice = "compile it for a larger range, or divide the inputs"
            if 0 in rows:
                advice = "an empty input has no run, so leave the run out"
            raise InputError(
                f"the inputs have {self.in_words(rows)}, and the model was compiled for "
                f"{self.limits_in_words}{of}: {advice}"
            )
        return next_larger(self.sizes, rows)

    def port(self, port: Port, position: int, rows: Sequence[int], *, is_output: bool) -> Port:
        """The input or output `port`, with the shape that it has for the numbers of rows `rows`."""
        shape = list(port.shape)
        for number, axis, each in self._known_axes(position, is_output=is_output):
            shape[axis] = rows[number] * each
        return Port(port.value, port.name, tuple(shape), port.dtype)

    def filled(self, array: np.ndarray, position: int, port: Port) -> np.ndarray:
        """Pad an input to the shape of `port`, with copies of its last row.

        Padding with a copy of a given row is safe: if the model uses its values as indices, they
        are within range. A mask is padded with 0 along the positions of a sequence, and along the
        other dimension with copies of its last row. `check_mask` checks whether a mask may be
        padded.
        """
        for number, axis, _ in reversed(self._known_axes(position, is_output=False)):
            given, wanted = array.shape[axis], port.shape[axis]
            if given == wanted:
                continue
            filled = np.empty((*array.shape[:axis], wanted, *array.shape[axis + 1 :]), array.dtype)
            filled[_along(axis, 0, given)] = array
            if position in self._masks and number == len(self.dimensions) - 1:
                filled[_along(axis, given, None)] = 0
            else:
                filled[_along(axis, given, None)] = array[_along(axis, given - 1, given)]
            array = filled
        return array

    def check_mask(self, array: np.ndarray, position: int, port: Port) -> None:
        """If the input is a mask, check that a run may be padded with the mask's values.

        Raises
        ------
        CannotFillUpError
            The input is a mask, and with its values a padded run could give wrong results.
        """
        one_at, axes = self._masks.get(position, "nowhere"), self._axes[False][position]
        axis = axes[-1]
        if one_at == "nowhere" or axis is None or array.shape[axis] == port.shape[axis]:
            return
        are_in_range = bool(((array >= 0) & (array <= 1)).all())
        ones = array == 1
        # If two dimensions have ranges, each row of the first dimension is a sequence. A mask whose
        # 1 may be at any position must then contain a 1 for each sequence.
        kept = axes[0] if len(axes) == 2 else None
        over = tuple(a for a in range(array.ndim) if a != kept)
        if one_at == "any":
            is_one = ones.any(over).all()
        else:
            is_one = (ones if one_at == "all" else ones[_along(axis, 0, 1)]).all()
        if are_in_range and is_one:
            return
        name = self.dimensions[-1]
        where = {"first": f"at the first {name}", "all": f"at all {name}"}.get(one_at, "somewhere")
        if one_at == "any" and kept is not None:
            where += f" for each {self.dimensions[0]}"
        sizes = ", ".join(map(str, sorted({size[-1] for size in self.sizes})))
        raise CannotFillUpError(
            f"input `{port.name}` is a mask, and a run of {array.shape[axis]} {name} is padded: "
            f"the mask's numbers must then be from 0 to 1, and 1 {where}",
            f". Give such a mask, or one of the sizes that need no padding, {sizes}",
        )

    def of_rows(
        self, array: np.ndarray, position: int, rows: Sequence[int], *, is_output: bool
    ) -> np.ndarray:
        """The first `rows` rows of an input or output, without a copy."""
        for number, axis, each in self._known_axes(position, is_output=is_output):
            array = array[_along(axis, 0, rows[number] * each)]
        return array


def _along(axis: int, begin: int, end: int | None) -> tuple[slice, ...]:
    """An index that selects the elements from `begin` to `end` along an axis."""
    return (*[slice(None)] * axis, slice(begin, end))
