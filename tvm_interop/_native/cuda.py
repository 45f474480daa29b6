"""The native runtime's functions for CUDA, typed: streams, memory, executors.

Nothing here needs CUDA until it is called; then a machine without it raises `DeviceError`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import tvm_ffi

from .gate import GATE
from .library import OperatorTiming, gpu_timings, native_function
from .operators import BoundOperator, as_native

_function = functools.partial(native_function, "cuda")

Dispatch = Literal["streams", "captured", "linked"]
"""How operators get to the GPU: each in every run; in one graph that was captured from the streams;
in one graph made of each operator's own, linked by the plan's waits."""


@tvm_ffi.register_object("tvm_interop.CudaStreams", init=False)
class CudaStreams(tvm_ffi.Object):  # type: ignore[misc]
    """Streams that executors share, and their events; stream 0 starts and ends a run. Opaque."""


@tvm_ffi.register_object("tvm_interop.CudaMemory", init=False)
class CudaMemory(tvm_ffi.Object):  # type: ignore[misc]
    """A block of a GPU's memory, freed once no tensor within it is left. Opaque."""


@tvm_ffi.register_object("tvm_interop.PeerCopy", init=False)
class PeerCopy(tvm_ffi.Object):  # type: ignore[misc]
    """A copy from one GPU to another, to be planned as an operator. Opaque."""


@tvm_ffi.register_object("tvm_interop.CudaLibraryKernel", init=False)
class CudaLibraryKernel(tvm_ffi.Object):  # type: ignore[misc]
    """A kernel of cuDNN's or cuBLASLt's, its algorithm chosen, its tensors bound. Opaque."""


@tvm_ffi.register_object("tvm_interop.CudaExecutor", init=False)
class CudaExecutor(tvm_ffi.Object):  # type: ignore[misc]
    """Operators bound to their tensors, streams and waits. Opaque."""


def device_count() -> int:
    """How many GPUs there are.

    Raises
    ------
    DeviceError
        None, or no CUDA; says what is missing.
    """
    return int(_function("device_count")())


def describe_device(device: int) -> str:
    """The GPU's name, its architecture and the driver's version.

    Raises
    ------
    DeviceError
        There is no such GPU.
    """
    return str(_function("describe_device")(device))


def make_streams(devices: Sequence[int], urgent: Sequence[bool] | None = None) -> CudaStreams:
    """Make a stream on each of `devices`, which may repeat; GPUs get access to each other's memory.

    Parameters
    ----------
    urgent: whether the GPU should prefer a stream's work; by default none's.

    Raises
    ------
    DeviceError
        There is no such GPU.
    """
    flags = [False] * len(devices) if urgent is None else [bool(u) for u in urgent]
    streams: CudaStreams = _function("make_streams")(list(devices), flags)
    return streams


def urgent_streams(streams: CudaStreams) -> list[bool]:
    """Whether the GPU prefers its work, of each stream."""
    return [bool(urgent) for urgent in _function("urgent_streams")(streams)]


def stream_devices(streams: CudaStreams) -> list[int]:
    """The number of the GPU of each stream."""
    return [int(device) for device in _function("stream_devices")(streams)]


def out_of_reach(streams: CudaStreams) -> list[tuple[int, int]]:
    """GPUs of the streams, by number, of which the first cannot reach the memory of the second."""
    return [(int(device), int(peer)) for device, peer in _function("out_of_reach")(streams)]


def make_memory(device: int, nbytes: int) -> CudaMemory:
    """Allocate a block, all zeros.

    Raises
    ------
    ExecutionError
        The GPU has not that much left.
    """
    memory: CudaMemory = _function("make_memory")(device, nbytes)
    return memory


def tensor_within(memory: CudaMemory, offset: int, shape: Sequence[int], dtype: str) -> Any:
    """A tensor at `offset` bytes in a block, which lives as long as the tensor does."""
    return _function("tensor_within")(
        memory, offset, tvm_ffi.Shape(tuple(shape)), tvm_ffi.dtype(dtype)
    )


def copy_to_device(streams: CudaStreams, host: Any, device: Any) -> None:
    """Copy a host tensor to one on a GPU, in order with the runs on `streams`; return when done.

    Raises
    ------
    ExecutionError
        None of `streams` is on that GPU.
    """
    _function("copy_to_device")(streams, host, device)


def copy_to_host(streams: CudaStreams, device: Any, host: Any) -> None:
    """Copy a tensor on a GPU to one of the host, in order with the runs on `streams`."""
    _function("copy_to_host")(streams, device, host)


def peer_copy(source: Any, destination: Any) -> PeerCopy:
    """A copy between tensors on different GPUs, to be given to `make_executor` as a kernel."""
    copy: PeerCopy = _function("peer_copy")(source, destination)
    return copy


