"""Typed wrappers of the native CPU runtime: executors, kernel libraries, threads and timing."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm_ffi

from .gate import GATE
from .library import cpu_timings, native_function
from .operators import BoundOperator, as_native
from .timing import OperatorTiming

_function = functools.partial(native_function, "runtime")


@tvm_ffi.register_object("tvm_interop.Executor", init=False)
class Executor(tvm_ffi.Object):  # type: ignore[misc]
    """Operators with their tensors, streams and waits, ready to run. Opaque to Python."""


@tvm_ffi.register_object("tvm_interop.LibraryKernel", init=False)
class LibraryKernel(tvm_ffi.Object):  # type: ignore[misc]
    """A prepared kernel of a kernel library, bound to its tensors. Opaque to Python."""


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


def blocked_layout(name: str) -> str:
    """Return the blocked tensor layout for which library `name` has fast kernels on this CPU."""
    return str(_function("blocked_layout")(name))


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
    library: the library's name.
    description: the operator that the kernel computes, as `LibraryOp.fields` returns it.
    threads: the number of threads that the kernel may use.
    tensors: the kernel's arguments, aligned to 64 bytes. The kernel keeps them alive.
    constants: for each tensor, whether it holds the same values in every run. To change the values,
        replace the tensor with `bind`.

    Raises
    ------
    ExecutionError
        The library cannot compute the operator.
    """
    kernel: LibraryKernel = _function("prepare_kernel")(
        library, dict(description), threads, list(tensors), [bool(c) for c in constants]
    )
    return kernel


def implementation(kernel: LibraryKernel) -> str:
    """Return the name that the library gives to the implementation that it chose for the kernel."""
    return str(_function("implementation")(kernel))


def unknown_imports(code: bytes) -> list[str]:
    """Return the functions that a library of kernels calls, but the runtime library lacks.

    The runtime library runs models without TVM. Kernels may call only functions that the runtime
    library contains or finds in the C library. The file `runtime/model/tvm_imports.cc` lists these
    functions.

    Parameters
    ----------
    code: the content of the library's file.

    Raises
    ------
    ExecutionError
        `code` is not a shared library.
    """
    return [str(name) for name in _function("unknown_imports")(code)]


def num_reorders(kernel: LibraryKernel) -> int:
    """Return how many inputs and outputs the kernel copies to another layout in each run."""
    return int(_function("num_reorders")(kernel))


def allowed_cores() -> int:
    """Return how many cores this process may use at a time, at least 1.

    The result is the smaller of two numbers. The first is the number of physical cores that the
    calling thread may run on. The second is the CPU quota of the process's container, rounded down.
    """
    return int(_function("allowed_cores")())


def num_threads() -> int:
    """Return how many threads may run models at once, including the threads that call `run`."""
    return int(_function("num_threads")())


def set_num_threads(threads: int, pin: bool) -> None:
    """Set how many threads may run models at once. `pin` pins each thread to one core.

    Raises
    ------
    ExecutionError
        `threads` is not positive.
    """
    _function("set_num_threads")(threads, pin)


def take_over_parallel_loops(path: str) -> None:
    """Prepare the loaded library at `path`, so that its parallel loops can run task by task.

    A kernel's parallel loop consists of tasks. If a kernel runs in shares, each task is a share,
    which runs as a separate operator.

    Raises
    ------
    ExecutionError
        The library is not loaded.
    """
    _function("take_over_parallel_loops")(path)


def make_executor(
    num_streams: int,
    threads: int,
    values: Sequence[Any],
    operators: Sequence[BoundOperator],
) -> Executor:
    """Make an executor, which runs operators on the given tensors.

    Parameters
    ----------
    num_streams: the number of streams.
    threads: the number of threads for the parallel loops of one stream's kernels.
    values: the tensors, aligned to 64 bytes. The executor keeps them alive.
    operators: the operators, each after all operators that it waits for. If an operator's kernel is
        a `LibraryKernel`, it must have been prepared with the tensors in the operator's `args`.

    Raises
    ------
    ExecutionError
        A stream does not exist, an operator waits for an operator that does not come before it in
        `operators`, or the system refuses to start a thread.
    InputError
        A tensor is not aligned.
    """
    executor: Executor = _function("make_executor")(
        num_streams, threads, list(values), as_native(operators)
    )
    return executor


def executor_of(instance: int) -> Executor:
    """Return the executor of an instance of the C interface (`tvi_instance`), given its address.

    The instance must outlive the executor.
    """
    executor: Executor = _function("executor_of")(ctypes.c_void_p(instance))
    return executor


def bind(executor: Executor, value: int, tensor: Any) -> None:
    """Use `tensor` in place of the executor's tensor number `value`, from the next run on.

    `tensor` has the same shape and dtype as the tensor that it replaces.
    """
    _function("bind")(executor, value, tensor)


def run(executor: Executor) -> None:
    """Run every operator once.

    Raises
    ------
    ExecutionError
        An operator failed (the message names it), or another thread is in `run`.
    """
    with GATE:
        _function("run")(executor)


def profile(executor: Executor) -> list[OperatorTiming]:
    """Run every operator once, and return the times at which each operator ran."""
    with GATE:
        return cpu_timings(_function("profile")(executor))


def time(executor: Executor, number: int) -> float:
    """Run `number` times, one run after the other, and return the total time in seconds."""
    with GATE:
        return float(_function("time")(executor, number))


def measure_interleaved(
    executors: Sequence[Executor],
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
    primed: whether to run an executor once more, untimed, just before each of its timed runs. Then
        the executor's threads are awake and its tensors are in caches.

    Returns
    -------
    For each executor, its `repeats` times in seconds, in the order of the rounds.
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
    """Run a packed function on tensors that lie next to memory pages that must not be accessed.

    The function gets copies of the inputs, which are read-only. It runs on the calling thread. A
    forbidden access raises a signal, which is caught and reported.

    Parameters
    ----------
    kernel: the function to run, a TVM kernel as a packed function.
    inputs, outputs: NumPy arrays. The results are written to `outputs`. bfloat16 is passed as
        uint16.
    before_fence: whether tensors end right before a forbidden page. If not set, tensors begin right
        after a forbidden page.
    fill: the value of all bytes of the outputs before the call.
    shares: the number of shares in which to run the function, one after the other; 0 runs the whole
        function at once.

    Returns
    -------
    The forbidden access that the function made, such as `writes outside of input 1`, or "" if there
    was none. `outputs` holds the results only if there was no such access.
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
    """Check a kernel of a loaded kernel library as `run_fenced` checks a function, on one thread.

    Parameters
    ----------
    constants: for each input, whether it holds the same values in every run. The kernel prepares
        such inputs only once.

    Raises
    ------
    ExecutionError
        The library cannot compute the described operator.
    """
    tensors = [[_tensor_over(array) for array in arrays] for arrays in (inputs, outputs)]
    run = _function("run_library_fenced")
    return str(run(library, dict(description), *tensors, list(constants), before_fence, fill))


def _tensor_over(array: np.ndarray) -> Any:
    """Return a tensor that shares the array's memory; a bfloat16 array becomes a uint16 tensor."""
    return tvm_ffi.from_dlpack(array.view(np.uint16) if array.dtype == "bfloat16" else array)
