"""Prepares a plan to run on this machine's CPU: allocates its tensors and binds its kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tvm_ffi

from .._native import cpu as _runtime
from .._native.operators import BoundOperator
from .._native.timing import OperatorTiming
from ..plan.plan import Plan, PlannedOperator, PlannedValue
from ..program.host_memory import aligned_copy, aligned_empty, memory_nbytes
from .bound_memory import check_alignment
from .instance import Clock, ports_of, tensors_nbytes, too_large
from .kernels import cpu_kernels


class Instance:
    """One executable copy of a plan.

    Attributes
    ----------
    plan: the plan that runs.
    executor: the native executor.
    arrays: a NumPy view of each tensor's memory, by index into `plan.values`.
    num_reorders: the number of tensors that kernels convert to another layout in each run.
    """

    clock: ClassVar[Clock | None] = _runtime
    dlpack_device_type: ClassVar[int] = 1

    def __init__(
        self,
        plan: Plan,
        kernels: Any,
        weights: Mapping[int, np.ndarray],
    ) -> None:
        """Allocate the tensors and bind the kernels.

        Parameters
        ----------
        kernels: the loaded library of TVM's kernels.
        weights: the weights, by index into `plan.values`. An array that `aligned_copy` made is used
            in place; other arrays are copied.

        Raises
        ------
        DeviceError
            The plan needs more memory than this process can get.
        """
        self.plan = plan
        self.inputs, self.outputs = ports_of(plan)
        if tensors_nbytes(plan) > memory_nbytes():
            raise too_large(plan)
        try:
            self.arrays = _allocate(plan, weights)
        except MemoryError as error:
            raise too_large(plan) from error
        # The caller's arrays that values use as memory, by the value's number; kept alive here.
        self._owners: dict[int, np.ndarray] = {}
        self._placed: dict[int, np.ndarray] = {}
        # The numbers of the values whose memory belongs to the caller.
        self._lent: set[int] = set()
        # The outputs that share memory with another input or output, and the memory that each is
        # copied to. They are computed in other memory, and copied after each run.
        self._copied: dict[int, np.ndarray] = {}
        # The inputs that the model returns. An output may be copied over such an input. So the
        # values that the input had in the run are kept here.
        roots = {plan.root_of(v) for v in plan.outputs}
        self._returned = [v for v in plan.inputs if v in roots]
        self._kept: dict[int, np.ndarray] = {}
        tensors = [as_tensor(array) for array in self.arrays]
        source = cpu_kernels(kernels, plan.operators, plan.is_constant)
        self._bound = [
            bound_operator(op, source.shipped(op, [tensors[v] for v in (*op.inputs, *op.outputs)]))
            for op in plan.operators
        ]
        self.num_reorders = sum(
            _runtime.num_reorders(bound.kernel)
            for bound, op in zip(self._bound, plan.operators, strict=True)
            if op.library is not None
        )
        self.executor = self._make_executor(self._bound, tensors)
        self._executors = [self.executor]

    def executor_of(self, begin: int, end: int) -> Any:
        """Return an executor for the operators `begin` to `end - 1`, on the same tensors.

        The new executor does not wait for operators before `begin`. The caller must make sure that
        they have ended, as `Segments` does.
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

    def run(self, wanted: Sequence[int] = ()) -> None:
        """Run every operator once.

        `wanted` has no effect, because outputs are always in the host's memory.
        """
        _runtime.run(self.executor)
        self.copy_outputs()

    def copy_outputs(self) -> None:
        """Copy the outputs that a run could not compute in the memory that they are bound to."""
        self._kept = {
            v: self.arrays[v].copy()
            for v in self._returned
            if any(_share_memory(self.arrays[v], memory) for memory in self._copied.values())
        }
        for value, memory in self._copied.items():
            np.copyto(memory, self.arrays[value])

    def write(self, value: int, array: np.ndarray) -> None:
        """Copy `array` into the plan's value `value`, but never into memory that a caller owns.

        A value that is bound to a caller's memory gets new memory before the copy.
        """
        if value in self._lent:
            self.replace(value, array)
        else:
            np.copyto(self.arrays[value], array)

    def read(self, value: int) -> np.ndarray:
        """Return the value with the number `value` without a copy; the next run may change it."""
        planned = self.plan.values[value]
        root = value if planned.alias_of is None else planned.alias_of
        held = self._copied.get(root, self._kept.get(root))
        if held is None:
            return self.arrays[value]
        whole = held.reshape(-1).view(np.uint8)
        return _view(whole[planned.offset or 0 if root != value else 0 :], planned)

    def replace(self, value: int, array: np.ndarray) -> None:
        """Set a weight to a copy of `array` in new memory.

        The old memory does not change, because other instances may share it.
        """
        own = aligned_empty(array.shape, array.dtype)
        np.copyto(own, array)
        self.rebind(value, own)
        self._lent.discard(value)

    def time(self, number: int) -> float:
        """Run the model `number` times in a row, and return the total time in seconds."""
        seconds = _runtime.time(self.executor, number)
        self.copy_outputs()
        return seconds

    def profile(self) -> list[OperatorTiming]:
        """Run every operator once, and return the times at which each operator ran."""
        timings = _runtime.profile(self.executor)
        self.copy_outputs()
        return timings

    def rebind(self, value: int, array: np.ndarray) -> None:
        """From the next run on, use the memory of `array` for `value` and all aliases of `value`.

        An output may share its memory with another input or output. An operator could then write
        the output before another operator has read the input. So a run computes such an output in
        other memory, and copies it at the end.

        Raises
        ------
        InputError
            The memory is not contiguous, or its address is not a multiple of 64 bytes.
        """
        check_alignment(self.plan.values[value].name, array)
        self._copied.pop(value, None)
        self._owners[value] = array
        self._lent.add(value)
        self._place(value, array)
        self._separate(value)

    def _separate(self, value: int) -> None:
        """Find the outputs to copy after each run, after the memory of `value` has changed."""
        kinds = {v: each.storage for v, each in enumerate(self.plan.values)}
        memory = {
            v: self._copied.get(v, self.arrays[v])
            for v, kind in kinds.items()
            if kind in ("input", "output")
        }
        if value not in memory:
            return  # `value` is a weight.
        beside = [v for v in memory if v != value and _share_memory(memory[v], memory[value])]
        for v in {value, *beside, *self._copied}:
            if kinds[v] != "output":
                continue
            shares = any(v != other and _share_memory(memory[v], memory[other]) for other in memory)
            if shares and v not in self._copied:
                planned = self.plan.values[v]
                self._copied[v] = self.arrays[v]
                self._place(v, aligned_empty(planned.stored_shape, planned.dtype))
            elif not shares and v in self._copied:
                self._place(v, self._copied.pop(v))

    def _place(self, value: int, array: np.ndarray) -> None:
        """Use the memory of `array` for `value` and all aliases of `value`; see `rebind`."""
        # NumPy does not export a read-only array by DLPack, and an array over another library's
        # memory is often read-only. So make a new, writable array at the same address.
        memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
        self._placed[value] = array
        whole = np.frombuffer(memoryview(memory), np.uint8)
        for v, planned in enumerate(self.plan.values):
            if v == value or planned.alias_of == value:
                begin = (planned.offset or 0) if planned.storage == "alias" else 0
                self.arrays[v] = _view(whole[begin:], planned)
                for executor in self._executors:
                    _runtime.bind(executor, v, as_tensor(self.arrays[v]))


