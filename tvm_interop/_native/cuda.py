"""Typed wrappers of the native CUDA runtime: streams, memory, kernel libraries, executors.

This module can be imported without CUDA. Its functions then raise `DeviceError` when called.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import tvm_ffi

from .gate import GATE
from .library import gpu_timings, native_function
from .operators import BoundOperator, as_native
from .timing import OperatorTiming

_function = functools.partial(native_function, "cuda")

Dispatch = Literal["streams", "captured", "linked"]
"""How a run gets its operators to the GPU.

- `streams`: the host launches every operator on its stream.
- `captured`: the host launches one CUDA graph, which was captured from the streams.
- `linked`: the host launches one CUDA graph, which consists of a graph for each operator. The
  plan's waits are the edges between these graphs.
"""


@tvm_ffi.register_object("tvm_interop.CudaStreams", init=False)
class CudaStreams(tvm_ffi.Object):  # type: ignore[misc]
    """CUDA streams and their events, which executors may share. Opaque to Python.

    A run starts and ends on stream 0.
    """


@tvm_ffi.register_object("tvm_interop.CudaMemory", init=False)
class CudaMemory(tvm_ffi.Object):  # type: ignore[misc]
    """A block of GPU memory, which is freed once no tensor uses it any more. Opaque to Python."""


@tvm_ffi.register_object("tvm_interop.PeerCopy", init=False)
class PeerCopy(tvm_ffi.Object):  # type: ignore[misc]
    """A copy from one GPU to another, which a plan treats as an operator. Opaque to Python."""


@tvm_ffi.register_object("tvm_interop.CudaLibraryKernel", init=False)
class CudaLibraryKernel(tvm_ffi.Object):  # type: ignore[misc]
    """A kernel of cuDNN or cuBLASLt, with its algorithm and its tensors. Opaque to Python."""


@tvm_ffi.register_object("tvm_interop.CudaExecutor", init=False)
class CudaExecutor(tvm_ffi.Object):  # type: ignore[misc]
    """Operators with their tensors, streams and waits, ready to run. Opaque to Python."""


def device_count() -> int:
    """Return the number of GPUs.

    Raises
    ------
    DeviceError
        There is no GPU or no CUDA; the message says what is missing.
    """
    return int(_function("device_count")())


def describe_device(device: int) -> str:
    """Return the GPU's name, its architecture and the driver's version, as text.

    Raises
    ------
    DeviceError
        There is no such GPU.
    """
    return str(_function("describe_device")(device))


def make_streams(devices: Sequence[int], urgent: Sequence[bool] | None = None) -> CudaStreams:
    """Make one stream for each entry of `devices`, and let GPUs access each other's memory.

    Parameters
    ----------
    devices: for each stream, the number of its GPU. Several streams may be on the same GPU.
    urgent: for each stream, whether its work has high priority on the GPU. By default no stream is
        urgent.

    Raises
    ------
    DeviceError
        There is no such GPU.
    """
    flags = [False] * len(devices) if urgent is None else [bool(u) for u in urgent]
    streams: CudaStreams = _function("make_streams")(list(devices), flags)
    return streams


def urgent_streams(streams: CudaStreams) -> list[bool]:
    """Return, for each stream, whether its work has high priority on the GPU."""
    return [bool(urgent) for urgent in _function("urgent_streams")(streams)]


def stream_devices(streams: CudaStreams) -> list[int]:
    """Return the number of the GPU of each stream."""
    return [int(device) for device in _function("stream_devices")(streams)]


def out_of_reach(streams: CudaStreams) -> list[tuple[int, int]]:
    """Return the pairs of GPUs such that the first GPU cannot access the second GPU's memory.

    Only the GPUs of the streams are considered.
    """
    return [(int(device), int(peer)) for device, peer in _function("out_of_reach")(streams)]


def make_memory(device: int, nbytes: int) -> CudaMemory:
    """Allocate a block of `nbytes` bytes on a GPU, filled with zeros.

    Raises
    ------
    ExecutionError
        The GPU has less than `nbytes` bytes of free memory.
    """
    memory: CudaMemory = _function("make_memory")(device, nbytes)
    return memory


def tensor_within(memory: CudaMemory, offset: int, shape: Sequence[int], dtype: str) -> Any:
    """Return a tensor at `offset` bytes in a block; the tensor keeps the block alive."""
    return _function("tensor_within")(
        memory, offset, tvm_ffi.Shape(tuple(shape)), tvm_ffi.dtype(dtype)
    )


def tensor_on_gpu(streams: CudaStreams, device: int, host: Any, dtype: str) -> Any:
    """Copy a tensor in host memory to a new tensor on a GPU, with a block of memory of its own.

    Parameters
    ----------
    streams: streams of which at least one is on the GPU.
    dtype: the type of the new tensor, whose elements have the size of the elements of `host`.

    Raises
    ------
    ExecutionError
        The GPU has not enough free memory.
    """
    return _function("tensor_on_gpu")(streams, device, host, tvm_ffi.dtype(dtype))


def copy_to_device(streams: CudaStreams, host: Any, device: Any) -> None:
    """Copy a tensor in host memory to a tensor on a GPU, and return when the copy is done.

    The copy happens after the runs that are already launched on `streams`, and before later runs.

    Raises
    ------
    ExecutionError
        No stream of `streams` is on the GPU of the tensor.
    """
    _function("copy_to_device")(streams, host, device)


def copy_to_host(streams: CudaStreams, device: Any, host: Any) -> None:
    """Copy a tensor on a GPU to host memory, after all runs launched on `streams` so far."""
    _function("copy_to_host")(streams, device, host)


def copy_on_device(streams: CudaStreams, source: Any, target: Any) -> None:
    """Copy a tensor on a GPU to another tensor on a GPU, and return when the copy is done.

    The copy happens on the first stream of the source's GPU, after the work on tvm-ffi's current
    stream of that GPU.
    """
    _function("copy_on_device")(streams, source, target)


def stream_handle(streams: CudaStreams, device: int) -> int:
    """Return the handle of the first stream on a GPU, as DLPack passes streams on."""
    return int(_function("stream_handle")(streams, device))


def peer_copy(source: Any, destination: Any) -> PeerCopy:
    """Return a kernel that copies a tensor on one GPU to a tensor on another GPU."""
    copy: PeerCopy = _function("peer_copy")(source, destination)
    return copy


def load_kernel_library(name: str, path: str) -> str:
    """Load kernel library `name` from the file at `path`, and return its version.

    Raises
    ------
    ExecutionError
        The library cannot be loaded; the message says why.
    """
    return str(_function("load_kernel_library")(name, path))


def why_unsupported(name: str, description: Mapping[str, Any]) -> str:
    """Return why library `name` cannot compute the described operator, or "" if it can."""
    return str(_function("why_unsupported")(name, dict(description)))


def prepare_kernel(
    library: str,
    description: Mapping[str, Any],
    streams: CudaStreams,
    stream: int,
    tensors: Sequence[Any],
) -> CudaLibraryKernel:
    """Prepare a kernel of a loaded library, which can run on any stream of its GPU.

    When a description is prepared for the first time in this process, the library's algorithms are
    timed against each other on the stream `stream`. Later operators with the same description use
    the fastest algorithm.

    Parameters
    ----------
    library: the library's name.
    description: the operator that the kernel computes, as `LibraryOp.fields` returns it.
    stream: an index into `streams`. The kernel is for the GPU of that stream.
    tensors: the kernel's arguments, aligned to 16 bytes, with the output last. The timing writes to
        the output. The kernel keeps the tensors alive.

    Raises
    ------
    ExecutionError
        The library cannot compute the operator; the message says why.
    """
    kernel: CudaLibraryKernel = _function("prepare_kernel")(
        library, dict(description), streams, stream, list(tensors)
    )
    return kernel


def implementation(kernel: CudaLibraryKernel) -> str:
    """Return a readable description of the implementation that the library chose."""
    return str(_function("implementation")(kernel))


def make_executor(
    streams: CudaStreams,
    values: Sequence[Any],
    operators: Sequence[BoundOperator],
    dispatch: Dispatch = "captured",
) -> CudaExecutor:
    """Bind operators to tensors, run each operator once, and make a CUDA graph of all operators.

    Parameters
    ----------
    values: the tensors on GPUs. The executor keeps them alive.
    operators: the operators in the order of launching, without shares of kernels. A kernel is a
        `CudaLibraryKernel`, a `PeerCopy`, or a packed function. A packed function takes its stream
        from tvm-ffi's environment.
    dispatch: how a run gets its operators to the GPU. If the graph cannot be made, `dispatch_of`
        returns "streams" and `why_no_graph` returns the reason.

    Raises
    ------
    ExecutionError
        A stream does not exist, an operator waits for an operator that does not come before it in
        `operators`, or an operator fails (the message names it).
    """
    executor: CudaExecutor = _function("make_executor")(
        streams, list(values), as_native(operators), dispatch
    )
    return executor


def dispatch_of(executor: CudaExecutor) -> Dispatch:
    """Return how `executor` gets its operators to the GPU."""
    dispatch: Dispatch = _function("dispatch")(executor)
    return dispatch


def why_no_graph(executor: CudaExecutor) -> str:
    """Return why the requested graph could not be made, or "" if it was made or not requested."""
    return str(_function("why_no_graph")(executor))


def run(executor: CudaExecutor) -> None:
    """Run every operator once.

    Raises
    ------
    ExecutionError
        The GPU reports a failure, an operator could not be launched (the message names it), or
        another thread is using the streams.
    """
    with GATE:
        _function("run")(executor)


def time(executor: CudaExecutor, number: int) -> float:
    """Run `number` times, one run after the other; return the GPU's total time in seconds."""
    with GATE:
        return float(_function("time")(executor, number))


