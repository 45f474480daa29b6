"""Prepares a plan to run on GPUs: places its tensors, binds its kernels, makes a CUDA graph."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tvm_ffi

from .._native import cuda as _cuda
from .._native.timing import OperatorTiming
from ..errors import ArtifactError, DeviceError, InputError
from ..plan.plan import Plan, PlannedOperator
from ..program.host_memory import aligned_copy, aligned_empty
from .cpu import as_tensor, bound_operator
from .device_tensor import DeviceTensor
from .instance import Clock, ports_of
from .kernels import Kernels, cuda_kernels

_LOG = logging.getLogger("tvm_interop")

_BLOCK_ALIGNMENT = 256
"""Alignment of inputs, outputs and weights in GPU memory, in bytes. `cudaMalloc` has the same
alignment."""


class CudaInstance:
    """One executable copy of a plan, on the GPUs that the plan names.

    The addresses of tensors never change, because a CUDA graph contains them. Inputs and outputs
    are therefore copied. Copies from and to the host's memory go through pinned memory, which the
    instance allocates once.

    Each GPU has one block of memory for all tensors of the instance.

    Attributes
    ----------
    plan: the plan that runs.
    streams: the CUDA streams, possibly shared with other instances.
    executor: the native executor.
    tensors: each tensor on its GPU, by index into `plan.values`.
    """

    clock: ClassVar[Clock | None] = _cuda
    dlpack_device_type: ClassVar[int] = 2

    def __init__(
        self,
        plan: Plan,
        kernels: Any,
        weights: Mapping[int, np.ndarray],
        streams: _cuda.CudaStreams | None = None,
        dispatch: _cuda.Dispatch = "captured",
    ) -> None:
        """Allocate memory, copy the weights, run each operator once, and make a CUDA graph.

        Parameters
        ----------
        kernels: the loaded library of TVM's kernels.
        weights: the weights, by index into `plan.values`.
        streams: streams to share with other instances. Each must be on the same GPU as the plan's
            stream, and of the same priority. By default the instance makes its own streams.
        dispatch: how operators get to the GPU. If no CUDA graph can be made, the host launches
            the operators one by one, and the reason is logged.

        Raises
        ------
        DeviceError
            A GPU of the plan does not exist.
        InputError
            A stream of `streams` is on another GPU than the plan's stream, or has another
            priority.
        ExecutionError
            The GPU has not enough memory, or an operator fails. Or an operator runs only a part of
            its kernel's iterations (a share). The message names the operator.
        """
        self.plan = plan
        self.inputs, self.outputs = ports_of(plan)
        self.streams = streams if streams is not None else make_cuda_streams(plan)
        _require_alike(plan, self.streams)
        self.tensors = self._allocate(plan)
        self._twins = plan.twins()
        loader = _cuda.make_loader(self.streams)
        for v, array in weights.items():
            self._load(loader, v, array)
        self._slots = {v: i for i, v in enumerate(dict.fromkeys((*plan.inputs, *plan.outputs)))}
        self._staging = _cuda.make_staging(self.streams, [self._copies_of(v) for v in self._slots])
        self._fetched: set[int] = set()
        computed = [op for op in plan.operators if not op.is_copy]
        source = cuda_kernels(kernels, computed, self.streams)
        self._kernels = [self._kernel(op, source) for op in plan.operators]
        self.executor = _cuda.make_executor(
            self.streams,
            self.tensors,
            [bound_operator(op, k) for op, k in zip(plan.operators, self._kernels, strict=True)],
            dispatch,
        )
        reason = _cuda.why_no_graph(self.executor)
        if reason:
            _LOG.warning("no CUDA graph, operators are launched one by one: %s", reason)

    @property
    def dispatch(self) -> _cuda.Dispatch:
        """How operators get to the GPU: in one CUDA graph, or launched one by one on streams.

        If no CUDA graph could be made, this is "streams": the host launches each operator.
        """
        return _cuda.dispatch_of(self.executor)

    @property
    def implementations(self) -> dict[str, str]:
        """Describes the algorithms with which kernel libraries run their operators.

        The keys are the operators' names. The text for an operator names its algorithm, and says
        which algorithms the library refused, and why.
        """
        return {
            op.name: _cuda.implementation(kernel)
            for op, kernel in zip(self.plan.operators, self._kernels, strict=True)
            if isinstance(kernel, _cuda.CudaLibraryKernel)
        }

    def run(self, wanted: Sequence[int] = ()) -> None:
        """Run every operator once.

        Parameters
        ----------
        wanted: inputs and outputs that are read next. They are copied to pinned memory before the
            host waits for the run.
        """
        self._fetched.clear()
        if not wanted:
            _cuda.run(self.executor)
            return
        _cuda.run_and_fetch(self.executor, self._staging, [self._slots[v] for v in wanted])
        self._fetched.update(wanted)

    def start(self) -> None:
        """Launch a run and do not wait for it. Later runs, copies and reads come after it."""
        self._fetched.clear()
        _cuda.start(self.executor)

    def view(self, value: int) -> DeviceTensor:
        """Return the value with the number `value` in the GPU's memory. The next run changes it."""
        return DeviceTensor(self.tensors[value], self.streams)

    def copy_to(self, value: int, tensor: Any) -> None:
        """Copy the plan's value with the number `value` to a tensor of the caller on the same GPU.

        Returns when the copy is done. The copy waits for unfinished work of the tensor's library,
        if the tensor's DLPack methods let another stream wait for that work.

        Raises
        ------
        InputError
            The tensor is on another GPU, or is not contiguous.
        """
        source = self.tensors[value]
        target = self._taken(tensor)
        if target.device != source.device:
            raise InputError(
                f"the tensor is on {target.device}, and the output on {source.device}: give a "
                f"tensor on {source.device}"
            )
        if not target.is_contiguous():
            raise InputError("the tensor is not contiguous; give a contiguous tensor")
        _cuda.copy_on_device(self.streams, source, [target])

    def write(self, value: int, array: Any) -> None:
        """Copy `array` into the plan's value number `value`, on every GPU that reads this value.

        Parameters
        ----------
        array: a NumPy array, or a tensor on a GPU of the plan. Such a tensor needs the methods of
            DLPack. The copy waits for unfinished work of the tensor's library.

        Raises
        ------
        InputError
            The tensor is on a GPU where the plan has no stream.
        """
        self._fetched.discard(value)
        if not isinstance(array, np.ndarray):
            _cuda.copy_on_device(self.streams, self._taken(array), self._copies_of(value))
        elif value in self._slots:
            _cuda.stage(self._staging, self._slots[value], as_tensor(aligned_copy(array)))
        else:
            self._load(_cuda.make_loader(self.streams), value, array)

    def _copies_of(self, value: int) -> list[Any]:
        """The tensors of a value, one on each GPU that reads it."""
        return [self.tensors[v] for v in (value, *self._twins.get(value, ()))]

    def _load(self, loader: _cuda.CudaLoader, value: int, array: np.ndarray) -> None:
        tensor = as_tensor(aligned_copy(array))
        for target in self._copies_of(value):
            _cuda.load(loader, tensor, target)

    def _taken(self, array: Any) -> Any:
        """Get a tensor by DLPack. The plan's stream waits for unfinished work on the tensor."""
        _, number = array.__dlpack_device__()
        devices = sorted(set(_cuda.stream_devices(self.streams)))
        if number not in devices:
            used = ", ".join(f"cuda:{device}" for device in devices)
            raise InputError(
                f"the tensor is on cuda:{number}, and the module runs on {used}: copy the tensor "
                "there"
            )
        stream = _cuda.stream_handle(self.streams, number)
        return tvm_ffi.from_dlpack(array.__dlpack__(stream=stream))

    def replace(self, value: int, array: np.ndarray) -> None:
        """Copy `array` into a weight, whose memory belongs to this instance alone."""
        self.write(value, array)

    def rebind(self, value: int, array: np.ndarray) -> None:
        """Refuse to use other memory, because a CUDA graph contains the addresses of its tensors.

        Raises
        ------
        DeviceError
            Always.
        """
        raise DeviceError(
            "a module on a GPU reads its inputs from the GPU's memory; use set_input, which copies"
        )

    def read(self, value: int) -> np.ndarray:
        """Wait for all runs, and return a host copy of the value with the number `value`."""
        planned = self.plan.values[value]
        array = aligned_empty(planned.shape, planned.dtype)
        if value not in self._slots:
            loader = _cuda.make_loader(self.streams)
            _cuda.unload(loader, self.tensors[value], as_tensor(array))
            return array
        if value not in self._fetched:
            _cuda.fetch(self._staging, self._slots[value])
        _cuda.take(self._staging, self._slots[value], as_tensor(array))
        self._fetched.discard(value)
        return array

    def time(self, number: int) -> float:
        """Run the model `number` times in a row, and return the GPU's total time in seconds."""
        self._fetched.clear()
        return _cuda.time(self.executor, number)

    def profile(self) -> list[OperatorTiming]:
        """Run every operator once, and return the times at which each operator ran."""
        self._fetched.clear()
        return _cuda.profile(self.executor)

    def _kernel(self, op: PlannedOperator, source: Kernels) -> Any:
        """Return the kernel of `op`: a copy between GPUs, or a provider's kernel."""
        if op.is_copy:
            return self._peer_copy(op)
        tensors = [self.tensors[v] for v in (*op.inputs, *op.outputs)]
        return source.shipped(op, tensors, op.stream)

    def _peer_copy(self, op: PlannedOperator) -> _cuda.PeerCopy:
        (source,), (target,) = op.inputs, op.outputs
        return _cuda.peer_copy(self.tensors[source], self.tensors[target])

    def _allocate(self, plan: Plan) -> list[Any]:
        """Allocate one block of memory on each GPU, and return the tensors within it.

        A block begins with the arena, which the plan lays out: memory for the tensors that
        operators pass to each other. The inputs, outputs and weights follow.
        """
        ends = {device: aligned_nbytes(plan.arena_of(device)) for device in plan.devices}
        offsets: dict[int, int] = {}
        for v, value in enumerate(plan.values):
            if value.storage in ("input", "output", "weight"):
                device = plan.device_of(v)
                offsets[v] = ends[device]
                ends[device] += aligned_nbytes(value.nbytes)
        blocks = {device: self._block(device, ends[device]) for device in plan.devices}
        tensors = []
        for v, value in enumerate(plan.values):
            device = plan.device_of(v)
            root = plan.values[plan.root_of(v)]
            is_planned = root.storage == "arena"
            offset = root.offset or 0 if is_planned else offsets[plan.root_of(v)]
            if value.storage == "alias":
                offset += value.offset or 0
            tensors.append(_cuda.tensor_within(blocks[device], offset, value.shape, value.dtype))
        return tensors

    def _block(self, device: str, nbytes: int) -> _cuda.CudaMemory:
        """Allocate a block of zeros on a GPU of the plan."""
        block = _cuda.make_memory(_number(device), nbytes)
        _cuda.fill_with_zeros(self.streams, block)
        return block


