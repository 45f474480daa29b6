"""The host's memory: its size, and arrays at aligned addresses as kernels need them."""

from __future__ import annotations

import functools
import math
import os

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""The address of every tensor, except the caller's inputs, is a multiple of this many bytes. So
vector instructions access as few cache lines as possible. In artifacts of older versions, the
caller's inputs must have such addresses too, because the kernels in them rely on it."""


@functools.cache
def memory_nbytes() -> int:
    """Return the size of this machine's memory, without swap space.

    The system may promise a process more memory than this size, and kill the process when it uses
    the memory.
    """
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """Return an uninitialised array whose address is a multiple of 64 bytes.

    A run can read the returned array as an input without copying it (see
    `GraphModule.set_input_zero_copy`).

    Examples
    --------
    >>> aligned_empty((1, 3), "float32").ctypes.data % 64
    0
    """
    if dtype == "bfloat16":
        import ml_dtypes  # noqa: F401  The import makes `bfloat16` known to NumPy.
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    array: np.ndarray = np.ndarray(shape, dtype, memory, start)
    return array


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """`array` if it is contiguous, writable and aligned; else a copy with these properties."""
    if array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy
