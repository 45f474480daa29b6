"""Typed wrappers of the native CUDA runtime: streams, memory, kernel libraries, executors.

This module can be imported on a machine without CUDA. There, its functions raise `DeviceError`.
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
    """A block of GPU memory. It is freed once no tensor uses it any more. Opaque to Python."""


@tvm_ffi.register_object("tvm_interop.CudaLoader", init=False)
class CudaLoader(tvm_ffi.Object):  # type: ignore[misc]
    """Copies tensors of any size through a small block of pinned memory. Opaque to Python."""


@tvm_ffi.register_object("tvm_interop.CudaStaging", init=False)
class CudaStaging(tvm_ffi.Object):  # type: ignore[misc]
    """Pinned memory with a slot for each input and output of a model. Opaque to Python."""


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
    """Make one stream for each entry of `devices`. Allow these GPUs to access each other's memory.

    Parameters
    ----------
    devices: for each stream, the number of its GPU. Streams may share a GPU.
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
    """Return, for each stream, the number of its GPU."""
    return [int(device) for device in _function("stream_devices")(streams)]


def out_of_reach(streams: CudaStreams) -> list[tuple[int, int]]:
    """Return the pairs of GPUs such that the first GPU cannot access the memory of the second.

    GPUs without a stream are left out.
    """
    return [(int(device), int(peer)) for device, peer in _function("out_of_reach")(streams)]


def make_memory(device: int, nbytes: int) -> CudaMemory:
    """Allocate a block of `nbytes` bytes on a GPU, with any contents.

    Raises
    ------
    ExecutionError
        The GPU has less than `nbytes` bytes of free memory.
    """
    memory: CudaMemory = _function("make_memory")(device, nbytes)
    return memory


def tensor_within(memory: CudaMemory, offset: int, shape: Sequence[int], dtype: str) -> Any:
    """Return a tensor that begins at byte `offset` of a block. The tensor keeps the block alive."""
    return _function("tensor_within")(
        memory, offset, tvm_ffi.Shape(tuple(shape)), tvm_ffi.dtype(dtype)
    )


def fill_with_zeros(streams: CudaStreams, memory: CudaMemory) -> None:
    """Fill a block with zeros. Later runs and copies on `streams` begin after the block is filled.

    At least one stream of `streams` must be on the block's GPU.
    """
    _function("fill_with_zeros")(streams, memory)


def make_loader(streams: CudaStreams) -> CudaLoader:
    """Make a loader, which copies tensors to and from GPUs through 4 MiB of pinned memory.

    Raises
    ------
    ExecutionError
        This machine has not enough memory.
    """
    loader: CudaLoader = _function("make_loader")(streams)
    return loader


def load(loader: CudaLoader, host: Any, device: Any) -> None:
    """Copy a tensor in host memory to a tensor on a GPU, and return when `host` may be changed.

    The copy happens after the runs that are already launched on the loader's streams, and before
    later runs.

    Raises
    ------
    ExecutionError
        None of the loader's streams is on the tensor's GPU.
    """
    _function("load")(loader, host, device)


def unload(loader: CudaLoader, device: Any, host: Any) -> None:
    """Copy a tensor on a GPU to host memory, when all runs on the loader's streams have ended."""
    _function("unload")(loader, device, host)


def make_staging(streams: CudaStreams, ports: Sequence[Sequence[Any]]) -> CudaStaging:
    """Make the pinned memory for the inputs and outputs of an instance of a model.

    Parameters
    ----------
    ports: for each input or output, its tensors on GPUs. `fetch` copies only the first tensor.

    Raises
    ------
    ExecutionError
        This machine has not enough memory.
    """
    staging: CudaStaging = _function("make_staging")(streams, [list(port) for port in ports])
    return staging


def stage(staging: CudaStaging, port: int, host: Any) -> None:
    """Copy `host`, a tensor in host memory, to all tensors of an input or output (a port).

    The function returns when `host` may be changed.

    The GPU copies the data after the runs that are already launched, and before later runs.
    """
    _function("stage")(staging, port, host)


def fetch(staging: CudaStaging, port: int) -> None:
    """Begin to copy an input or output (a port) to pinned memory.

    The copying begins after the runs that are already launched.
    """
    _function("fetch")(staging, port)


def take(staging: CudaStaging, port: int, host: Any) -> None:
    """Wait for the last `fetch` of an input or output (a port), and copy its data to `host`.

    `host` is a tensor in host memory.
    """
    _function("take")(staging, port, host)


def copy_on_device(streams: CudaStreams, source: Any, targets: Sequence[Any]) -> None:
    """Copy a tensor on a GPU to other tensors on GPUs, and return when the copies are done.

    The copies happen on the first stream of the source's GPU, after the work on tvm-ffi's current
    stream of that GPU and after the runs that are already launched.
    """
    _function("copy_on_device")(streams, source, list(targets))


def stream_handle(streams: CudaStreams, device: int) -> int:
    """Return the handle of the first stream on a GPU, in the form that DLPack uses."""
    return int(_function("stream_handle")(streams, device))


def order_after(streams: CudaStreams, device: int, consumer: int) -> None:
    """Make a stream of a GPU, given by its handle, wait for all runs that are already launched."""
    _function("order_after")(streams, device, consumer)


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
    stream: an index into `streams`. The kernel is for the GPU of the stream with this index.
    tensors: the kernel's arguments, aligned to 16 bytes, with the output last. The algorithms that
        are timed write to the output. The kernel keeps the tensors alive.

    Raises
    ------
    ExecutionError
        The library cannot compute the operator; the message says why.
    """
    kernel: CudaLibraryKernel = _function("prepare_kernel")(
        library, dict(description), streams, stream, list(tensors)
    )
    return kernel


def workspace_limit() -> int:
    """Return the most bytes that a library's kernel may ask for as a workspace."""
    return int(_function("workspace_limit")())


def set_workspace_limit(nbytes: int) -> None:
    """Set the limit that `workspace_limit` returns, for kernels that are prepared from now on."""
    _function("set_workspace_limit")(nbytes)


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
    operators: the operators in the order of launching, each without a `share`. A kernel is a
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
    """Return how a run of `executor` gets its operators to the GPU (see `Dispatch`)."""
    dispatch: Dispatch = _function("dispatch")(executor)
    return dispatch


def why_no_graph(executor: CudaExecutor) -> str:
    """Return the reason why the requested graph could not be made; "" if there is none."""
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


def run_and_fetch(executor: CudaExecutor, staging: CudaStaging, ports: Sequence[int]) -> None:
    """Run every operator once, and copy the given inputs and outputs (ports) to pinned memory.

    The host waits for the GPU only once: until the run and the copies have ended.

    Raises
    ------
    ExecutionError
        The same cases as for `run`.
    """
    with GATE:
        _function("run_and_fetch")(executor, staging, list(ports))


def start(executor: CudaExecutor) -> None:
    """Launch every operator once and do not wait for the GPU.

    Raises
    ------
    ExecutionError
        An operator could not be launched (the message names it), or another thread is using the
        streams.
    """
    with GATE:
        _function("start")(executor)


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

    If the executor has a CUDA graph on one GPU, the operators run in a similar graph that also
    records the times. Otherwise the operators are launched one by one.
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
    primed: whether to run an executor once more, untimed, just before each of its timed runs. The
        caches then hold the executor's data.

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
