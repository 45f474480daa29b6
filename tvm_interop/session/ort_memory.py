"""Makes arrays over memory that is described as onnxruntime's bindings describe it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InputError


def array_at(
    name: str,
    device_type: str,
    element_type: Any,
    shape: Sequence[int] | None,
    address: int,
    owner: Any = None,
) -> np.ndarray:
    """Return an array over the memory at an address.

    Parameters
    ----------
    name: the input or output for which the memory is given, for error messages.
    device_type: onnxruntime's name of the device of the memory; must be `cpu`.
    element_type: a type of NumPy, or ONNX's number of a type.
    owner: an object that lives as long as the array; None if the caller keeps the memory.

    Raises
    ------
    InputError
        The memory is on another device, or its type or shape is not given.
    """
    if device_type != "cpu":
        raise InputError(
            f"`{name}` is bound to an address on the device `{device_type}`: give a tensor on that "
            "device instead of its address, or an array"
        )
    if element_type is None or shape is None:
        raise InputError(
            f"`{name}` is bound to an address: give `element_type` and `shape` of the memory too"
        )
    dtype = dtype_of(element_type)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes == 0:
        return np.empty(tuple(shape), dtype)
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    memory.owner = owner
    array: np.ndarray = np.frombuffer(memory, np.uint8).view(dtype).reshape(tuple(shape))
    return array


def array_of_ortvalue(name: str, value: Any) -> Any:
    """Return an array over the memory of an `onnxruntime.OrtValue`.

    The array keeps the value alive.

    Another value, such as an output of a binding of this package, is returned as it is.

    Raises
    ------
    InputError
        The value is on another device than the CPU.
    """
    if not is_ortvalue(value):
        return value
    if value.data_type() == "tensor(string)":  # Its memory holds objects of C++.
        return value.numpy()
    return array_at(
        name, value.device_name(), value.element_type(), value.shape(), value.data_ptr(), value
    )


def is_ortvalue(value: Any) -> bool:
    """Whether a value has the methods of `onnxruntime.OrtValue`."""
    return hasattr(value, "device_name") and hasattr(value, "data_ptr")


def dtype_of(element_type: Any) -> np.dtype[Any]:
    """Return NumPy's type for a type of NumPy, or for ONNX's number of a type."""
    if isinstance(element_type, int):
        import onnx

        element_type = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    dtype: np.dtype[Any] = np.dtype(element_type)
    return dtype
