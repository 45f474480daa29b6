"""Limits the share of a core that a background thread takes beside a server.

The policy `auto` runs its simulations in a background thread while the server answers requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..policy import Policy, Setting
from ..tasks import Admit, Start, View, Wait

_PIECE_S = 0.001


class Closed(Exception):
    """Raised in the background thread when its result is no longer wanted."""


class Pace:
    """Limits the share of the time for which the thread that calls `step` works.

    A thread that computes in Python holds a core and Python's global lock. To answer a request, the
    server also needs a core and this lock, several times. If the thread computed for a second
    without a break, all requests in that second would be late.

    Parameters
    ----------
    share: share of a core that the thread may take, above 0 and at most 1.
    worked_s: function that returns the CPU time of the calling thread so far, in seconds.
    """

    def __init__(self, share: float, worked_s: Callable[[], float] = time.thread_time) -> None:
        self._rest = 1 / share - 1
        self._worked_s = worked_s
        self._since_s: float | None = None
        self._closed = threading.Event()

    def step(self) -> None:
        """Sleep if the thread has worked for a millisecond or more since it last slept.

        The background thread must call this method often, because it can sleep only in this method.

        Raises
        ------
        Closed
            The thread should sleep now, but `close` was called, so the thread should end instead.
        """
        if self._since_s is None:
            # Read the CPU time here and not in the constructor. Another thread may have created
            # this object, and each thread has a CPU time of its own.
            self._since_s = self._worked_s()
        took_s = self._worked_s() - self._since_s
        if took_s >= _PIECE_S:
            if self._closed.wait(took_s * self._rest):
                raise Closed
            self._since_s = self._worked_s()

    def close(self) -> None:
        """Make the background thread end at its next sleep. Any thread may call this method."""
        self._closed.set()


class Paced(Policy):
    """A wrapper of a policy that calls `Pace.step` before each decision."""

    def __init__(self, inner: Policy, pace: Pace) -> None:
        self._inner = inner
        self._pace = pace

    def prepare(self, setting: Setting) -> None:
        """Pass `setting` on to the wrapped policy."""
        self._inner.prepare(setting)

    def decide(self, view: View) -> Start | Admit | Wait:
        """Sleep if the thread has worked long enough, then return the wrapped policy's decision."""
        self._pace.step()
        return self._inner.decide(view)
