"""The part of a session that reports its ranges of sizes, and counts the runs at each size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..execution.size_counts import RunCounts, count_lines, counts_as_data
from .by_size import BySize
from .pool import Pool

if TYPE_CHECKING:
    from ..artifact.ranges import Ranges


class SizedRuns:
    """The part of a session that knows the session's ranges of sizes and counts its runs."""

    _pool: Pool | None
    _by_size: BySize | None

    @property
    def ranges(self) -> Ranges | None:
        """The ranges of sizes that the model was compiled for; None if there are none."""
        return None if self._pool is None else self._pool.artifact.ranges

    @property
    def runs_by_size(self) -> dict[tuple[int, ...], int]:
        """The number of this session's runs at each size; see `GraphModule.runs_by_size`.

        The runs of all instances count, and so do runs with bindings. Any thread may read this
        attribute. If each size is compiled at its first run, only the sizes that the session keeps
        ready are listed. If the mask of a run does not allow padding to a compiled size, the run
        counts at its own size.
        """
        return {size: each.runs for size, each in self.run_counts.items()}

    @property
    def run_counts(self) -> dict[tuple[int, ...], RunCounts]:
        """For each size: the number of runs, the number of padded runs, the fraction of padding."""
        if self._by_size is not None:
            return self._by_size.counts()
        return {} if self._pool is None else self._pool.first.run_counts

    @property
    def why_not_filled_up(self) -> str | None:
        """The reason why inputs are not padded, so that each size is compiled at its first run.

        None if inputs are padded, or if the model has no ranges of sizes.
        """
        return None if self._by_size is None else self._by_size.why

    def run_lines(self) -> list[str]:
        """Return `run_counts` as lines of text: a line for each size, and a line with the sum."""
        return count_lines(self._dimensions, self.run_counts)

    def runs_as_data(self) -> list[dict[str, Any]]:
        """Return `run_counts` as plain data for JSON, with the name of each dimension."""
        return counts_as_data(self._dimensions, self.run_counts)

    @property
    def _dimensions(self) -> tuple[str, ...]:
        """The names of the dimensions with a range."""
        if self._by_size is not None:
            return self._by_size.dimensions
        return () if self._pool is None else self._pool.first.range_dimensions

    def _count_at_own_size(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Count a run that was not padded, but ran on instances that were compiled for its size."""
        if self._by_size is None and self._pool is not None:
            self._pool.first.count_elsewhere(shapes)
