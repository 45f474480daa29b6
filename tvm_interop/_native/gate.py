"""Lets no thread be inside of a model when the interpreter ends.

Daemon threads go on while Python takes itself apart. One that comes back from a native call then is
ended where it is, which the C++ between it and its beginning takes for an error: the process dies
with SIGABRT. So the end waits for the calls that run, and lets no new one begin.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque

_LONGEST_WAIT_S = 10.0
"""For calls that run when the interpreter ends."""


class _Gate:
    """Whoever enters is counted before the gate is looked at, and the gate is closed before they
    are counted: so nobody slips through. A deque's ends are moved in one step, and without a lock,
    which would take longer than a small model.
    """

    def __init__(self) -> None:
        self._inside: deque[None] = deque()
        self._is_closed = False

    def __enter__(self) -> None:
        self._inside.append(None)
        if self._is_closed and threading.current_thread() is not threading.main_thread():
            self._inside.pop()
            threading.Event().wait()  # For good.

    def __exit__(self, *_: object) -> None:
        self._inside.pop()

    def close(self) -> None:
        """From now on whoever comes waits for ever; returns when those inside have left."""
        self._is_closed = True
        until = time.monotonic() + _LONGEST_WAIT_S
        while self._inside and time.monotonic() < until:
            time.sleep(0.001)

    def in_child(self) -> None:
        """A child has one thread, and it is outside."""
        self.__init__()  # type: ignore[misc]


GATE = _Gate()
"""Entered around each native call that runs a model."""
os.register_at_fork(after_in_child=GATE.in_child)
atexit.register(GATE.close)
