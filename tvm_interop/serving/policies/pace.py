"""Work beside a server, in small pieces."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..policy import Policy, Setting
from ..tasks import Admit, Start, View, Wait

_PIECE_S = 0.001


class Closed(Exception):
    """Nobody wants to know any more."""


class Pace:
    """Lets one thread, the one that calls `step`, work for a share of the time.

    What computes in Python keeps a core and Python's lock from a server, and each request needs
    both several times: in one go, a second of it makes all late that comes in that second.

    Parameters
    ----------
    share: of a core that the thread takes, above 0 and at most 1.
    worked_s: the seconds of a core that the thread has taken so far.
    """

    def __init__(self, share: float, worked_s: Callable[[], float] = time.thread_time) -> None:
        self._rest = 1 / share - 1
        self._worked_s = worked_s
        self._since_s: float | None = None
        self._closed = threading.Event()

    def step(self) -> None:
        """Called often by the thread: rests after a millisecond of work.

        Raises
        ------
        Closed
            It is.
        """
        if self._since_s is None:
            # Now, and not before: who made this may be another thread, whose clock is another.
            self._since_s = self._worked_s()
        took_s = self._worked_s() - self._since_s
        if took_s >= _PIECE_S:
            if self._closed.wait(took_s * self._rest):
                raise Closed
            self._since_s = self._worked_s()

    def close(self) -> None:
        """Let the thread end at its next step; any thread may call it."""
        self._closed.set()


class Paced(Policy):
    """A policy that is simulated at a pace."""

    def __init__(self, inner: Policy, pace: Pace) -> None:
        self._inner = inner
        self._pace = pace

    def prepare(self, setting: Setting) -> None:
        """As the policy itself."""
        self._inner.prepare(setting)

    def decide(self, view: View) -> Start | Admit | Wait:
        """As the policy itself, after a rest where that is due."""
        self._pace.step()
        return self._inner.decide(view)
