"""A plan with memory under it: tensors allocated, kernels bound, ready to run."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import tvm_ffi

from .._native import cpu as _runtime
from .._native.library import OperatorTiming
from .._native.operators import BoundOperator
from ..errors import ArtifactError, DeviceError, ExecutionError, InputError
from ..machine.kernel_libraries import library_version, why_missing
from ..plan.plan import Plan, PlannedOperator, PlannedValue
from ..program.host_memory import aligned_copy, aligned_empty
from ..program.storage import ALIGNMENT
from .instance import Clock


class Instance:
    """One executable copy of a plan.

    Attributes
    ----------
    executor: the native executor.
    arrays: by index into `plan.values`, a NumPy view of each tensor's memory.
    num_reorders: tensors that kernels bring into another layout in each run.
    """

    clock: ClassVar[Clock | None] = _runtime
    dlpack_device_type: ClassVar[int] = 1

    def __init__(
        self,
        plan: Plan,
        kernels: Any,
        weights: Mapping[int, np.ndarray],
    ) -> None:
        """Allocate and bind.

        Parameters
        ----------
        kernels: the loaded kernel library.
        weights: by index into `plan.values`; those made by `aligned_copy` are used in place.

        Raises
        ------
        DeviceError
            The plan needs more memory than this process can have.
        """
        self.plan = plan
        try:
            self.arrays = _allocate(plan, weights)
        except MemoryError as error:
            held = [value.nbytes for value in plan.values if value.storage in ("input", "output")]
            needed = (plan.arena_bytes + sum(held)) / 2**30
            raise DeviceError(
                f"the plan needs {needed:.1f} GiB for its tensors, and this process cannot get "
                "that much memory; compile for smaller inputs, or run it on a larger machine"
            ) from error
        self._owners: dict[int, np.ndarray] = {}  # Of memory that is not ours.
        self._lent: set[int] = set()  # Inputs in memory that the caller still uses.
        tensors = [as_tensor(array) for array in self.arrays]
        ours = {op.kernel for op in plan.operators if op.library is None}
        functions = kernel_functions(kernels, sorted(ours))
        of_libraries = [self._library_kernel(op, tensors) for op in plan.operators]
        self.num_reorders = sum(_runtime.num_reorders(k) for k in of_libraries if k is not None)
        self._bound = [
            bound_operator(op, functions[op.kernel] if kernel is None else kernel)
            for op, kernel in zip(plan.operators, of_libraries, strict=True)
        ]
        self.executor = self._make_executor(self._bound, tensors)
        self._executors = [self.executor]

    def executor_of(self, begin: int, end: int) -> Any:
        """An executor of operators `begin` to `end` - 1 alone, on the same tensors.

        What they wait for before `begin` is the caller's to see to: see `Segments`.
        """
        part = [
            op._replace(waits=tuple(wait - begin for wait in op.waits if wait >= begin))
            for op in self._bound[begin:end]
        ]
        made = self._make_executor(part, [as_tensor(array) for array in self.arrays])
        self._executors.append(made)
        return made

    def _make_executor(self, operators: list[BoundOperator], tensors: list[Any]) -> Any:
        streams = max(len(self.plan.streams), 1)
        return _runtime.make_executor(streams, threads_per_stream(self.plan), tensors, operators)

    def run(self) -> None:
        """Run every operator once."""
        _runtime.run(self.executor)

    def write(self, value: int, array: np.ndarray) -> None:
        """Copy `array` into value number `value`; never into memory that is the caller's."""
        if value in self._lent:
            self.replace(value, array)
        else:
            np.copyto(self.arrays[value], array)

    def read(self, value: int) -> np.ndarray:
        """Value number `value`: its own memory, which the next run may change."""
        return self.arrays[value]

    def replace(self, value: int, array: np.ndarray) -> None:
        """Let a weight be `array`; other instances may share the memory it had."""
        own = aligned_empty(array.shape, array.dtype)
        np.copyto(own, array)
        self.rebind(value, own)
        self._lent.discard(value)

    def time(self, number: int) -> float:
        """Seconds that `number` runs took, one after the other."""
        return _runtime.time(self.executor, number)

    def profile(self) -> list[OperatorTiming]:
        """Run once, and tell when each operator ran."""
        return _runtime.profile(self.executor)

    def _library_kernel(self, op: PlannedOperator, tensors: list[Any]) -> Any:
        """The kernel of the library that is to run `op`; None where TVM's is to.

        Raises
        ------
        ArtifactError
            The library is missing, or cannot compute this.
        """
        if op.library is None or op.description is None:
            return None
        require_library(op.name, op.library)
        values = (*op.inputs, *op.outputs)
        try:
            return _runtime.prepare_kernel(
                op.library,
                op.description.fields(),
                1,  # It is divided by parts, which are operators of their own.
                [tensors[v] for v in values],
                [self.plan.is_constant(v) for v in values],
            )
        except ExecutionError as error:
            raise ArtifactError(
                f"operator `{op.name}`: {error}; compile the model again"
            ) from error

    def rebind(self, value: int, array: np.ndarray) -> None:
        """Let `value`, and every alias of it, be `array`'s memory from the next run on.

        Raises
        ------
        InputError
            The memory is not contiguous, or not aligned as kernels need it.
        """
        if not array.flags.c_contiguous or array.ctypes.data % ALIGNMENT != 0:
            raise InputError(
                f"`{self.plan.values[value].name}`: zero copy needs contiguous memory at an "
                f"address that is a multiple of {ALIGNMENT}; allocate it with "
                "tvm_interop.aligned_empty, or use set_input or get_output, which copy"
            )
        # Arrays over another library's memory are often marked read-only, and those NumPy does not
        # hand on.
        memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
        self._owners[value] = array
        self._lent.add(value)
        whole = np.frombuffer(memoryview(memory), np.uint8)
        for v, planned in enumerate(self.plan.values):
            if v == value or planned.alias_of == value:
                begin = (planned.offset or 0) if planned.storage == "alias" else 0
                self.arrays[v] = _view(whole[begin:], planned)
                for executor in self._executors:
                    _runtime.bind(executor, v, as_tensor(self.arrays[v]))


