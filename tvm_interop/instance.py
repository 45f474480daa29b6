"""A plan with memory under it: tensors allocated, kernels bound, ready to run."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _runtime
from .errors import ArtifactError, ExecutionError
from .kernel_libraries import library_version
from .plan import ALIGNMENT, Plan, PlannedOperator


class Instance:
    """One executable copy of a plan.

    Attributes
    ----------
    executor: the native executor.
    arrays: by index into `plan.values`, a NumPy view of each tensor's memory.
    """

    def __init__(
        self,
        plan: Plan,
        kernels: Any,
        weights: Mapping[int, np.ndarray],
        streams: _runtime.CpuStreams | None = None,
    ) -> None:
        """Allocate and bind.

        Parameters
        ----------
        kernels: the loaded kernel library.
        weights: by index into `plan.values`; those made by `aligned_copy` are used in place.
        streams: worker threads to share with other instances; by default this one has its own.
        """
        self.plan = plan
        self.streams = streams if streams is not None else make_streams(plan)
        self.arrays = _allocate(plan, weights)
        self._owners: dict[int, np.ndarray] = {}  # Of memory that is not ours.
        tensors = [as_tensor(array) for array in self.arrays]
        functions = kernel_functions(kernels, [op.kernel for op in plan.operators])
        self.executor = _runtime.make_executor(
            self.streams,
            tensors,
            [op.name for op in plan.operators],
            [
                self._library_kernel(op, tensors) or function
                for op, function in zip(plan.operators, functions, strict=True)
            ],
            [(*op.inputs, *op.outputs) for op in plan.operators],
            [op.stream for op in plan.operators],
            [op.waits for op in plan.operators],
        )

    def run(self) -> None:
        """Run every operator once."""
        _runtime.run(self.executor)

    def _library_kernel(self, op: PlannedOperator, tensors: list[Any]) -> Any:
        """The kernel of the library that is to run `op`; None where TVM's is to."""
        if op.library is None or op.description is None or library_version(op.library) is None:
            return None
        values = (*op.inputs, *op.outputs)
        try:
            return _runtime.prepare_kernel(
                op.library,
                op.description.fields(),
                self.plan.streams[op.stream].threads,
                [tensors[v] for v in values],
                [self.plan.is_constant(v) for v in values],
            )
        except ExecutionError as error:
            raise ArtifactError(
                f"operator `{op.name}`: {error}; compile the model again"
            ) from error

    def rebind(self, value: int, array: np.ndarray) -> None:
        """Let `value`, and every alias of it, be `array`'s memory from the next run on."""
        # Arrays over another library's memory are often marked read-only, and those NumPy does not
        # hand on; kernels only read an input.
        memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
        self._owners[value] = array
        for v, planned in enumerate(self.plan.values):
            if v == value or planned.alias_of == value:
                self.arrays[v] = np.frombuffer(memoryview(memory), planned.dtype).reshape(
                    planned.shape
                )
                _runtime.bind(self.executor, v, as_tensor(self.arrays[v]))


def make_streams(plan: Plan) -> _runtime.CpuStreams:
    """Worker threads for `plan`."""
    threads = {stream.threads for stream in plan.streams}
    assert len(threads) == 1, "every stream of a plan has as many threads"
    return _runtime.make_cpu_streams(len(plan.streams), threads.pop(), plan.parallel_kernels)


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """An uninitialised array whose address is a multiple of `ALIGNMENT`."""
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A contiguous copy of `array` at an aligned address; `array` itself where it is one."""
    if array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def as_tensor(array: np.ndarray) -> Any:
    """A TVM tensor over `array`'s memory."""
    import tvm

    return tvm.runtime.from_dlpack(array)


def kernel_functions(kernels: Any, names: list[str]) -> list[Any]:
    """The functions of these names.

    Raises
    ------
    ArtifactError
        The library lacks one.
    """
    found = {name: kernels.get_function(name, True) for name in dict.fromkeys(names)}
    for name, function in found.items():
        if function is None:
            raise ArtifactError(f"the kernel library has no `{name}`; compile the model again")
    return [found[name] for name in names]


def _allocate(plan: Plan, weights: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    arena = aligned_empty((plan.arena_bytes,), np.uint8)
    arrays: list[np.ndarray] = []
    for v, value in enumerate(plan.values):
        if value.storage == "alias":
            arrays.append(np.empty(0))  # Filled in below, once its root is there.
        elif value.storage == "weight":
            arrays.append(aligned_copy(weights[v]))
        elif value.storage == "arena":
            offset = value.offset or 0
            view = arena[offset : offset + value.nbytes].view(value.dtype)
            arrays.append(view.reshape(value.shape))
        else:
            array = aligned_empty(value.shape, value.dtype)
            array.fill(0)
            arrays.append(array)
    for v, value in enumerate(plan.values):
        if value.alias_of is not None:
            arrays[v] = arrays[value.alias_of].reshape(value.shape)
    return arrays
