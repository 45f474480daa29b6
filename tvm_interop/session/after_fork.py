"""Gives the objects of a session new locks and threads in a forked child of their process.

A forked child has only the thread that forked, and none of the parent's worker threads. So a lock
that another thread of the parent held would never be released in the child.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")
_RENEW: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def renew_in_children(one: _T, renew: Callable[[_T], None]) -> None:
    """From now on, call `renew(one)` in each forked child, as long as `one` exists.

    No other thread is running during this call.
    """
    _RENEW[one] = renew


def _renew_all() -> None:
    for one, renew in list(_RENEW.items()):
        renew(one)


os.register_at_fork(after_in_child=_renew_all)
