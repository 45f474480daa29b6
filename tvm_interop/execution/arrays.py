"""Converts inputs and outputs between NumPy arrays and the tensors of TVM and other libraries."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, first_line
from ..plain_data import is_whole
from ..program.host_memory import aligned_empty

if TYPE_CHECKING:
    from .._native.runtime import Port


_DLPACK_UINT, _DLPACK_BFLOAT = 1, 4
"""DLPack's codes for the types unsigned integer and bfloat16."""


class HostTensor(np.ndarray):
    """A NumPy array with the methods of a TVM tensor, for programs that do not import TVM."""

    def numpy(self) -> np.ndarray:
        """Return a plain NumPy array over the memory of this array."""
        return self.view(np.ndarray)

    def copyfrom(self, source: Any) -> HostTensor:
        """Copy an array or a tensor of the same shape into this array, and return this array."""
        np.copyto(self, _array_over(source, "the source"))
        return self

    def copyto(self, target: Any) -> Any:
        """Copy this array into `target`, a TVM tensor or an array, and return `target`."""
        return copied_out(self.numpy(), target)

    def __dlpack__(self, **options: Any) -> Any:
        """Return a DLPack capsule of this array; unlike NumPy's own method, also for bfloat16."""
        if self.dtype != "bfloat16":
            return super().__dlpack__(**options)
        return _retyped(self.view(np.uint16).__dlpack__(), _DLPACK_BFLOAT)


def _array_of_tensor(self: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    """Return a TVM tensor's values as an array; NumPy calls this as `__array__`."""
    if copy is False:
        raise ValueError("np.asarray always copies a TVM tensor; np.from_dlpack reads it in place")
    array: np.ndarray = self.numpy()
    return array if dtype is None else array.astype(dtype, copy=False)


def described(value: Port) -> str:
    """Return the name, dtype and shape of an input or output, as text for messages."""
    return f"`{value.name}` ({value.dtype} of shape {value.shape})"


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of an array, a tensor, or a list of numbers."""
    shape = getattr(value, "shape", None)
    return tuple(np.shape(value) if shape is None else (int(size) for size in shape))


def as_array(value: Any, expected: Port, kind: str) -> np.ndarray:
    """Return `value` as an array, and check that it has the shape and dtype of `expected`.

    If `value` is an array or a tensor, the result shares the memory of `value`.

    Parameters
    ----------
    kind: what messages call the tensor `expected`, such as `input` or `output`.

    Raises
    ------
    InputError
        `value` cannot be read as an array, is in the memory of a device such as a GPU, or does not
        have the shape and dtype of `expected`.
    """
    if value is None:
        raise InputError(f"{kind} `{expected.name}` was given no value")
    array = _array_over(value, f"{kind} `{expected.name}`")
    if array.shape != expected.shape or not has_dtype(array, expected.dtype):
        raise InputError(
            f"{kind} `{expected.name}` must be {expected.dtype} of shape {expected.shape}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array


def has_dtype(array: np.ndarray, name: str) -> bool:
    """Whether `name` is the dtype of `array`."""
    # Compare dtypes and not their names: this takes 0.1 us, and getting a name takes 4 us.
    dtype = _dtype_of(name)
    return array.dtype == dtype if dtype is not None else str(array.dtype) == name


@functools.cache
def _dtype_of(name: str) -> np.dtype[Any] | None:
    try:
        return np.dtype(name)
    except TypeError:  # No imported module defines this dtype for NumPy.
        return None


def writable_array(value: Any, expected: Port) -> np.ndarray:
    """Return an array over the memory of `value`, so that output `expected` can be written to it.

    Raises
    ------
    InputError
        `as_array` refuses `value`, or `value` is a read-only array.
    """
    array = as_array(value, expected, "output")
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        raise InputError(
            f"output `{expected.name}` cannot be written to a read-only array; give a copy of it"
        )
    return array


def copied_out(array: np.ndarray, out: Any) -> Any:
    """Copy `array` into `out` and return `out`; if `out` is None, return a new tensor.

    A new tensor is a TVM tensor if the program has imported TVM, otherwise a `HostTensor`. TVM is
    not imported for this, because importing it takes longer than running most models.

    Parameters
    ----------
    out: an array, or a tensor of any library that supports DLPack, on any device that TVM supports.

    Raises
    ------
    InputError
        `out` does not have the shape and dtype of `array`, or cannot be written to.
    """
    if out is None:
        copy = aligned_empty(array.shape, array.dtype)
        np.copyto(copy, array)
        return _new_tensor(copy)
    if isinstance(out, np.ndarray):
        _check_out(out, array)
        if not out.flags.writeable:
            raise InputError("`out` is a read-only array; give an array that can be written to")
        np.copyto(out, array)
        return out
    tensor = _tensor_over(out)
    _check_out(tensor, array)
    if hasattr(tensor, "copyfrom"):
        tensor.copyfrom(array)
    else:
        ctypes.memmove(tensor.data_ptr(), np.ascontiguousarray(array).ctypes.data, array.nbytes)
    return out


def _new_tensor(array: np.ndarray) -> Any:
    if "tvm" not in sys.modules:
        return array.view(HostTensor)
    from .cpu import as_tensor

    tensor = as_tensor(array)
    if array.dtype == "bfloat16":
        tensor = tensor._create_view(array.shape, "bfloat16")
    if not hasattr(type(tensor), "__array__"):
        # Without `__array__`, `np.asarray` silently makes an array whose only element is the
        # tensor object. The method is added to TVM's own class and not to a subclass, because TVM
        # creates the tensors and knows no subclass.
        type(tensor).__array__ = _array_of_tensor
    return tensor


def _array_over(value: Any, what: str) -> np.ndarray:
    """Return an array that shares the memory of `value`; for a list of numbers, a new array."""
    if isinstance(value, np.ndarray):
        return value
    try:
        if not hasattr(value, "__dlpack__"):
            return np.asarray(value)
        refuse_unresolved(value, what)
        return _array_of_bfloat16(value) if _is_bfloat16(value) else np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{what} cannot be read from a `{type(value).__name__}`: {first_line(error)}; give a "
            "NumPy array, or a tensor in the host's memory"
        ) from error


def _is_bfloat16(value: Any) -> bool:
    """Whether a tensor of another library has the type bfloat16."""
    return str(getattr(value, "dtype", "")).endswith("bfloat16")  # PyTorch writes torch.bfloat16.


class _Words:
    """Presents a tensor of bfloat16 as a tensor of uint16, which NumPy can read by DLPack."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._tensor.__dlpack_device__()
        return int(kind), int(number)

    def __dlpack__(self, **options: Any) -> Any:
        # Without options, `__dlpack__` returns a capsule without a version number, as `_retyped`
        # expects.
        del options
        return _retyped(self._tensor.__dlpack__(), _DLPACK_UINT)


def _retyped(capsule: Any, code: int) -> Any:
    """Change the element type of the tensor in an unread DLPack capsule, and return the capsule.

    Parameters
    ----------
    capsule: a capsule of DLPack's old form, which has no version number.
    code: DLPack's code of the new type, which must have as many bits as the old type.
    """
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # The capsule begins with DLPack's DLTensor, which has the type's code after the address (8
    # bytes), the device (8 bytes) and the number of dimensions (4 bytes).
    ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + 20).value = code
    return capsule


