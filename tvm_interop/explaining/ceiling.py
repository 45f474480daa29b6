"""How much faster than sequential execution a schedule could be at the very best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .verdict import Finding, Verdict
from .wholes import Wholes


@dataclass(frozen=True)
class Ceiling:
    """Bounds on what scheduling can do, as shares of sequential execution; 1 is no gain.

    Attributes
    ----------
    sequential_us: every operator in turn, each over all cores; not a number where unknown.
    without_contention: the critical path over that: as if cores and memory had no end.
    with_contention: the same, but no less than the work of all operators on one core, shared out
        over the cores.
    as_measured: every set judged profitable side by side, as measured, all else in turn.
    """

    sequential_us: float
    without_contention: float
    with_contention: float
    as_measured: float

    def as_dict(self) -> dict[str, float | None]:
        """For JSON: unknown numbers are null."""
        return {
            name: value if math.isfinite(value) else None
            for name, value in (
                ("sequential_us", self.sequential_us),
                ("without_contention", self.without_contention),
                ("with_contention", self.with_contention),
                ("as_measured", self.as_measured),
            )
        }


def ceiling(wholes: Wholes, findings: Sequence[Finding]) -> Ceiling:
    """The bounds for a whole program.

    Parameters
    ----------
    findings: on sets of independent operators, none in two.

    Complexity: O(operators + edges).
    """
    ids = range(wholes.graph.num_ops)
    divided_us, one_core_us = wholes.divided_us(ids), wholes.one_core_us(ids)
    sequential_us = sum(divided_us)
    if not sequential_us > 0 or math.isnan(sum(one_core_us)):
        return Ceiling(sequential_us, math.nan, math.nan, math.nan)
    ends_us: dict[int, float] = {}
    for op in wholes.graph.topological_order():
        before_us = max((ends_us[p] for p in wholes.graph.predecessors(op)), default=0.0)
        ends_us[op] = before_us + min(divided_us[op], one_core_us[op])
    path_us = max(ends_us.values())
    work_us = sum(map(min, zip(one_core_us, (us * wholes.cores for us in divided_us), strict=True)))
    saved_us = sum(
        finding.numbers.in_turn_us - finding.numbers.beside_us
        for finding in findings
        if finding.numbers is not None
        and finding.verdict in (Verdict.PROFITABLE, Verdict.SEQUENTIAL)
    )
    return Ceiling(
        sequential_us=sequential_us,
        without_contention=path_us / sequential_us,
        with_contention=max(path_us, work_us / wholes.cores) / sequential_us,
        as_measured=1 - saved_us / sequential_us,
    )
