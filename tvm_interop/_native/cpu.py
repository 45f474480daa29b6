"""The native runtime's functions, typed: streams and executors."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm_ffi

from .gate import GATE
from .library import OperatorTiming, cpu_timings, native_function
from .operators import BoundOperator, as_native

_function = functools.partial(native_function, "runtime")


@tvm_ffi.register_object("tvm_interop.Executor", init=False)
class Executor(tvm_ffi.Object):  # type: ignore[misc]
    """Operators bound to their tensors, streams and waits. Opaque."""


@tvm_ffi.register_object("tvm_interop.LibraryKernel", init=False)
class LibraryKernel(tvm_ffi.Object):  # type: ignore[misc]
    """A library's kernel, prepared, its tensors bound. Opaque."""


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
    """How many inputs and outputs the kernel copies into another layout in each run."""
    return int(_function("num_reorders")(kernel))


def allowed_cores() -> int:
    """Cores' worth of time this process may use: physical cores, or the quota of its container."""
    return int(_function("allowed_cores")())


def num_threads() -> int:
    """Threads that run models at most, those that call among them."""
    return int(_function("num_threads")())


def set_num_threads(threads: int, pin: bool) -> None:
    """Let models run on so many threads, each on a core of its own where `pin` says so.

    Raises
    ------
    ExecutionError
        `threads` is not positive.
    """
    _function("set_num_threads")(threads, pin)


def take_over_parallel_loops(path: str) -> None:
    """Let the kernels of the library at `path`, which is loaded, be run in shares.

    Raises
    ------
    ExecutionError
        It is not loaded.
    """
    _function("take_over_parallel_loops")(path)


def make_executor(
    num_streams: int,
    threads: int,
    values: Sequence[Any],
    operators: Sequence[BoundOperator],
) -> Executor:
    """Bind operators to tensors.

    Parameters
    ----------
    threads: threads that the parallel loops of one stream's kernels are meant for.
    values: tensors, aligned to 64 bytes; kept alive by the executor.
    operators: in an order in which each comes after those it waits for. A `LibraryKernel` among
        their kernels is one of the tensors that its operator's `args` name.

    Raises
    ------
    ExecutionError
        A stream that is not there, a wait for an operator that is not earlier, a thread that the
        system refuses.
    InputError
        A tensor that is not aligned.
    """
    executor: Executor = _function("make_executor")(
        num_streams, threads, list(values), as_native(operators)
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
        An operator failed (named), or another thread is in `run`.
    """
    with GATE:
        _function("run")(executor)


def profile(executor: Executor) -> list[OperatorTiming]:
    """Run once, and tell when each operator ran."""
    with GATE:
        return cpu_timings(_function("profile")(executor))


def time(executor: Executor, number: int) -> float:
    """Seconds that `number` runs took, one after the other."""
    with GATE:
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
    with GATE:
        flat = list(
            _function("measure_interleaved")(list(executors), warmup, repeats, seed, primed)
        )
    return [flat[i * repeats : (i + 1) * repeats] for i in range(len(executors))]


def run_fenced(
    kernel: Any,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    before_fence: bool,
    fill: int,
    shares: int = 0,
) -> str:
    """Run a packed function on copies of `inputs`, in memory whose surroundings nobody may touch.

    Inputs cannot be written to. The call runs on the calling thread, in which traps are caught.

    Parameters
    ----------
    inputs, outputs: NumPy arrays, outputs to be written; bfloat16 is taken as words of 16 bits.
    before_fence: whether tensors lie against the page behind them, or against the one before.
    fill: the byte that outputs are full of before.
    shares: run it in so many shares, one after the other; 0 runs all of it at once.

    Returns
    -------
    What it did that it must not, as a predicate: `writes outside of input 1`. Empty where nothing;
    `outputs` hold the results only then.
    """
    tensors = [[_tensor_over(array) for array in arrays] for arrays in (inputs, outputs)]
    return str(_function("run_fenced")(kernel, *tensors, before_fence, fill, shares))


def run_library_fenced(
    library: str,
    description: Mapping[str, Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: Sequence[bool],
    before_fence: bool,
    fill: int,
) -> str:
    """The same of a kernel of a library that is loaded, on one thread.

    Parameters
    ----------
    constants: whether each input is the same in every run, so that the kernel prepares it once.

    Raises
    ------
    ExecutionError
        The library cannot compute this.
    """
    tensors = [[_tensor_over(array) for array in arrays] for arrays in (inputs, outputs)]
    run = _function("run_library_fenced")
    return str(run(library, dict(description), *tensors, list(constants), before_fence, fill))


def _tensor_over(array: np.ndarray) -> Any:
    """A tensor over the array's memory, of a type that DLPack and TVM's kernels have in common."""
    return tvm_ffi.from_dlpack(array.view(np.uint16) if array.dtype == "bfloat16" else array)