def _array_of_bfloat16(value: Any) -> np.ndarray:
    """Return an array that shares the memory of a tensor of bfloat16.

    NumPy itself refuses to read a tensor of bfloat16.
    """
    import ml_dtypes

    return np.from_dlpack(_Words(value)).view(ml_dtypes.bfloat16)


def _tensor_over(out: Any) -> Any:
    """Return a tensor that shares the memory of `out`.

    The tensor has TVM's method `copyfrom` if the program has imported TVM, or if the memory is on a
    device such as a GPU.
    """
    if hasattr(out, "copyfrom"):  # `out` is a TVM tensor.
        return out
    if not hasattr(out, "__dlpack__"):
        raise InputError(
            f"`out` is a `{type(out).__name__}`; give an array or a tensor to write to"
        )
    refuse_unresolved(out, "`out`")
    import tvm_ffi

    if out.__dlpack_device__()[0] != tvm_ffi.DLDeviceType.kDLCPU:
        import tvm  # noqa: F401  TVM adds the method `copyfrom`, which writes to devices.
    try:
        tensor = tvm_ffi.from_dlpack(out)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"`out` cannot be written to: {first_line(error)}; give a NumPy array"
        ) from error
    if not tensor.is_contiguous():
        raise InputError("`out` is not contiguous; give a contiguous tensor")
    return tensor


def refuse_unresolved(value: Any, what: str) -> None:
    """Refuse a PyTorch tensor that requires grad, or that PyTorch has not negated in memory yet.

    PyTorch negates some tensors only when they are read, such as the imaginary part of a conjugate.
    DLPack passes on the memory of such a tensor, but not the information that its values must still
    be negated.

    Raises
    ------
    InputError
        `value` is a PyTorch tensor that requires grad, or whose memory holds its values with the
        opposite sign.
    """
    if getattr(value, "requires_grad", False):
        raise InputError(
            f"{what} is a tensor that requires grad, and no gradients are computed here: give its "
            "`.detach()`"
        )
    is_negated = getattr(value, "is_neg", None)
    if callable(is_negated) and is_negated():
        raise InputError(
            f"{what} is a tensor that PyTorch has not negated yet, such as the imaginary part of a "
            "conjugate: give its `.resolve_neg()`"
        )


def _check_out(out: Any, array: np.ndarray) -> None:
    if tuple(out.shape) != array.shape or str(out.dtype) != str(array.dtype):
        raise InputError(
            f"`out` must be {array.dtype} of shape {array.shape}, "
            f"got {out.dtype} of shape {tuple(out.shape)}"
        )


def check_key(key: Any, kind: str) -> None:
    """Refuse a key that is neither the name nor the index of an input or output."""
    if not isinstance(key, str) and not is_whole(key):
        raise InputError(
            f"an {kind} is chosen by its name or its index, not by a `{type(key).__name__}`"
        )
