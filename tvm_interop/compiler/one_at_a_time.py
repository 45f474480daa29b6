"""Lets one thread of a process compile at a time.

TVM's `BlockBuilder` keeps the builders that are in use in a list that all threads share, so two
threads would build into each other's functions. Besides, their measurements would disturb each
other.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])


class _Turn:
    """A lock that a thread may take again, and the thread that has it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.thread: int | None = None


_TURN = _Turn()


def one_at_a_time(function: _F) -> _F:
    """Return a function that waits until no other thread runs such a function, and calls it."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with _TURN.lock:
            before, _TURN.thread = _TURN.thread, threading.get_ident()
            try:
                return function(*args, **options)
            finally:
                _TURN.thread = before

    return cast(_F, call)


def _renew() -> None:
    """In a forked child, forget a compilation that another thread of the parent was running."""
    if _TURN.thread in (None, threading.get_ident()):
        return
    from tvm import relax

    _TURN.lock, _TURN.thread = threading.RLock(), None
    relax.BlockBuilder._stack.clear()


os.register_at_fork(after_in_child=_renew)