def time_launches(executor: CudaExecutor, number: int) -> float:
    """Launch `number` runs without waiting for the GPU.

    The result is the time that the launches take on the host, in seconds.
    """
    with GATE:
        return float(_function("time_launches")(executor, number))


def profile(executor: CudaExecutor) -> list[OperatorTiming]:
    """Run every operator once, and return the times at which each operator ran.

    If the executor has a graph on one GPU, the operators run in a graph that records the times too.
    Otherwise they are launched one by one.
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
    """Time executors against each other. Each round runs every executor once, in a random order.

    Parameters
    ----------
    warmup: untimed rounds before the timed ones.
    repeats: timed rounds.
    seed: seed of the random orders.
    primed: whether to run each executor once more, untimed, just before each timed run. The caches
        then hold the executor's data, whatever the other executors did.

    Returns
    -------
    For each executor, its `repeats` times on the GPU in seconds, in the order of the rounds.
    """
    with GATE:
        flat = list(
            _function("measure_interleaved")(list(executors), warmup, repeats, seed, primed)
        )
    return [flat[i * repeats : (i + 1) * repeats] for i in range(len(executors))]


def with_binary(module: Any, source: bytes, binary: bytes) -> Any:
    """Return a copy of a CUDA module of TVM, with its source code replaced by machine code.

    Parameters
    ----------
    source: the source code that the module contains.
    binary: the machine code that was compiled from `source`.

    Raises
    ------
    DeviceError
        The installed TVM saves CUDA modules in an unknown form.
    """
    return _function("with_binary")(module, source, binary)
