"""Runs a model for any number of rows, at the next larger number that it was compiled for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .._native.runtime import Port
from ..errors import InputError
from ..program.row_axis import axis_of_rows


class RowRange:
    """Where the rows of a model lie, and the numbers of rows that it was compiled for.

    Attributes
    ----------
    dimension: the name of the dimension whose size is the number of rows, such as `batch`.
    sizes: the number of rows of each of the model's sets of input shapes.
    """

    def __init__(
        self,
        dimension: str,
        sizes: Sequence[int],
        inputs: Sequence[Sequence[Port]],
        outputs: Sequence[Sequence[Port]],
        masks: Mapping[str, str] | None = None,
    ) -> None:
        """Find where the rows lie.

        Parameters
        ----------
        inputs, outputs: the inputs and outputs for each set of input shapes.
        masks: where the inputs that are filled up with 0 must be 1, by their names: at the `first`
            position, at `any`, or `nowhere` (see `artifact.manifest.RowMask`).
        """
        positions = {port.name: i for i, port in enumerate(inputs[0])}
        self._masks = {positions[name]: one_at for name, one_at in (masks or {}).items()}
        self.dimension, self.sizes = dimension, tuple(sizes)
        self._first = inputs[0], outputs[0]
        self._axes = tuple(
            [
                axis_of_rows([port.shape for port in each], sizes)
                for each in zip(*ports, strict=True)
            ]
            for ports in (inputs, outputs)
        )

    def each(self, position: int, *, is_output: bool) -> int:
        """The number of indices of that axis that belong to one row."""
        axis = self._axes[is_output][position]
        assert axis is not None
        return self._first[is_output][position].shape[axis] // self.sizes[0]

    def open_shape(self, port: Port, position: int, *, is_output: bool) -> tuple[int | str, ...]:
        """The shape of an input or output, with the dimension's name where its size may vary."""
        axis = self._axes[is_output][position]
        if axis is None:
            return port.shape
        each = self.each(position, is_output=is_output)
        name = self.dimension if each == 1 else f"{each}*{self.dimension}"
        return (*port.shape[:axis], name, *port.shape[axis + 1 :])

    def rows_of(self, shapes: Mapping[int, tuple[int, ...]]) -> int | None:
        """The number of rows of inputs of these shapes, by the inputs' positions.

        None if the shapes do not agree, or no input among them has rows.
        """
        found = set()
        for i, shape in shapes.items():
            wanted, axis = self._first[False][i].shape, self._axes[False][i]
            if axis is None:
                continue
            if len(shape) != len(wanted):
                return None
            rows, rest = divmod(shape[axis], self.each(i, is_output=False))
            others = [a for a in range(len(shape)) if a != axis]
            if rest or any(shape[a] != wanted[a] for a in others):
                return None
            found.add(rows)
        return found.pop() if len(found) == 1 else None

    def shape_for(self, rows: int) -> int | None:
        """The set of input shapes that runs `rows` rows; None if they are out of the range."""
        larger = [size for size in self.sizes if size >= rows]
        if rows < min(self.sizes) or not larger:
            return None
        return self.sizes.index(min(larger))

    def port(self, port: Port, position: int, rows: int, *, is_output: bool) -> Port:
        """The input or output `port` as it is for `rows` rows."""
        axis = self._axes[is_output][position]
        if axis is None:
            return port
        length = rows * self.each(position, is_output=is_output)
        shape = (*port.shape[:axis], length, *port.shape[axis + 1 :])
        return Port(port.value, port.name, shape, port.dtype)

    def filled(self, array: np.ndarray, position: int, port: Port) -> np.ndarray:
        """An input with its last row repeated until it has the shape of `port`; a mask with 0.

        A repeated row is as valid as the others: it has no index that is out of range. `check_mask`
        says whether a mask may be filled up.
        """
        axis = self._axes[False][position]
        if axis is None or array.shape == port.shape:
            return array
        given = array.shape[axis]
        is_mask = position in self._masks
        filled = np.empty(port.shape, array.dtype)
        filled[_along(axis, 0, given)] = array
        if not is_mask:
            filled[_along(axis, given, None)] = array[_along(axis, given - 1, given)]
        else:
            filled[_along(axis, given, None)] = 0
        return filled

    def check_mask(self, array: np.ndarray, position: int, port: Port) -> None:
        """Check an input that is a mask and will be filled up to the shape of `port`.

        Raises
        ------
        InputError
            The input is a mask with which runs must not be filled up.
        """
        one_at, axis = self._masks.get(position, "nowhere"), self._axes[False][position]
        if one_at == "nowhere" or axis is None or array.shape == port.shape:
            return
        are_in_range = bool(((array >= 0) & (array <= 1)).all())
        ones = array == 1
        is_one = ones[_along(axis, 0, 1)].all() if one_at == "first" else ones.any()
        if are_in_range and is_one:
            return
        where = f"at the first {self.dimension}" if one_at == "first" else "somewhere"
        sizes = ", ".join(map(str, sorted(self.sizes)))
        raise InputError(
            f"input `{port.name}` is a mask, and a run of {array.shape[axis]} {self.dimension} is "
            f"filled up: then its numbers must be from 0 to 1, and 1 {where}. Give such a mask, or "
            f"one of the sizes that are not filled up, {sizes}"
        )

    def of_rows(
        self, array: np.ndarray, position: int, rows: int, *, is_output: bool
    ) -> np.ndarray:
        """The first `rows` rows of an input or output, without a copy."""
        axis = self._axes[is_output][position]
        if axis is None:
            return array
        return array[_along(axis, 0, rows * self.each(position, is_output=is_output))]


def _along(axis: int, begin: int, end: int | None) -> tuple[slice, ...]:
    """The index of all elements from `begin` to `end` along an axis."""
    return (*[slice(None)] * axis, slice(begin, end))
