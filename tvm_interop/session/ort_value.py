"""`OrtValue` for programs that run where onnxruntime is not installed."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from ..execution.arrays import HostTensor
from .ort_memory import dtype_of
from .tensor_info import TensorInfo


class OrtValue:
    """A tensor in the host's memory, with the methods of onnxruntime's class of this name."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Any, /, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return a value that uses the memory of an array.

        Raises
        ------
        InputError
            The device is not the CPU.
        """
        _check_device(device_type)
        return cls(np.ascontiguousarray(numpy_obj).reshape(np.shape(numpy_obj)))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any = np.float32,
        device_type: str = "cpu",
        device_id: int = 0,
    ) -> OrtValue:
        """Return a value with memory of its own, which holds zeros at first.

        Parameters
        ----------
        element_type: a type of NumPy, or ONNX's number of a type.

        Raises
        ------
        InputError
            The device is not the CPU.
        """
        _check_device(device_type)
        return cls(np.zeros(tuple(shape), dtype_of(element_type)))

    def numpy(self) -> np.ndarray:
        """Return the tensor as an array over the same memory."""
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self._array if dtype is None else self._array.astype(dtype, copy=False)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.view(HostTensor).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._array.__dlpack_device__()
        return int(kind), int(number)

    def shape(self) -> list[int]:
        """Return the size of each dimension."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Return onnxruntime's name of the type, such as `tensor(float)`."""
        return TensorInfo("", (), str(self._array.dtype)).type

    def element_type(self) -> int:
        """Return ONNX's number of the type."""
        import onnx

        return int(onnx.helper.np_dtype_to_tensor_dtype(self._array.dtype))

    def device_name(self) -> str:
        """Return `cpu`."""
        return "cpu"

    def data_ptr(self) -> int:
        """Return the address of the memory."""
        return self._array.ctypes.data

    def tensor_size_in_bytes(self) -> int:
        """Return the number of bytes of the tensor."""
        return self._array.nbytes

    def has_value(self) -> bool:
        """Return True."""
        return True

    def is_tensor(self) -> bool:
        """Return True."""
        return True

    def is_tensor_sequence(self) -> bool:
        """Return False."""
        return False

    def is_sparse_tensor(self) -> bool:
        """Return False."""
        return False

    def update_inplace(self, np_arr: Any) -> None:
        """Copy an array of the same shape into the tensor."""
        np.copyto(self._array, np_arr)


def _check_device(device_type: str) -> None:
    if device_type.lower() != "cpu":
        raise InputError(
            f"an OrtValue is made on the device `{device_type}`, and without onnxruntime there are "
            'values on the CPU only: give "cpu"'
        )


def as_ortvalue(value: Any) -> Any:
    """Return an array as an OrtValue over the same memory: onnxruntime's, if it is installed.

    Any other value, such as a tensor on a GPU, is returned as it is.
    """
    if not isinstance(value, np.ndarray):
        return value
    array = value.view(np.ndarray)
    try:
        theirs = importlib.import_module("onnxruntime.capi.onnxruntime_inference_collection")
    except ImportError:
        return OrtValue(array)
    kind = _keeping(theirs.OrtValue)
    if array.dtype != "bfloat16":
        return kind.ortvalue_from_numpy(array)
    import onnx

    words = array.view(np.uint16)
    return kind.ortvalue_from_numpy_with_onnx_type(words, onnx.TensorProto.BFLOAT16)


@functools.cache
def _keeping(theirs: Any) -> Any:
    """Return a subclass of onnxruntime's OrtValue whose arrays keep the memory of the value alive.

    An array of onnxruntime's own method uses the memory of the value too, but it does not keep the
    array that the value was made from.
    """

    def numpy(self: Any) -> np.ndarray:
        array: np.ndarray = self._numpy_obj
        is_bfloat16 = self.data_type() == "tensor(bfloat16)"
        return array.view("bfloat16") if is_bfloat16 else array

    def as_array(self: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return OrtValue(self.numpy()).__array__(dtype, copy)

    def dlpack(self: Any, **options: Any) -> Any:
        return self.numpy().view(HostTensor).__dlpack__(**options)

    methods = {"numpy": numpy, "__array__": as_array, "__dlpack__": dlpack}
    return type("OrtValue", (theirs,), {**methods, "__doc__": theirs.__doc__})
