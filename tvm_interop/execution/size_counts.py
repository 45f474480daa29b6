"""Counts the runs of a model with ranges, by the size at which they ran."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

Size = tuple[int, ...]
"""A size: one number for each dimension that the model was compiled for as a range."""


@dataclass(frozen=True)
class RunCounts:
    """Counts the runs at one size, with the fields of `tvi_run_counts` in the C interface.

    Attributes
    ----------
    exact: the number of runs whose inputs had this size.
    filled_up: the number of runs whose inputs were smaller, and were padded to this size.
    rows_given: the number of rows of the inputs, summed over all runs at this size. If two
        dimensions have a range, the product of the two sizes counts as the number of rows.
    rows_computed: the number of rows that the runs at this size computed, including padding.
    """

    exact: int = 0
    filled_up: int = 0
    rows_given: int = 0
    rows_computed: int = 0

    @property
    def runs(self) -> int:
        """The number of runs at this size, padded or not."""
        return self.exact + self.filled_up

    @property
    def filled_share(self) -> float:
        """The share of padding in the computed rows, from 0 to 1; 0 without any run."""
        return 1 - self.rows_given / self.rows_computed if self.rows_computed else 0.0

    def with_run(self, given: int, computed: int) -> RunCounts:
        """Return new counts, with one more run on `given` rows that computed `computed` rows."""
        is_exact = given == computed
        return replace(
            self,
            exact=self.exact + is_exact,
            filled_up=self.filled_up + (not is_exact),
            rows_given=self.rows_given + given,
            rows_computed=self.rows_computed + computed,
        )

    def __add__(self, other: RunCounts) -> RunCounts:
        one, two = asdict(self), asdict(other)
        return RunCounts(**{name: one[name] + two[name] for name in one})

    def __str__(self) -> str:
        return (
            f"runs without padding: {self.exact}, with padding: {self.filled_up} "
            f"({self.filled_share:.1%} of all rows were padding)"
        )


class SizeCounts:
    """The counts of runs at each size. Several modules and threads may share an object."""

    def __init__(self, sizes: Sequence[Size]) -> None:
        """Begin with no runs at each of the sizes that a model was compiled for."""
        self._counts = {tuple(size): RunCounts() for size in sizes}
        self._lock = threading.Lock()

    def count(self, given: Size, computed: Size) -> None:
        """Count a run at the size `computed`.

        Parameters
        ----------
        given: the size of the inputs.
        computed: the size to which the inputs were padded. A size that was not counted before is
            added.
        """
        with self._lock:
            before = self._counts.get(computed, RunCounts())
            self._counts[computed] = before.with_run(math.prod(given), math.prod(computed))

    def forget(self, size: Size) -> None:
        """Forget the runs at the size `size`."""
        with self._lock:
            self._counts.pop(size, None)

    def counts(self) -> dict[Size, RunCounts]:
        """Return the runs by size."""
        with self._lock:
            return dict(self._counts)

    def runs(self) -> dict[Size, int]:
        """Return the number of runs by size."""
        return {size: each.runs for size, each in self.counts().items()}


def count_lines(dimensions: Sequence[str], counts: dict[Size, RunCounts]) -> list[str]:
    """Return the counts of runs as lines of text: one for each size, and one for all sizes."""
    lines = []
    for size, each in counts.items():
        told = ", ".join(f"{name} {n}" for name, n in zip(dimensions, size, strict=True))
        lines.append(f"{told}: {each}")
    return [*lines, f"all runs: {sum(counts.values(), RunCounts())}"]


def counts_as_data(
    dimensions: Sequence[str], counts: dict[Size, RunCounts]
) -> list[dict[str, Any]]:
    """Return the runs as plain data for JSON, with the size of each dimension by its name."""
    return [
        {"sizes": dict(zip(dimensions, size, strict=True)), **asdict(each)}
        for size, each in counts.items()
    ]