def bound_operator(op: PlannedOperator, kernel: Any) -> BoundOperator:
    """Return the operator `op` of a plan, with its kernel, in the form that executors take."""
    args = (*op.inputs, *op.outputs)
    return BoundOperator(op.name, kernel, args, op.stream, op.waits, op.share)


def threads_per_stream(plan: Plan) -> int:
    """Return the number of threads for the parallel loops of one stream's kernels."""
    # A model that returns its inputs unchanged has no operators, and so no streams.
    threads = {stream.threads for stream in plan.streams} or {1}
    assert len(threads) == 1, "all streams of a plan have the same number of threads"
    return threads.pop()


def as_tensor(array: np.ndarray) -> Any:
    """Return a tensor over the memory of `array`.

    A bfloat16 array becomes a uint16 tensor, because TVM's kernels expect bfloat16 numbers as
    uint16. The tensor is a TVM tensor if TVM is imported.
    """
    if array.size == 0:  # The address of an empty NumPy array may be unaligned.
        array = aligned_empty((1,), array.dtype)[:0].reshape(array.shape)
    return tvm_ffi.from_dlpack(array.view(np.uint16) if array.dtype == "bfloat16" else array)


def _allocate(plan: Plan, weights: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    arena = aligned_empty((plan.arena_bytes,), np.uint8)
    arrays: list[np.ndarray] = []
    for v, value in enumerate(plan.values):
        if value.storage == "alias":
            # The loop below replaces this empty array by a view of another tensor.
            arrays.append(np.empty(0))
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
    """Return the tensor `value` at the beginning of `memory`, an array of bytes."""
    return memory[: value.nbytes].view(value.dtype).reshape(value.stored_shape)


def _share_memory(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two contiguous arrays have bytes in common."""
    return np.may_share_memory(one, other)
