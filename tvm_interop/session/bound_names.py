"""The methods by which programs for onnxruntime bind memory to inputs and outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from .ort_memory import array_at, array_of_ortvalue


class BoundNames(ABC):
    """Binds memory under onnxruntime's names. A subclass decides how the memory is used."""

    @abstractmethod
    def _bind_input(self, name: str, array: Any) -> None:
        """From the next run on, read input `name` from the memory of `array`."""

    @abstractmethod
    def _bind_output(self, name: str, array: Any) -> Any:
        """From the next run on, write output `name` to the memory of `array`; None stands for new
        memory. Return the array that is written to.
        """

    @abstractmethod
    def _leave_on_device(self, name: str, device_type: str) -> None:
        """Leave output `name` in memory of this object's own on a device that is not the CPU."""

    def bind_cpu_input(self, name: str, array: Any) -> None:
        """Do the same as `bind_input`, under the name that onnxruntime has for binding an array."""
        self._bind_input(name, array)

    def bind_input(
        self,
        name: str,
        array: Any = None,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
        *,
        device_type: str = "cpu",
    ) -> None:
        """From the next run on, read input `name` from the memory of `array`.

        As in onnxruntime, the memory may also be given by its address: `bind_input(name, "cpu", 0,
        numpy.float32, shape, address)`. The caller keeps this memory as long as it is bound.

        Parameters
        ----------
        array: an array, or a tensor on the GPU that the model runs on. Or `device_type`.
        device_id: ignored. It exists because onnxruntime has this parameter.
        element_type: the type of the memory at `buffer_ptr`, as NumPy's type or ONNX's number.
        shape: the shape of the memory at `buffer_ptr`.
        buffer_ptr: the address of the memory.
        device_type: the device of the memory at `buffer_ptr`; must be `cpu`.

        Raises
        ------
        InputError
            There is no input of that name, or the memory has the wrong shape or dtype, or its
            address is on another device than the CPU.
        """
        memory = _memory(name, array, element_type, shape, buffer_ptr, device_type)
        self._bind_input(name, memory.array)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """From the next run on, read input `name` from an `onnxruntime.OrtValue` on the CPU."""
        self._bind_input(name, array_of_ortvalue(name, ortvalue))

    def bind_output(
        self,
        name: str,
        array: Any = None,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
        *,
        device_type: str = "cpu",
    ) -> Any:
        """From the next run on, write output `name` into the memory of `array`.

        If `array` is None, a new array is made. If the model runs on a GPU, `array` may be a tensor
        on that GPU. As in onnxruntime, `bind_output(name, "cpu")` makes a new array, and the memory
        may be given by its address (see `bind_input`, whose parameters are the same).

        Returns
        -------
        The array or tensor that is written to. None if `array` is `cuda`, which leaves the output
        in the binding's own memory on the GPU.

        Raises
        ------
        InputError
            There is no output of that name, or the memory has the wrong shape or dtype, is
            read-only, or is on another device.
        """
        memory = _memory(name, array, element_type, shape, buffer_ptr, device_type)
        if memory.array is None and memory.device_type != "cpu":
            self._leave_on_device(name, memory.device_type)
            return None
        return self._bind_output(name, memory.array)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """From the next run on, write output `name` into an `onnxruntime.OrtValue` on the CPU."""
        self._bind_output(name, array_of_ortvalue(name, ortvalue))

    def synchronize_inputs(self) -> None:  # noqa: B027  There is nothing to do.
        """Do nothing: a run reads its inputs when it begins."""

    def synchronize_outputs(self) -> None:  # noqa: B027  There is nothing to do.
        """Do nothing: when a run returns, its outputs are there."""


class _Memory(NamedTuple):
    """The argument of a binding: an array or None, and the device of the memory."""

    array: Any
    device_type: str


def _memory(
    name: str,
    array: Any,
    element_type: Any,
    shape: Sequence[int] | None,
    buffer_ptr: int | None,
    device_type: str,
) -> _Memory:
    """Return the memory that the arguments of `bind_input` and `bind_output` describe."""
    if isinstance(array, str):
        array, device_type = None, array
    if buffer_ptr is not None:
        array = array_at(name, device_type, element_type, shape, buffer_ptr)
    return _Memory(array, device_type)
