"""Gets and sets the number of threads that run models in this process."""

from __future__ import annotations

from .._native import runtime as _runtime
from ..errors import InputError


def num_threads() -> int:
    """Return the largest number of threads that run models in this process.

    Threads that call `run` are included. The default is the value of the environment variable
    `TVM_INTEROP_NUM_THREADS`. If the variable is not set, the default is the number of cores that
    the process may use. That number depends on the process's CPU affinity and on the CPU quota of
    its container.
    """
    return _runtime.num_threads()


def set_num_threads(threads: int, *, pin: bool = False) -> None:
    """Set the number of threads that run models in this process.

    All models in the process share the same threads. A model that was compiled for more streams
    gives the same results on fewer threads, but runs more slowly. Models that are compiled later
    are compiled for this number of threads.

    Parameters
    ----------
    threads: the number of threads, from 1 to 4096. It includes threads that call `run`. With 1, the
        calling thread runs the whole model.
    pin: whether to pin each thread to its own core. This is meant for a machine that runs nothing
        else: if another program uses a thread's core, the thread cannot move to a free core.

    Raises
    ------
    InputError
        `threads` is not a whole number from 1 to 4096.
    """
    if isinstance(threads, bool) or not isinstance(threads, int) or not 0 < threads <= 4096:
        raise InputError(f"`threads` must be a number from 1 to 4096, got {threads!r}")
    _runtime.set_num_threads(threads, pin)
