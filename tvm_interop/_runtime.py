"""The native runtime's functions, typed: streams and executors."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi

from ._library import native_function, profile_rows

_function = functools.partial(native_function, "runtime")

SPIN_US = 50.0
"""How long a stream that waits keeps its core busy before it parks, in microseconds."""


@tvm_ffi.register_object("tvm_interop.CpuStreams", init=False)
class CpuStreams(tvm_ffi.Object):  # type: ignore[misc]
    """Worker threads that executors share; stream 0 is the calling thread. Opaque."""


@tvm_ffi.register_object("tvm_interop.Executor", init=False)
class Executor(tvm_ffi.Object):  # type: ignore[misc]
    """Operators bound to their tensors, streams and waits. Opaque."""


@tvm_ffi.register_object("tvm_interop.LibraryKernel", init=False)
class LibraryKernel(tvm_ffi.Object):  # type: ignore[misc]
    """A library's kernel, prepared, its tensors bound. Opaque."""


def prepare_kernel(
    library: str,
    description: Mapping[str, Any],
    threads: int,
    tensors: Sequence[Any],
    constants: Sequence[bool],
) -> LibraryKernel:
    """Prepare a kernel of a library that is loaded.

    Parameters
    ----------
    threads: threads it may use.
    tensors: its arguments, aligned to 64 bytes; kept alive by the kernel.
    constants: whether each is the same in every run, until it is bound anew.

    Raises
    ------
    ExecutionError
        The library cannot compute this.
    """
    kernel: LibraryKernel = _function("prepare_kernel")(
        library, dict(description), threads, list(tensors), [bool(c) for c in constants]
    )
    return kernel


def implementation(kernel: LibraryKernel) -> str:
    """What the library chose to run, by its own name."""
    return str(_function("implementation")(kernel))


def num_reorders(kernel: LibraryKernel) -> int:
    """How many tensors it brings into another layout in each run."""
    return int(_function("num_reorders")(kernel))


def make_cpu_streams(
    num_streams: int, threads: int, parallel_kernels: bool, spin_us: float = SPIN_US
) -> CpuStreams:
    """Start `num_streams - 1` worker threads, each on cores of its own where there are enough.

    Parameters
    ----------
    threads: threads the kernels of each stream may use.
    parallel_kernels: whether kernels use a team at all; serial ones need not be told its size.
    """
    streams: CpuStreams = _function("make_cpu_streams")(
        num_streams, threads, parallel_kernels, spin_us
    )
    return streams


def has_own_cores(streams: CpuStreams) -> bool:
    """Whether each stream got cores of its own; if not they take turns, and no speed is gained."""
    return bool(_function("has_own_cores")(streams))


def allowed_cores() -> int:
    """Physical cores this process may run on."""
    return int(_function("allowed_cores")())


def take_over_parallel_loops(path: str) -> None:
    """Let the kernels of the library at `path`, which is loaded, be run in shares.

    Raises
    ------
    ExecutionError
        It is not loaded.
    """
    _function("take_over_parallel_loops")(path)


def make_executor(
    streams: CpuStreams,
    values: Sequence[Any],
    names: Sequence[str],
    kernels: Sequence[Any],
    args: Sequence[Sequence[int]],
    stream_of: Sequence[int],
    waits: Sequence[Sequence[int]],
    shares: Sequence[tuple[int, int] | None] = (),
) -> Executor:
    """Bind operators to tensors.

    Parameters
    ----------
    values: tensors, aligned to 64 bytes; kept alive by the executor.
    names, kernels, args, stream_of, waits: one entry an operator: its name, its kernel (a packed
        function or a `LibraryKernel` of these tensors), the indices of its arguments in `values`,
        its stream, the earlier operators it waits for.
    shares: of each operator, which share of its packed function runs, and of how many; None for
        all of it. Empty where none is divided.

    Raises
    ------
    ExecutionError
        A stream that is not there, a wait for an operator that is not earlier.
    InputError
        A tensor that is not aligned.
    """
    executor: Executor = _function("make_executor")(
        streams,
        list(values),
        list(names),
        list(kernels),
        [list(a) for a in args],
        list(stream_of),
        [list(w) for w in waits],
        [list(share or ()) for share in shares or [None] * len(names)],
    )
    return executor


def bind(executor: Executor, value: int, tensor: Any) -> None:
    """Point value number `value` at `tensor`, of the same shape and type, from the next run on."""
    _function("bind")(executor, value, tensor)


def run(executor: Executor) -> None:
    """Run every operator once.

    Raises
    ------
    ExecutionError
        An operator failed (named), another thread is in `run`, or this is a forked child.
    """
    _function("run")(executor)


def profile(executor: Executor) -> list[tuple[int, int, float, float]]:
    """Run once; operator, stream, start and end in microseconds since the run began, each."""
    return profile_rows(list(_function("profile")(executor)))


def time(executor: Executor, number: int) -> float:
    """Seconds that `number` runs took, one after the other."""
    return float(_function("time")(executor, number))


def measure_interleaved(
    executors: Sequence[Executor],
    warmup: int,
    repeats: int,
    seed: int = 0,
    primed: bool = False,
) -> list[list[float]]:
    """Time executors against each other: every round runs each once, in an order drawn anew.

    Parameters
    ----------
    primed: run each once more, untimed, just before each of its timed runs, so that its streams
        are awake and its tensors in caches, whatever the others did.

    Returns
    -------
    For each executor its `repeats` times, in seconds, in the order of the rounds.
    """
    flat = list(_function("measure_interleaved")(list(executors), warmup, repeats, seed, primed))
    return [flat[i * repeats : (i + 1) * repeats] for i in range(len(executors))]
