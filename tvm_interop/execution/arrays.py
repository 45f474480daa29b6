"""What callers give as inputs and take as outputs: arrays and tensors of any library."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tvm_ffi

from ..errors import InputError, first_line
from ..plan.plan import PlannedValue
from ..program.host_memory import aligned_empty
from .cpu import as_tensor


class HostTensor(np.ndarray):
    """An array under the names of TVM's tensors, for programs that do not import TVM."""

    def numpy(self) -> np.ndarray:
        """The same memory as a plain array."""
        return self.view(np.ndarray)

    def copyfrom(self, source: Any) -> HostTensor:
        """Copy the values of an array or a tensor of this shape into this one, and return it."""
        np.copyto(self, _array_over(source, "the source"))
        return self

    def copyto(self, target: Any) -> Any:
        """Copy the values into `target`, a tensor of TVM or an array, and return that."""
        return copied_out(self.numpy(), target)


def _array_of_tensor(self: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    """A tensor's values, as NumPy asks for them."""
    if copy is False:
        raise ValueError("a TVM tensor is copied into an array; np.from_dlpack reads it in place")
    array: np.ndarray = self.numpy()
    return array if dtype is None else array.astype(dtype, copy=False)


def described(value: PlannedValue) -> str:
    """An input or output as messages name it."""
    return f"`{value.name}` ({value.dtype} of shape {value.shape})"


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of an array, a tensor, or a list of numbers."""
    shape = getattr(value, "shape", None)
    return tuple(np.shape(value) if shape is None else (int(size) for size in shape))


def as_array(value: Any, expected: PlannedValue, kind: str) -> np.ndarray:
    """What was given for `expected`, as an array: a tensor's own memory where it can be read.

    Parameters
    ----------
    kind: what `expected` is, for messages, such as `input`.

    Raises
    ------
    InputError
        It is no array, is in another device's memory, or has another shape or type.
    """
    if value is None:
        raise InputError(f"{kind} `{expected.name}` was given no value")
    array = _array_over(value, f"{kind} `{expected.name}`")
    if array.shape != expected.shape or str(array.dtype) != expected.dtype:
        raise InputError(
            f"{kind} `{expected.name}` must be {expected.dtype} of shape {expected.shape}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array


def copied_out(array: np.ndarray, out: Any) -> Any:
    """`array` copied into `out`, which is returned; into a new tensor where `out` is None.

    That is one of TVM where TVM is imported, and a `HostTensor` elsewhere: importing TVM takes
    longer than running most models.

    Parameters
    ----------
    out: an array, or a tensor of any library that speaks DLPack, on any device that TVM knows.

    Raises
    ------
    InputError
        `out` has another shape or type, or cannot be written to.
    """
    if out is None:
        copy = aligned_empty(array.shape, array.dtype)
        np.copyto(copy, array)
        return _new_tensor(copy)
    if isinstance(out, np.ndarray):
        _check_out(out, array)
        if not out.flags.writeable:
            raise InputError("`out` is a read-only array; give one that can be written to")
        np.copyto(out, array)
        return out
    tensor = _tensor_over(out)
    _check_out(tensor, array)
    tensor.copyfrom(array)
    return out


def _new_tensor(array: np.ndarray) -> Any:
    if "tvm" not in sys.modules:
        return array.view(HostTensor)
    tensor = as_tensor(array)
    if not hasattr(type(tensor), "__array__"):
        # TVM's class has none, and cannot be derived from: the library makes its objects itself. Of
        # what lacks it `np.asarray` makes an array of one object, and says nothing.
        type(tensor).__array__ = _array_of_tensor
    return tensor


def _array_over(value: Any, what: str) -> np.ndarray:
    """An array over the memory of `value`; of a list of numbers, a new one."""
    if isinstance(value, np.ndarray):
        return value
    try:
        if not hasattr(value, "__dlpack__"):
            return np.asarray(value)
        _refuse_gradients(value, what)
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{what} cannot be read from a `{type(value).__name__}`: {first_line(error)}; give a "
            "NumPy array, or a tensor in the host's memory"
        ) from error


def _tensor_over(out: Any) -> Any:
    """A TVM tensor over the memory of `out`."""
    if hasattr(out, "copyfrom"):  # Of TVM.
        return out
    if not hasattr(out, "__dlpack__"):
        raise InputError(
            f"`out` is a `{type(out).__name__}`; give an array or a tensor to write to"
        )
    _refuse_gradients(out, "`out`")
    try:
        tensor = tvm_ffi.from_dlpack(out)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"`out` cannot be written to: {first_line(error)}; give a NumPy array"
        ) from error
    if not tensor.is_contiguous():
        raise InputError("`out` is not contiguous; give a contiguous tensor")
    return tensor


def _refuse_gradients(value: Any, what: str) -> None:
    if getattr(value, "requires_grad", False):
        raise InputError(
            f"{what} is a tensor that requires grad, and no gradients are computed here: give its "
            "`.detach()`"
        )


def _check_out(out: Any, array: np.ndarray) -> None:
    if tuple(out.shape) != array.shape or str(out.dtype) != str(array.dtype):
        raise InputError(
            f"`out` must be {array.dtype} of shape {array.shape}, "
            f"got {out.dtype} of shape {tuple(out.shape)}"
        )
