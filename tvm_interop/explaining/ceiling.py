"""Computes bounds: how much faster than sequential execution a schedule could be at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .verdict import Finding, Verdict
from .wholes import Wholes


@dataclass(frozen=True)
class Ceiling:
    """Lower bounds on the latency of any schedule, as fractions of `sequential_us`; 1 means no
    gain.

    Attributes
    ----------
    sequential_us: the latency in microseconds if operators run one after the other, each divided
        over all cores. NaN if it is unknown.
    without_contention: the length of the critical path. It is a bound even if the number of cores
        and the memory bandwidth were unlimited.
    with_contention: the larger of the critical path and the total work divided by the number of
        cores. The work of an operator is the smaller of two values: its latency on one core, and
        its latency over all cores times the number of cores.
    as_measured: this is not a bound. It is the latency if every profitable set runs concurrently
        and all other operators run one after the other, computed from measurements.
    """

    sequential_us: float
    without_contention: float
    with_contention: float
    as_measured: float

    def as_dict(self) -> dict[str, float | None]:
        """Return the bounds as plain data for JSON; unknown numbers are None."""
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
    """Return the bounds for a whole program.

    Parameters
    ----------
    findings: the findings on sets of independent operators. No operator may be in two sets.

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
