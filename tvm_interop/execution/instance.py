"""The protocol of a plan that is ready to run, on any device; `GraphModule` works with it."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from .._native.library import OperatorTiming
from ..plan.plan import Plan


class Clock(Protocol):
    """Times executors of one kind of device against each other."""

    def measure_interleaved(
        self,
        executors: list[Any],
        warmup: int,
        repeats: int,
        seed: int = 0,
        primed: bool = False,
    ) -> list[list[float]]:
        """Every round runs each executor once, in an order drawn anew.

        Parameters
        ----------
        primed: run each once more, untimed, just before each of its timed runs.

        Returns
        -------
        For each executor its `repeats` times, in seconds.
        """
        ...


@runtime_checkable
class PlanInstance(Protocol):
    """One executable copy of a plan: memory under its tensors, kernels bound to its operators.

    One thread at a time may use it. Errors of a run are `ExecutionError`s that name the operator.
    Every kind of device passes the tests of `tests/conformance.py`.

    Attributes
    ----------
    plan: what runs.
    executor: what `clock` times.
    clock: the device's; None where executors cannot be timed against each other.
    dlpack_device_type: as DLPack numbers devices: 1 is a CPU, 2 is CUDA.
    """

    plan: Plan
    executor: Any
    clock: ClassVar[Clock | None]
    dlpack_device_type: ClassVar[int]

    def run(self) -> None:
        """Run every operator once; the outputs are there on return."""
        ...

    def write(self, value: int, array: np.ndarray) -> None:
        """Copy `array` into value number `value`; it stays so until it is written again."""
        ...

    def read(self, value: int) -> np.ndarray:
        """Value number `value`, an input or output; the next run may change the array."""
        ...

    def replace(self, value: int, array: np.ndarray) -> None:
        """Let a weight be `array`, for this instance alone."""
        ...

    def rebind(self, value: int, array: np.ndarray) -> None:
        """Let input or output number `value` be `array`'s own memory from the next run on.

        Raises
        ------
        DeviceError
            The device cannot read the host's memory in place; nothing has changed.
        """
        ...

    def time(self, number: int) -> float:
        """Seconds that `number` runs took, one after the other, by the device's clock."""
        ...

    def profile(self) -> list[OperatorTiming]:
        """Run once, and tell when each operator ran."""
        ...
