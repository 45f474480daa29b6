"""How many threads run models in this process."""

from __future__ import annotations

from .._native import cpu as _runtime
from ..errors import InputError


def num_threads() -> int:
    """Threads that run models in this process at most, those that call `run` among them.

    By default the environment variable `TVM_INTEROP_NUM_THREADS`, or else the cores that the
    process may use: its CPU affinity and the CPU quota of its container are counted.
    """
    return _runtime.num_threads()


def set_num_threads(threads: int, *, pin: bool = False) -> None:
    """Let models run on so many threads in this process from now on, whatever they were made for.

    All models share these threads. One that is made for more streams runs right on fewer, only not
    as fast. Models that are compiled afterwards are compiled for so many.

    Parameters
    ----------
    threads: those that call `run` among them; 1 lets no other thread work.
    pin: give each thread a core of its own, for a machine that runs nothing else. Where others
        compute it does harm: a thread whose core is taken can go nowhere else.

    Raises
    ------
    InputError
        `threads` is not positive.
    """
    if isinstance(threads, bool) or not isinstance(threads, int) or not 0 < threads <= 4096:
        raise InputError(f"`threads` must be a number from 1 to 4096, got {threads!r}")
    _runtime.set_num_threads(threads, pin)