def require_library(op: str, library: str) -> None:
    """Check that the kernel library that operator `op` needs is loaded.

    Raises
    ------
    ArtifactError
        The library is missing; the message says why.
    """
    if library_version(library) is None:
        raise ArtifactError(
            f"operator `{op}` needs kernel library `{library}`, which is missing here: "
            f"{why_missing(library)}; install `tvm-interop[{library}]`, or compile the model again"
        )


def bound_operator(op: PlannedOperator, kernel: Any) -> BoundOperator:
    """A plan's operator as an executor takes it, run by `kernel`."""
    args = (*op.inputs, *op.outputs)
    return BoundOperator(op.name, kernel, args, op.stream, op.waits, op.share)


def threads_per_stream(plan: Plan) -> int:
    """Threads that the parallel loops of one stream's kernels are meant for."""
    # A model that only passes its inputs on has no operators, and so no streams.
    threads = {stream.threads for stream in plan.streams} or {1}
    assert len(threads) == 1, "every stream of a plan has as many threads"
    return threads.pop()


def as_tensor(array: np.ndarray) -> Any:
    """A tensor over `array`'s memory; of bfloat16 it has words of 16 bits, as kernels do.

    It is TVM's class where TVM is imported.
    """
    if array.size == 0:  # NumPy gives it any address, and nobody reads or writes there.
        array = aligned_empty((1,), array.dtype)[:0].reshape(array.shape)
    return tvm_ffi.from_dlpack(array.view(np.uint16) if array.dtype == "bfloat16" else array)


def kernel_functions(kernels: Any, names: Iterable[str]) -> dict[str, Any]:
    """The functions of these names.

    Raises
    ------
    ArtifactError
        The library lacks one.
    """
    found = {}
    for name in names:
        try:
            found[name] = kernels.get_function(name, True)
        except AttributeError as error:
            raise ArtifactError(
                f"the kernel library has no `{name}`; compile the model again"
            ) from error
    return found


def _allocate(plan: Plan, weights: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    arena = aligned_empty((plan.arena_bytes,), np.uint8)
    arrays: list[np.ndarray] = []
    for v, value in enumerate(plan.values):
        if value.storage == "alias":
            arrays.append(np.empty(0))  # Filled in below, once its root is there.
        elif value.storage == "weight":
            arrays.append(aligned_copy(weights[v]))
        elif value.storage == "arena":
            arrays.append(_view(arena[value.offset or 0 :], value))
        else:
            array = aligned_empty(value.stored_shape, value.dtype)
            array.fill(0)
            arrays.append(array)
    for v, value in enumerate(plan.values):
        if value.alias_of is not None:
            root = arrays[value.alias_of].reshape(-1).view(np.uint8)
            arrays[v] = _view(root[value.offset or 0 :], value)
    return arrays


def _view(memory: np.ndarray, value: PlannedValue) -> np.ndarray:
    """The tensor `value` at the beginning of `memory`, which is bytes."""
    return memory[: value.nbytes].view(value.dtype).reshape(value.stored_shape)