def load_kernel_library(name: str, path: str) -> str:
    """Load kernel library `name` from the file at `path`; its version.

    Raises
    ------
    ExecutionError
        It cannot be loaded; says why.
    """
    return str(_function("load_kernel_library")(name, path))


def why_unsupported(name: str, description: Mapping[str, Any]) -> str:
    """Why library `name` cannot compute what is described, empty where it can."""
    return str(_function("why_unsupported")(name, dict(description)))


def prepare_kernel(
    library: str,
    description: Mapping[str, Any],
    streams: CudaStreams,
    stream: int,
    tensors: Sequence[Any],
) -> CudaLibraryKernel:
    """Prepare a kernel of a library that is loaded; it can run on any stream of its GPU.

    The first time for such an operator in this process, the library's algorithms are timed against
    each other on that stream, and the fastest is kept.

    Parameters
    ----------
    stream: which of `streams`; its GPU is the kernel's.
    tensors: its arguments, aligned to 16 bytes, the output last, which is written; kept alive by
        the kernel.

    Raises
    ------
    ExecutionError
        The library cannot compute this; says why.
    """
    kernel: CudaLibraryKernel = _function("prepare_kernel")(
        library, dict(description), streams, stream, list(tensors)
    )
    return kernel


def implementation(kernel: CudaLibraryKernel) -> str:
    """What the library chose to run, for people."""
    return str(_function("implementation")(kernel))


def make_executor(
    streams: CudaStreams,
    values: Sequence[Any],
    operators: Sequence[BoundOperator],
    dispatch: Dispatch = "captured",
) -> CudaExecutor:
    """Bind operators to tensors, run each once, and make a graph of them all.

    Parameters
    ----------
    values: tensors on GPUs; kept alive by the executor.
    operators: in the order of launching. A kernel is a packed function that takes its stream from
        tvm-ffi's environment, a `CudaLibraryKernel` or a `PeerCopy`; none is a share of one.
    dispatch: where the graph asked for cannot be made, `dispatch_of` is "streams", and
        `why_no_graph` tells.

    Raises
    ------
    ExecutionError
        A stream that is not there, a wait for an operator that is not earlier, an operator that
        fails (named).
    """
    executor: CudaExecutor = _function("make_executor")(
        streams, list(values), as_native(operators), dispatch
    )
    return executor


def dispatch_of(executor: CudaExecutor) -> Dispatch:
    """How `executor` gets its operators to the GPU in fact."""
    dispatch: Dispatch = _function("dispatch")(executor)
    return dispatch


def why_no_graph(executor: CudaExecutor) -> str:
    """Why the graph asked for could not be made; empty where it was, or none was asked for."""
    return str(_function("why_no_graph")(executor))


def run(executor: CudaExecutor) -> None:
    """Run every operator once.

    Raises
    ------
    ExecutionError
        The GPU reports a failure, an operator (named) could not be launched, or another thread
        is using the streams.
    """
    with GATE:
        _function("run")(executor)


def time(executor: CudaExecutor, number: int) -> float:
    """Seconds the GPU took for `number` runs, one after the other."""
    with GATE:
        return float(_function("time")(executor, number))


def time_launches(executor: CudaExecutor, number: int) -> float:
    """Seconds the host took to launch `number` runs, without waiting for the GPU."""
    with GATE:
        return float(_function("time_launches")(executor, number))


def profile(executor: CudaExecutor) -> list[OperatorTiming]:
    """Run once; operator, stream, start and end in microseconds since the run began, each.

    Operators are launched one by one for this, whatever the dispatch.
    """
    with GATE:
        return gpu_timings(_function("profile")(executor))


def measure_interleaved(
    executors: Sequence[CudaExecutor],
    warmup: int,
    repeats: int,
    seed: int = 0,
    primed: bool = False,
) -> list[list[float]]:
    """Time executors against each other: every round runs each once, in an order drawn anew.

    Parameters
    ----------
    primed: run each once more, untimed, just before each of its timed runs, so that caches hold
        what it can keep there, whatever the others did.

    Returns
    -------
    For each executor its `repeats` times on the GPU, in seconds, in the order of the rounds.
    """
    with GATE:
        flat = list(
            _function("measure_interleaved")(list(executors), warmup, repeats, seed, primed)
        )
    return [flat[i * repeats : (i + 1) * repeats] for i in range(len(executors))]


def with_binary(module: Any, source: bytes, binary: bytes) -> Any:
    """TVM's CUDA module `module` with machine code in place of its source, which it keeps too."""
    return _function("with_binary")(module, source, binary)