def aligned_nbytes(nbytes: int) -> int:
    """Return the bytes that a tensor of `nbytes` bytes takes in a block of GPU memory."""
    return -(-nbytes // _BLOCK_ALIGNMENT) * _BLOCK_ALIGNMENT


def runs_on_cuda(plan: Plan) -> bool:
    """Whether `plan` runs on GPUs."""
    return any(stream.device.startswith("cuda") for stream in plan.streams)


def require_gpu(plan: Plan) -> None:
    """Check that the GPUs of `plan` exist, and load TVM's CUDA runtime, which loads the kernels.

    Raises
    ------
    DeviceError
        A GPU or TVM's CUDA runtime is missing; the message says which.
    """
    for number in cuda_devices(plan):
        require_cuda(number)


def require_cuda(device: int) -> None:
    """Check that GPU number `device` exists, and load TVM's CUDA runtime, which loads kernels.

    Raises
    ------
    DeviceError
        The GPU or TVM's CUDA runtime is missing; the message says which.
    """
    _cuda.describe_device(device)
    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return
    import tvm

    # TVM's CUDA runtime is silently missing in two cases: TVM did not find CUDA when TVM was
    # imported, or only TVM's library `libtvm_runtime.so` was loaded.
    library = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        raise DeviceError(
            f"TVM's CUDA runtime does not load: {error}; put CUDA 13's runtime on LD_LIBRARY_PATH"
        ) from error


def cuda_devices(plan: Plan) -> list[int]:
    """Return the number of the GPU of each stream of `plan`.

    Raises
    ------
    ArtifactError
        A stream is not on a GPU, or the plan has no streams.
    """
    if not plan.streams:
        raise ArtifactError(
            "the plan has no stream; a plan for a GPU has at least one stream on a GPU"
        )
    return [_number(stream.device) for stream in plan.streams]


def _number(device: str) -> int:
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number.isdigit():
        raise ArtifactError(
            f"the plan has a stream on {device}; all its streams must be on GPUs, such as `cuda:0`"
        )
    return int(number)


def make_cuda_streams(plan: Plan) -> _cuda.CudaStreams:
    """Make the CUDA streams for `plan`, each on its GPU and with its priority.

    A warning is logged if one GPU cannot access the memory of another GPU, because copies between
    such GPUs are slower.
    """
    urgent = [stream.urgent for stream in plan.streams]
    streams = _cuda.make_streams(cuda_devices(plan), urgent)
    for device, peer in _cuda.out_of_reach(streams):
        _LOG.warning(
            "cuda:%d cannot reach the memory of cuda:%d: copies between them go through the host, "
            "which is right but slow",
            device,
            peer,
        )
    return streams


def _require_alike(plan: Plan, streams: _cuda.CudaStreams) -> None:
    # Here `zip` need not be strict: the executor checks that there are as many streams as in the
    # plan.
    devices = _cuda.stream_devices(streams)
    for s, (wanted, device) in enumerate(zip(cuda_devices(plan), devices, strict=False)):
        if wanted != device:
            raise InputError(
                f"shared stream {s} is on cuda:{device}, and the plan's stream {s} is on "
                f"cuda:{wanted}; share `make_cuda_streams(plan)` between plans on the same GPUs"
            )
    for s, (planned, urgent) in enumerate(
        zip(plan.streams, _cuda.urgent_streams(streams), strict=False)
    ):
        if planned.urgent != urgent:
            raise InputError(
                f"shared stream {s} is {'' if urgent else 'not '}urgent, and the plan's stream {s} "
                f"is {'' if planned.urgent else 'not '}urgent; share `make_cuda_streams(plan)` "
                "between plans with the same urgent streams"
            )
