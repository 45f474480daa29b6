"""A plan with a GPU's memory under it: tensors placed, kernels bound, a graph made."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from . import _cuda
from .errors import ArtifactError, DeviceError, ExecutionError, InputError
from .instance import aligned_copy, aligned_empty, as_tensor, kernel_functions, require_library
from .plan import Plan, PlannedOperator

_LOG = logging.getLogger("tvm_interop")

_BLOCK_ALIGNMENT = 256
"""Bytes that inputs, outputs and weights are aligned to: what `cudaMalloc` gives."""


class CudaInstance:
    """One executable copy of a plan, on one GPU.

    Tensors never move, since a graph keeps their addresses: inputs are copied in, outputs out.

    Attributes
    ----------
    executor: the native executor.
    tensors: by index into `plan.values`, each tensor on the GPU.
    """

    def __init__(
        self,
        plan: Plan,
        kernels: Any,
        weights: Mapping[int, np.ndarray],
        streams: _cuda.CudaStreams | None = None,
        dispatch: _cuda.Dispatch = "captured",
    ) -> None:
        """Allocate, copy the weights, run each operator once, and make a graph of them.

        Parameters
        ----------
        kernels: the loaded kernel library.
        weights: by index into `plan.values`.
        streams: streams to share with other instances, urgent where the plan's are; by default
            this one has its own.
        dispatch: how operators get to the GPU; where no graph can be made, they go one by one, and
            the reason is logged.

        Raises
        ------
        DeviceError
            There is no such GPU.
        InputError
            `streams` are urgent where the plan's are not, or the other way round.
        ExecutionError
            The GPU's memory does not suffice, or an operator fails (named).
        """
        self.plan = plan
        self.device = cuda_device(plan)
        self.streams = streams if streams is not None else make_cuda_streams(plan)
        _require_priorities(plan, self.streams)
        self.tensors = self._allocate(plan, self.device)
        for v, array in weights.items():
            self.write(v, array)
        ours = {op.kernel for op in plan.operators if op.library is None}
        functions = kernel_functions(kernels, sorted(ours))
        of_libraries = [self._library_kernel(op) for op in plan.operators]
        self.executor = _cuda.make_executor(
            self.streams,
            self.tensors,
            [op.name for op in plan.operators],
            [
                functions[op.kernel] if kernel is None else kernel
                for op, kernel in zip(plan.operators, of_libraries, strict=True)
            ],
            [(*op.inputs, *op.outputs) for op in plan.operators],
            [op.stream for op in plan.operators],
            [op.waits for op in plan.operators],
            dispatch,
        )
        reason = _cuda.why_no_graph(self.executor)
        if reason:
            _LOG.warning("no CUDA graph, operators are launched one by one: %s", reason)

    @property
    def dispatch(self) -> _cuda.Dispatch:
        """How operators get to the GPU in fact."""
        return _cuda.dispatch_of(self.executor)

    def run(self) -> None:
        """Run every operator once."""
        _cuda.run(self.executor)

    def write(self, value: int, array: np.ndarray) -> None:
        """Copy `array` into value number `value`."""
        _cuda.copy_to_device(self.streams, as_tensor(aligned_copy(array)), self.tensors[value])

    def replace(self, value: int, array: np.ndarray) -> None:
        """Let a weight be `array`: its memory is this instance's own."""
        self.write(value, array)

    def read(self, value: int) -> np.ndarray:
        """A copy of value number `value`."""
        planned = self.plan.values[value]
        array = aligned_empty(planned.shape, planned.dtype)
        _cuda.copy_to_host(self.streams, self.tensors[value], as_tensor(array))
        return array

    def time(self, number: int) -> float:
        """Seconds the GPU took for `number` runs, one after the other."""
        return _cuda.time(self.executor, number)

    def profile(self) -> list[tuple[int, int, float, float]]:
        """Run once; operator, stream, start and end in microseconds since the run began, each."""
        return _cuda.profile(self.executor)

    def _library_kernel(self, op: PlannedOperator) -> _cuda.CudaLibraryKernel | None:
        """The kernel of the library that is to run `op`; None where TVM's is to.

        Raises
        ------
        ArtifactError
            The library is missing, or cannot compute this.
        """
        if op.library is None or op.description is None:
            return None
        require_library(op.name, op.library)
        tensors = [self.tensors[v] for v in (*op.inputs, *op.outputs)]
        try:
            return _cuda.prepare_kernel(
                op.library, op.description.fields(), self.streams, op.stream, tensors
            )
        except ExecutionError as error:
            raise ArtifactError(
                f"operator `{op.name}`: {error}; compile the model again"
            ) from error

    def _allocate(self, plan: Plan, device: int) -> list[Any]:
        """Two blocks: the arena, laid out by the plan, and one for what stays with the module."""
        arena = _cuda.make_memory(device, plan.arena_bytes)
        offsets: dict[int, int] = {}
        end = 0
        for v, value in enumerate(plan.values):
            if value.storage in ("input", "output", "weight"):
                offsets[v] = end
                end += -(-value.nbytes // _BLOCK_ALIGNMENT) * _BLOCK_ALIGNMENT
        static = _cuda.make_memory(device, end)
        tensors = []
        for v, value in enumerate(plan.values):
            root = plan.values[plan.root_of(v)]
            if root.storage == "arena":
                block, offset = arena, root.offset or 0
            else:
                block, offset = static, offsets[plan.root_of(v)]
            if value.storage == "alias":
                offset += value.offset or 0
            tensors.append(_cuda.tensor_within(block, offset, value.shape, value.dtype))
        return tensors


def runs_on_cuda(plan: Plan) -> bool:
    """Whether `plan` is for a GPU."""
    return any(stream.device.startswith("cuda") for stream in plan.streams)


def require_gpu(plan: Plan) -> None:
    """See that `plan`'s GPU is there, and TVM's part that loads kernels for it.

    Raises
    ------
    DeviceError
        Says what is missing.
    """
    require_cuda(cuda_device(plan))


def require_cuda(device: int) -> None:
    """See that GPU number `device` is there, and TVM's part that loads kernels for it.

    Raises
    ------
    DeviceError
        Says what is missing.
    """
    _cuda.describe_device(device)
    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return
    import tvm

    # TVM leaves it out without a word where CUDA cannot be found while TVM is imported, and where
    # only its runtime is used.
    library = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        raise DeviceError(
            f"TVM's CUDA runtime does not load: {error}; put CUDA 13's runtime on LD_LIBRARY_PATH"
        ) from error


def cuda_device(plan: Plan) -> int:
    """The number of the GPU that `plan` runs on.

    Raises
    ------
    ArtifactError
        The plan runs on several devices, or on none that is a GPU.
    """
    devices = {stream.device for stream in plan.streams}
    kind, _, number = min(devices, default="").partition(":")
    if len(devices) != 1 or kind != "cuda" or not number.isdigit():
        raise ArtifactError(
            f"the plan's streams are on {', '.join(sorted(devices)) or 'no device'}; all must be "
            "on one GPU, such as `cuda:0`"
        )
    return int(number)


def make_cuda_streams(plan: Plan) -> _cuda.CudaStreams:
    """Streams for `plan`, each of its priority."""
    urgent = [stream.urgent for stream in plan.streams]
    return _cuda.make_streams([cuda_device(plan)] * len(plan.streams), urgent)


def _require_priorities(plan: Plan, streams: _cuda.CudaStreams) -> None:
    # The executor sees to there being enough streams.
    for s, (planned, urgent) in enumerate(
        zip(plan.streams, _cuda.urgent_streams(streams), strict=False)
    ):
        if planned.urgent != urgent:
            raise InputError(
                f"stream {s} of those to share is {'' if urgent else 'not '}urgent, and the plan's "
                f"is {'' if planned.urgent else 'not '}urgent; share `make_cuda_streams(plan)` "
                "between plans with the same urgent streams"
            )
