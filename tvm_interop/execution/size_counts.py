"""Counts the runs of a model with ranges, by compiled size."""

from __future__ import annotations

import threading
from collections.abc import Sequence


class SizeCounts:
    """The number of runs at each of the sizes that a model was compiled for.

    Several modules may share one, and several threads may count at once.
    """

    def __init__(self, sizes: Sequence[tuple[int, ...]]) -> None:
        """Begin with a count of 0 for each size. A model without a range has no sizes."""
        self._sizes = tuple(sizes)
        self._runs = [0] * len(sizes)
        self._lock = threading.Lock()

    def count(self, shape: int) -> None:
        """Count a run at a set of input shapes, by its index."""
        if self._runs:
            with self._lock:
                self._runs[shape] += 1

    def runs(self) -> dict[tuple[int, ...], int]:
        """Return the number of runs, by the size of each dimension with a range."""
        with self._lock:
            return dict(zip(self._sizes, self._runs, strict=True))
