"""Keeps the results of a reference in memory, so that several checks evaluate it only once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass
class ReferenceResults:
    """The results of a kernel's reference on the numbers that the kernel is checked with.

    The kernel of a library and TVM's kernel for the same operator have the same reference, and are
    tried on the same numbers. Evaluating the reference takes longer than all other steps of a
    check, so the second check takes the results of the first check.
    """

    room: Room
    _known: dict[int, tuple[str, list[np.ndarray]]] = field(default_factory=dict)

    def of(
        self, number: int, evaluate: Callable[[], tuple[str, list[np.ndarray]]]
    ) -> tuple[str, list[np.ndarray]]:
        """The reference's result in run `number`; the first time, `evaluate` computes it."""
        known = self._known.get(number)
        if known is None:
            known = evaluate()
            if self.room.take(sum(array.nbytes for array in known[1])):
                self._known[number] = known
        return known


@dataclass
class Room:
    """Counts how many bytes of memory are left for results of references."""

    left: int = 128 * 2**20
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, nbytes: int) -> bool:
        """Reserve `nbytes` bytes for a result. Return False if fewer bytes are left."""
        with self._lock:
            if nbytes > self.left:
                return False
            self.left -= nbytes
            return True
