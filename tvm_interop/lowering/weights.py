"""A table of a program's constants that stores equal constants once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import tvm


def is_supported_dtype(dtype: str) -> bool:
    """Whether NumPy itself has the type `dtype`; it lacks bfloat16 and the floats of 8 bits."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        return False
    # Other packages may add types to NumPy, but libraries cannot read arrays of such types.
    return found.isbuiltin == 1 and found.kind in "biuf"


class WeightTable:
    """Assigns each constant a value of the program; equal constants get the same value.

    Attributes
    ----------
    arrays: the constants, by the index of their value.
    """

    def __init__(self) -> None:
        self.arrays: dict[int, np.ndarray] = {}
        self._by_content: dict[tuple[tuple[int, ...], str, bytes], int] = {}

    def index_of(
        self, tensor: tvm.runtime.Tensor, add: Callable[[tuple[int, ...], str], int]
    ) -> int:
        """The index of the value that holds `tensor`.

        If no value holds `tensor` yet, `add(shape, dtype)` makes a new value and returns its index.
        """
        array = np.from_dlpack(tensor)  # No copy: weights may take gigabytes.
        dtype = str(tensor.dtype)
        key = (array.shape, dtype, hashlib.sha256(array.reshape(-1).view(np.uint8).data).digest())
        if key not in self._by_content:
            index = add(array.shape, dtype)
            self._by_content[key] = index
            self.arrays[index] = array
        return self._by_content[key]
