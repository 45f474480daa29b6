"""The result of an experiment, and the verdict that follows from it.

No verdict is written by hand. An experiment gives checks. A check has a number of ours, a number of
the paper, and the range in which our number must lie. The verdict follows from the checks each time
a page is made, so that a changed number changes the verdict. If times were measured while other
programs kept the machine busy, the verdict is `undecided`, whatever the checks give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..machine_state import QUIET

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
UNDECIDED, NOT_TO_BE_HAD = "undecided", "not available"
VERDICTS = (REPRODUCED, CONTRADICTED, UNDECIDED, NOT_TO_BE_HAD)


@dataclass(frozen=True)
class Check:
    """One number of ours beside the paper's.

    Attributes
    ----------
    what: what the number is, with its unit.
    paper: the number of the paper; None if the paper makes a statement without a number.
    ours: our number.
    least, most: the range in which our number must lie, both ends included; None for no limit.
    """

    what: str
    paper: float | None
    ours: float
    least: float | None = None
    most: float | None = None

    def __post_init__(self) -> None:
        if self.least is None and self.most is None:
            raise ValueError(f"the check `{self.what}` has no limit, so it cannot fail: give one")

    @property
    def holds(self) -> bool:
        """Whether our number lies in the range. An infinite number or NaN is never in the range."""
        low = -math.inf if self.least is None else self.least
        high = math.inf if self.most is None else self.most
        return math.isfinite(self.ours) and low <= self.ours <= high


def near(what: str, paper: float, ours: float, tolerance: float) -> Check:
    """Check that our number differs from the paper's by at most `tolerance` times the paper's."""
    slack = tolerance * abs(paper)
    return Check(what, paper, ours, paper - slack, paper + slack)


def equal(what: str, paper: float, ours: float) -> Check:
    """Check that our number, for example a count, equals the paper's number."""
    return Check(what, paper, ours, paper, paper)


def above(what: str, ours: float, bound: float, paper: float | None = None) -> Check:
    """Check that our number is above `bound`, as the paper states."""
    return Check(what, paper, ours, least=math.nextafter(bound, math.inf))


def below(what: str, ours: float, bound: float, paper: float | None = None) -> Check:
    """Check that our number is below `bound`, as the paper states."""
    return Check(what, paper, ours, most=math.nextafter(bound, -math.inf))


def within(what: str, ours: float, least: float, most: float, paper: float | None = None) -> Check:
    """Check that our number lies between `least` and `most`, as the paper states."""
    return Check(what, paper, ours, least, most)


@dataclass(frozen=True)
class Table:
    """A table with our numbers beside the paper's; the cells are strings."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Chart:
    """A picture of numbers.

    Attributes
    ----------
    kind: `bars`, `lines` or `boxes`.
    points: the labels along the horizontal axis.
    series: for each label of the legend, a number for each point; None if there is no number. For
        `boxes`, a list of numbers for each point.
    axis: the quantity on the vertical axis, with its unit.
    """

    title: str
    kind: str
    points: Sequence[str]
    series: Mapping[str, Sequence[Any]]
    axis: str


@dataclass(frozen=True)
class Record:
    """The result of one experiment.

    Attributes
    ----------
    says: the claims of the paper, in whole sentences.
    device: the source of the numbers, such as `a V100, simulated from its data sheet`.
    checks: our numbers beside the paper's. Empty only if the experiment is not possible here.
    why: why our numbers differ from the paper's. It must be given if a check does not hold.
    missing: the missing equipment, if the experiment is not possible here.
    remarks: facts that a reader needs for any verdict.
    seed: the seeds that were used; empty if nothing is random.
    timed: whether the experiment measures times on this machine. Its checks then count only if the
        machine was quiet.
    busy: share of processor time, 0 to 1, that other programs took before the experiment ran.
    """

    says: str
    device: str
    checks: Sequence[Check] = ()
    why: str = ""
    missing: str = ""
    remarks: str = ""
    seed: str = ""
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = field(default_factory=tuple)
    timed: bool = False
    busy: float = 0.0

    def __post_init__(self) -> None:
        if bool(self.checks) == bool(self.missing):
            raise ValueError(
                "a record has either checks or a text that says what is missing: give one of them"
            )

    def as_dict(self) -> dict[str, Any]:
        """The record as a dictionary for JSON."""
        return asdict(self)


def not_to_be_had(says: str, missing: str) -> Record:
    """The record of a table or figure that cannot be reproduced here."""
    return Record(says, "none", missing=missing)


def record_from(stored: Mapping[str, Any]) -> Record:
    """The record that `Record.as_dict` turned into `stored`."""
    return Record(
        **{
            **stored,
            "checks": [Check(**check) for check in stored["checks"]],
            "tables": [Table(**table) for table in stored["tables"]],
            "charts": [Chart(**chart) for chart in stored["charts"]],
        }
    )


def verdict(found: Record) -> str:
    """The verdict, one of `VERDICTS`.

    A record contradicts the paper if one of its checks fails. It is undecided if it holds times
    that were measured on a busy machine, because other programs may have changed them.

    Raises
    ------
    ValueError: the record contradicts the paper and does not say why.
    """
    if found.missing:
        return NOT_TO_BE_HAD
    if found.timed and found.busy > QUIET:
        return UNDECIDED
    if all(check.holds for check in found.checks):
        return REPRODUCED
    if not found.why:
        failed = [check.what for check in found.checks if not check.holds]
        raise ValueError(f"these checks do not hold; give the reason in `why`: {failed}")
    return CONTRADICTED
