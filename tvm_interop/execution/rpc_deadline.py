"""Calls of TVM's RPC that end: it waits without end itself for a server that hangs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from ..errors import DeviceError

_T = TypeVar("_T")


class NoAnswerError(DeviceError):
    """Whoever was asked has not answered in time."""


def answer_within(seconds: float, who: str, call: Callable[[], _T]) -> _T:
    """What `call` returns or raises, in a thread of its own.

    Nothing can stop a call that gets no answer: its thread is left behind, with all it holds.

    Parameters
    ----------
    who: is asked; for the message.

    Raises
    ------
    NoAnswerError: it took longer.
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
