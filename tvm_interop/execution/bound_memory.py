"""Checks memory that belongs to the caller, before a model reads or writes it in place."""

from __future__ import annotations

import numpy as np

from ..errors import InputError
from ..program.host_memory import ALIGNMENT


def check_alignment(name: str, array: np.ndarray, alignment: int = ALIGNMENT) -> None:
    """Check that kernels can use the memory of `array` in place, for the tensor `name`.

    Raises
    ------
    InputError
        The memory is not contiguous, or its address is not a multiple of `alignment` bytes.
    """
    if not array.flags.c_contiguous or array.ctypes.data % alignment != 0:
        raise InputError(
            f"`{name}`: zero copy needs contiguous memory at an address that is a multiple of "
            f"{alignment}; allocate it with tvm_interop.aligned_empty, or use set_input or "
            "get_output, which copy"
        )
