"""Makes sure that no thread is running a model when the Python interpreter shuts down.

Daemon threads keep running while Python shuts down. If such a thread returns from a native call
during the shutdown, Python ends the thread at once. The C++ code on the thread's stack cannot
handle this, and the process dies with SIGABRT. So shutdown waits for the native calls that are
running, and it blocks new calls.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque

_LONGEST_WAIT_S = 10.0
"""The longest time that shutdown waits for running calls, in seconds."""


class _Gate:
    """Counts the threads that are inside of native calls, and can block threads that begin one.

    A thread that enters first adds itself to the count of threads, and then checks whether the gate
    is closed. `close` first closes the gate and then reads the count. So the count that `close`
    reads includes every thread that found the gate open.

    The number of threads is the length of a deque, because append and pop are atomic and need no
    lock. Taking a lock would last longer than running a small model.
    """

    def __init__(self) -> None:
        self._inside: deque[None] = deque()
        self._is_closed = False

    def __enter__(self) -> None:
        self._inside.append(None)
        if self._is_closed and threading.current_thread() is not threading.main_thread():
            self._inside.pop()
            threading.Event().wait()  # Block forever.

    def __exit__(self, *_: object) -> None:
        self._inside.pop()

    def close(self) -> None:
        """Block new calls from all threads but the main one, and wait until running calls end.

        The method waits at most `_LONGEST_WAIT_S` seconds.
        """
        self._is_closed = True
        until = time.monotonic() + _LONGEST_WAIT_S
        while self._inside and time.monotonic() < until:
            time.sleep(0.001)

    def in_child(self) -> None:
        """Set the count of a forked child to 0: its only thread is not inside a native call."""
        self.__init__()  # type: ignore[misc]


GATE = _Gate()
"""The gate of this process. Every native call that runs a model enters it."""
os.register_at_fork(after_in_child=GATE.in_child)
atexit.register(GATE.close)
