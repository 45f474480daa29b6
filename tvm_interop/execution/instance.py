"""The interface between `GraphModule` and the classes that run a plan on one kind of device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, runtime_checkable

import numpy as np

from .._native.runtime import Port
from .._native.timing import OperatorTiming
from ..errors import DeviceError, ExecutionError

if TYPE_CHECKING:
    from ..plan.plan import Plan


class Clock(Protocol):
    """Times executors against each other, on one kind of device."""

    def measure_interleaved(
        self,
        executors: list[Any],
        warmup: int,
        repeats: int,
        seed: int = 0,
        primed: bool = False,
    ) -> list[list[float]]:
        """Time each executor once in each round, in a new random order.

        Parameters
        ----------
        warmup: untimed rounds before the timed ones.
        repeats: timed rounds.
        seed: seed of the random orders.
        primed: whether to run an executor once more, untimed, just before each of its timed runs.

        Returns
        -------
        For each executor, its `repeats` times in seconds.
        """
        ...


@runtime_checkable
class PlanInstance(Protocol):
    """One executable copy of a plan, with its own tensors in memory and kernels for its operators.

    Only one thread at a time may use an instance. A failed run raises an `ExecutionError` that
    names the operator. The classes for all kinds of devices pass the tests of
    `tests/conformance.py`.

    Attributes
    ----------
    plan: the plan that runs.
    inputs, outputs: the model's inputs and outputs, with the numbers by which `write`, `read` and
        `rebind` know them.
    executor: the object that `clock` times.
    clock: times executors on this kind of device; None if they cannot be timed against each other.
    dlpack_device_type: the device's type in DLPack: 1 for a CPU, 2 for CUDA.
    """

    inputs: list[Port]
    outputs: list[Port]
    dlpack_device_type: ClassVar[int]

    @property
    def plan(self) -> Plan: ...
    @property
    def executor(self) -> Any: ...
    @property
    def clock(self) -> Clock | None: ...

    def run(self, wanted: Sequence[int] = ()) -> None:
        """Run every operator once, and return when the outputs are ready.

        `wanted` are the inputs and outputs that are read next. A device copies them to the host's
        memory before the host waits for the run.
        """
        ...

    def write(self, value: int, array: Any) -> None:
        """Copy `array` into input `value`. The input keeps these values until the next `write`.

        `array` is a NumPy array, or a contiguous tensor in the memory of the instance's device.
        """
        ...

    def read(self, value: int) -> np.ndarray:
        """Return an input or output. The next run may change the array."""
        ...

    def rebind(self, value: int, array: np.ndarray) -> None:
        """From the next run on, use the memory of `array` for an input or output.

        Raises
        ------
        DeviceError
            The device cannot access host memory in place. The input or output then keeps its old
            memory.
        """
        ...

    def time(self, number: int) -> float:
        """Run the model `number` times in a row, and return the total time in seconds.

        The time is measured by the device's clock.
        """
        ...

    def profile(self) -> list[OperatorTiming]:
        """Run every operator once, and return the times at which each operator ran."""
        ...


def outputs_of(instance: PlanInstance, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run an instance once, and return copies of its outputs.

    Parameters
    ----------
    inputs: an array for each input of the plan, in order.
    """
    for v, array in zip(instance.plan.inputs, inputs, strict=True):
        instance.write(v, array)
    instance.run()
    return [np.array(instance.read(v)) for v in instance.plan.outputs]


@runtime_checkable
class DeviceInstance(PlanInstance, Protocol):
    """An instance whose tensors lie in the memory of a device such as a GPU."""

    def start(self) -> None:
        """Launch a run and do not wait for it. Later runs, copies and reads come after it."""
        ...

    def view(self, value: int) -> Any:
        """Return an input or output in the device's memory, as a tensor with DLPack's methods.

        The next run changes the values in this memory.
        """
        ...

    def copy_to(self, value: int, tensor: Any) -> None:
        """Copy an input or output to a tensor of the caller in the memory of the same device.

        Raises
        ------
        InputError
            The tensor is on another device, or is not contiguous.
        """
        ...


@runtime_checkable
class ChangeableInstance(PlanInstance, Protocol):
    """An instance whose weights can be replaced."""

    def replace(self, value: int, array: np.ndarray) -> None:
        """Set weight `value`, an index into `plan.values`, to a copy of `array`.

        Other instances keep the old weight.
        """
        ...


def ports_of(plan: Plan) -> tuple[list[Port], list[Port]]:
    """Return the inputs and outputs of a plan. Their numbers are indices into `plan.values`."""
    return [port_of(plan, v) for v in plan.inputs], [port_of(plan, v) for v in plan.outputs]


def port_of(plan: Plan, value: int) -> Port:
    """Return the number, name, shape and dtype of a value of a plan, such as an input."""
    planned = plan.values[value]
    return Port(value, planned.name, planned.shape, planned.dtype)


def too_large(plan: Plan) -> DeviceError:
    """The error for a plan whose tensors need more memory than this process can get."""
    return DeviceError(
        f"the plan needs {tensors_nbytes(plan) / 2**30:.1f} GiB for its tensors, and this process "
        "cannot get that much memory; compile for smaller inputs, or run it on a larger machine"
    )


def tensors_nbytes(plan: Plan) -> int:
    """The size of an instance's tensors in bytes, without weights."""
    held = [value.nbytes for value in plan.values if value.storage in ("input", "output")]
    return plan.arena_bytes + sum(held)


def info_of(ports: Sequence[Port]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Return the shapes and the dtypes of inputs or outputs, as two mappings by name."""
    return {port.name: port.shape for port in ports}, {port.name: port.dtype for port in ports}


class ClosedInstance:
    """Replaces the instance of a module that was closed, and raises an error for every use."""

    def __getattr__(self, _: str) -> NoReturn:
        raise ExecutionError("the module was closed: make a new one of the same artifact")
