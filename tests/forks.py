"""Runs a function in a forked child, and says how the child ended."""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
from collections.abc import Callable

DEADLINE_S = 120.0
"""A child that has not ended after this time, in seconds, hangs."""


def in_forked_child(work: Callable[[], None]) -> str:
    """Run `work` in a forked child. Return "" if it ran to its end, else what happened."""
    read_end, write_end = os.pipe()
    # Keep garbage collection off in the child. It might collect an object of another test, such as
    # a gRPC channel. Then it would wait for the object's threads, which a child does not have.
    gc.freeze()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        said = ""
        try:
            work()
        except BaseException:
            said = traceback.format_exc()
        os.write(write_end, said.encode()[-4000:])
        os._exit(1 if said else 0)
    gc.unfreeze()
    os.close(write_end)
    status = _status_of(child)
    with os.fdopen(read_end) as said_by_child:
        said = said_by_child.read()
    if status is None:
        return f"the child hung {said}"
    if os.WIFSIGNALED(status):
        return f"the child died of signal {os.WTERMSIG(status)} {said}"
    return said


def _status_of(child: int) -> int | None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return status
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
