"""Specifications of the inputs and outputs of a served model, and checks of client inputs."""

from __future__ import annotations

import functools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._native.runtime import Port
from ...errors import InputError, cut, did_you_mean
from ...execution.strings import DTYPE


@dataclass(frozen=True)
class TensorSpec:
    """The specification of an input or an output.

    Attributes
    ----------
    name: name of the tensor.
    dtype: NumPy name of the type; `object` for strings.
    shape: sizes of the tensor; -1 for a size that can differ between requests.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def takes(self, array: np.ndarray) -> bool:
        """Return whether an array has the specified type and shape."""
        if array.dtype != self._numpy_dtype or len(array.shape) != len(self.shape):
            return False
        sizes = zip(self.shape, array.shape, strict=True)
        return array.shape == self.shape or all(wanted in (-1, size) for wanted, size in sizes)

    @functools.cached_property
    def _numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    def __str__(self) -> str:
        return f"`{self.name}` ({self.dtype} of shape {self.shape})"


def specs_of(
    ports: Sequence[Sequence[Port]],
    open_axes: Mapping[int, int] | None = None,
    strings: Container[int] = (),
    has_rows: bool = False,
) -> tuple[TensorSpec, ...]:
    """Return the specifications of the inputs or outputs of a model.

    Parameters
    ----------
    ports: the inputs, or the outputs, for each set of shapes that the model was compiled for.
    open_axes: the axis whose size depends on values of the inputs, keyed by the position of the
        output. Outputs without such an axis are left out.
    strings: the positions of the tensors that are strings.
    has_rows: whether the first axis is the rows of a batch, of which a request may have fewer.
    """
    found = []
    rows = 0 if has_rows else None
    for i, each in enumerate(zip(*ports, strict=True)):
        sizes = zip(*(port.shape for port in each), strict=True)
        shape = tuple(
            size[0] if len(set(size)) == 1 and axis not in ((open_axes or {}).get(i), rows) else -1
            for axis, size in enumerate(sizes)
        )
        dtype = DTYPE if i in strings else each[0].dtype
        found.append(TensorSpec(each[0].name, dtype, shape))
    return tuple(found)


def check_names_and_types(
    model: str, specs: Sequence[TensorSpec], given: Mapping[str, np.ndarray]
) -> None:
    """Check the names, types and shapes of inputs against the specifications of a model.

    Raises
    ------
    InputError
        An input is unknown, missing, or has another type or shape; the message names it.
    """
    names = [spec.name for spec in specs]
    for name in given:
        if name not in names:
            raise InputError(
                f"model `{model}` has no input `{cut(name)}`{did_you_mean(name, names)}; its "
                f"inputs are {', '.join(map(str, specs))}"
            )
    for spec in specs:
        array = given.get(spec.name)
        if array is None:
            raise InputError(f"model `{model}` was given no input `{spec.name}`; it needs {spec}")
        if not spec.takes(array):
            raise InputError(
                f"model `{model}` needs input {spec}, got {array.dtype} of shape {array.shape}"
            )
