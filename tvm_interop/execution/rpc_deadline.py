"""Limits the time of calls to TVM's RPC.

Without a limit, TVM waits forever for a server that hangs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from ..errors import DeviceError

_T = TypeVar("_T")


class NoAnswerError(DeviceError):
    """The server or tracker has not answered in time."""


def answer_within(seconds: float, who: str, call: Callable[[], _T]) -> _T:
    """Run `call` in a new thread; return its result, or raise its error.

    A call that gets no answer cannot be stopped. Its thread keeps waiting, and keeps its resources.

    Parameters
    ----------
    seconds: the longest time to wait, in seconds.
    who: the name of the server or tracker, for the message.

    Raises
    ------
    NoAnswerError: the call took longer than `seconds`.
    """
    answers: queue.SimpleQueue[tuple[_T | None, BaseException | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise NoAnswerError(f"{who} has not answered for {seconds:g} s") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
