"""Checks tensors of the caller. They lie in the host's memory, or on the module's own device."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._native.runtime import Port
from ..errors import InputError, first_line
from .arrays import as_array, refuse_unresolved
from .instance import PlanInstance

_CPU = 1
"""DLPack's number for the host's memory."""


def as_input(value: Any, expected: Port, instance: PlanInstance) -> Any:
    """Return `value` in a form that `instance.write` takes for the input `expected`.

    A tensor on a device of the instance's kind, such as a PyTorch tensor on a GPU, is returned
    unchanged. Any other `value` is returned as an array.

    Raises
    ------
    InputError
        `value` cannot be read as an array, is not contiguous, or does not have the shape and dtype
        of `expected`. Or it is on a device of another kind than the instance's device, and not on
        the host.
    """
    if not is_beside(value, instance):
        return as_array(value, expected, "input")
    _check_on_device(value, expected, f"input `{expected.name}`")
    return value


def as_device_output(value: Any, expected: Port) -> Any:
    """Return `value`, a tensor on a device, after a check that `expected` can be copied into it.

    Raises
    ------
    InputError
        `value` cannot be written to, is not contiguous, or does not have the shape and dtype of
        `expected`.
    """
    _check_on_device(value, expected, f"`out` for output `{expected.name}`")
    return value


def _check_on_device(value: Any, expected: Port, what: str) -> None:
    refuse_unresolved(value, what)
    import tvm_ffi

    try:
        tensor = tvm_ffi.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{what} cannot be read from a `{type(value).__name__}`: {first_line(error)}; give a "
            "NumPy array, or a contiguous tensor"
        ) from error
    if tuple(tensor.shape) != expected.shape or str(tensor.dtype) != expected.dtype:
        raise InputError(
            f"{what} must be {expected.dtype} of shape {expected.shape}, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    if not tensor.is_contiguous():
        raise InputError(f"{what} is not contiguous; give a contiguous tensor")


def is_beside(value: Any, instance: PlanInstance) -> bool:
    """Whether `value` is a tensor on the instance's kind of device; False if it is on the host."""
    return is_on_device(value) and _device_of(value) == instance.dlpack_device_type


def is_on_device(value: Any) -> bool:
    """Whether `value` is a tensor in the memory of a device such as a GPU."""
    return (
        not isinstance(value, np.ndarray)
        and hasattr(value, "__dlpack_device__")
        and _device_of(value) != _CPU
    )


def _device_of(value: Any) -> int:
    try:
        return int(value.__dlpack_device__()[0])
    except (BufferError, RuntimeError, TypeError, ValueError):
        # DLPack cannot name the tensor's device. `as_array` then raises an error that says so.
        return _CPU
