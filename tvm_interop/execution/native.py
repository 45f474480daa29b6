"""Runs a model that the native library has loaded, without TVM and tvm-ffi."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._native.timing import OperatorTiming
from ..errors import only_runtime
from ..program.host_memory import ALIGNMENT
from .bound_memory import check_alignment
from .instance import Clock, PlanInstance, too_large

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact
    from ..plan.plan import Plan

_LOG = logging.getLogger("tvm_interop")


class NativeInstance:
    """One executable copy of a loaded artifact, on this machine's CPU.

    Weights are shared by all instances of the artifact.
    """

    dlpack_device_type: ClassVar[int] = 1

    def __init__(self, artifact: Artifact, shape: int = 0) -> None:
        """Allocate memory and prepare kernels.

        Parameters
        ----------
        artifact: an artifact that the native library has loaded: its `native` is not None.
        shape: which of the model's sets of input shapes the instance is for, by index.

        Raises
        ------
        ArtifactError
            The machine code does not load on this machine, or a kernel library refuses an operator.
        DeviceError
            The plan needs more memory than this process can get, or no library can be loaded from
            the folder for temporary files.
        """
        assert artifact.native is not None
        self._artifact, self._model, self._shape = artifact, artifact.native, shape
        if self._model.warning is not None:
            _LOG.warning("%s", self._model.warning)
        try:
            self._native = self._model.open(shape)
        except MemoryError as error:
            raise too_large(self.plan) from error
        self.inputs = self._model.inputs[shape]
        self.outputs = self._model.outputs[shape]
        self._arrays: dict[int, np.ndarray] = {}
        # Keeps alive the caller's arrays that are bound to inputs or outputs.
        self._bound: dict[int, np.ndarray] = {}
        self._timed: Any = None
        self._ran_elsewhere = False  # Whether the latest run was a `run_on`.

    @property
    def plan(self) -> Plan:
        """The plan that runs."""
        model = self._artifact.of_shape(self._shape)
        if self._model.uses_fallback and model.fallback is not None:
            return model.fallback
        return model.plan

    @property
    def clock(self) -> Clock:
        """The functions that time instances on this machine's CPU."""
        clock: Clock = _cpu()
        return clock

    @property
    def executor(self) -> Any:
        """The object that `clock` times, on the inputs and outputs of the latest run.

        After `run_on`, the executor uses the instance's own inputs and outputs again, or memory
        that was bound to them.
        """
        if self._ran_elsewhere:
            self.run()
        if self._timed is None:
            self._timed = _cpu().executor_of(self._native.address)
        return self._timed

    def run(self, wanted: Sequence[int] = ()) -> None:
        """Run every operator once.

        `wanted` has no effect, because outputs are always in the host's memory.
        """
        self._native.run()
        self._ran_elsewhere = False

    def run_on(self, inputs: Mapping[int, np.ndarray], outputs: Mapping[int, np.ndarray]) -> None:
        """Run every operator once on the caller's memory, copying data only where this is needed.

        Later runs use the instance's own inputs and outputs again, or memory that was bound to
        them.

        Parameters
        ----------
        inputs, outputs: arrays of the right shape and dtype, by position. An output's array must be
            contiguous.
        """
        lent = {i: np.ascontiguousarray(array) for i, array in inputs.items()}
        self._ran_elsewhere = True
        self._native.run_on(
            {i: array.ctypes.data for i, array in lent.items()},
            {i: array.ctypes.data for i, array in outputs.items()},
        )

    def write(self, value: int, array: np.ndarray) -> None:
        """Copy `array` into an input. An input that was bound to a caller's memory gets its own
        memory, and the caller's memory does not change.
        """
        if self._bound.pop(value, None) is not None:
            self._native.place(value, None)
        np.copyto(self._own(value), array)

    def read(self, value: int) -> np.ndarray:
        """Return an input or output without a copy; the next run may change it."""
        bound = self._bound.get(value)
        return self._own(value) if bound is None else bound

    def size_of(self, position: int) -> int:
        """Return the size that the latest run computed for the output at `position`.

        The size of this output must depend on computed values, as for a list of nonzero elements.
        """
        return int(self._native.sizes[position])

    def rebind(self, value: int, array: np.ndarray) -> None:
        """From the next run on, use the memory of `array` for an input or output.

        Raises
        ------
        InputError
            The memory is not contiguous, or its address is not a multiple of the alignment. This is
            64 bytes for an output, and `NativeModel.input_alignment` for an input.
        """
        is_input = value < len(self.inputs)
        alignment = self._model.input_alignment(self._shape, value) if is_input else ALIGNMENT
        check_alignment([*self.inputs, *self.outputs][value].name, array, alignment)
        self._bound[value] = array
        self._native.place(value, array.ctypes.data)

    def time(self, number: int) -> float:
        """Run the model `number` times in a row, and return the total time in seconds."""
        seconds: float = _cpu().time(self.executor, number)
        return seconds

    def profile(self) -> list[OperatorTiming]:
        """Run every operator once, and return the times at which each operator ran."""
        return self._native.profile()

    def take_over(self, instance: PlanInstance) -> None:
        """Copy the state of this instance to `instance`, which runs the same model.

        The state consists of the inputs, and of the caller's memory that is bound to inputs and
        outputs.
        """
        theirs = [*instance.inputs, *instance.outputs]
        for ours in [*self.inputs, *self.outputs]:
            value = theirs[ours.value].value
            if ours.value in self._bound:
                instance.rebind(value, self._bound[ours.value])
            elif ours.value < len(self.inputs):
                instance.write(value, self._own(ours.value))

    def _own(self, value: int) -> np.ndarray:
        if value not in self._arrays:
            self._arrays[value] = self._native.own_array(value)
        return self._arrays[value]


def _cpu() -> Any:
    """Return the functions that time executors."""
    try:
        return importlib.import_module(".._native.cpu", __package__)
    except ModuleNotFoundError as error:
        raise only_runtime("timing a model") from error
