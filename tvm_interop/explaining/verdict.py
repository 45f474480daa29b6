"""Verdicts on sets of operators: whether it would be faster to run them concurrently, and if not,
why."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

GAIN = 0.03
"""The least saving that makes concurrent execution profitable, as a fraction of sequential time."""
FILLS = 0.8
"""An operator fills the device if its speedup over one core is at least this fraction of the number
of cores."""
SLOWDOWN = 1.05
"""Operators that slow each other down by at least this factor get the verdict `MEMORY`."""

THRESHOLDS = (
    f"profitable: running side by side, waits included, saves {GAIN:.0%} or more of the time in "
    f"turn. One fills the device: the speed-up of the longest operator on all cores is {FILLS:.0%} "
    "of the number of cores or more. Memory-bound together: at once the operators take "
    f"{SLOWDOWN:g} times as long as alone, or longer."
)
"""A description of the thresholds, for help texts and output."""


class Verdict(str, enum.Enum):
    """The possible verdicts on a set of operators."""

    PROFITABLE = "profitable"
    DEPENDENT = "dependent"
    FILLS = "one fills the device"
    MEMORY = "memory-bound together"
    WAITS = "waits cost more than they save"
    LITTLE = "little to gain"
    SEQUENTIAL = "shipped sequential because measured so"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Member:
    """One operator of a set. Unknown times are NaN.

    Attributes
    ----------
    name: the name of the operator.
    parts: the number of parts that the operator is divided into; 1 if it is not divided.
    divided_us: the operator's latency if its parts run on all cores, in microseconds.
    one_core_us: the operator's latency if its parts run one after the other on one core, in
        microseconds.
    """

    name: str
    parts: int
    divided_us: float
    one_core_us: float

    @property
    def speedup(self) -> float:
        """How many times as fast the operator is on all cores as on one core."""
        return self.one_core_us / self.divided_us if self.divided_us else 1.0


@dataclass(frozen=True)
class SideBySide:
    """Latencies of a set of operators, run one after the other and run concurrently.

    When the operators run one after the other, each is divided over all cores. When they run
    concurrently, each runs on one core. Unknown times are NaN.

    Attributes
    ----------
    members: the operators.
    in_turn_us: the measured latency of execution one after the other, in microseconds.
    beside_us: the measured latency of concurrent execution with its waits, in microseconds.
    ideal_us: the latency of concurrent execution without waits and slowdown, in microseconds.
    waits: the number of waits between streams in concurrent execution: 2, for a fork and a join, or
        0 on a single core.
    wait_us: the cost of one wait, in microseconds.
    cores: the number of cores, with one stream on each.
    """

    members: tuple[Member, ...]
    in_turn_us: float
    beside_us: float
    ideal_us: float
    waits: int
    wait_us: float
    cores: int

    @property
    def without_waits_us(self) -> float:
        """The latency of concurrent execution if waits cost nothing, in microseconds."""
        waits_us = self.waits * self.wait_us if self.waits else 0.0
        return max(self.beside_us - waits_us, min(self.ideal_us, self.beside_us))

    @property
    def slowdown(self) -> float:
        """The factor by which the operators slow each other down, not counting waits."""
        return self.without_waits_us / self.ideal_us if self.ideal_us else 1.0

    @property
    def gain(self) -> float:
        """The fraction of `in_turn_us` that concurrent execution saves; negative if slower."""
        return self.saved(self.beside_us)

    def saved(self, us: float) -> float:
        """Return the fraction of `in_turn_us` that a latency of `us` microseconds would save."""
        return 1 - us / self.in_turn_us if self.in_turn_us else 0.0

    def missing(self) -> list[str]:
        """Return the descriptions of the latencies that are unknown."""
        found = [
            f"`{member.name}` {how}"
            for member in self.members
            for how, us in (
                ("over all cores", member.divided_us),
                ("on one core", member.one_core_us),
            )
            if math.isnan(us)
        ]
        if math.isnan(self.in_turn_us):
            found.append("the time of all operators in turn")
        if math.isnan(self.beside_us):
            found.append("the time of all operators at once")
        if self.waits and math.isnan(self.wait_us):
            found.append("the cost of a wait")
        return found


@dataclass(frozen=True)
class Finding:
    """The verdict on one set of operators, with its reason.

    Attributes
    ----------
    operators: the names of the operators.
    verdict: the verdict.
    reason: a sentence with the numbers that led to the verdict.
    numbers: the latencies; None if the operators depend on each other.
    shipped: how the artifact runs the operators, `side by side` or `in turn`; None for a model.
    """

    operators: tuple[str, ...]
    verdict: Verdict
    reason: str
    numbers: SideBySide | None = None
    shipped: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON; unknown numbers are None."""
        facts: dict[str, Any] = {
            "operators": list(self.operators),
            "verdict": self.verdict.value,
            "reason": self.reason,
            "shipped": self.shipped,
        }
        n = self.numbers
        if n is not None:
            facts["numbers"] = {
                "in_turn_us": _or_none(n.in_turn_us),
                "side_by_side_us": _or_none(n.beside_us),
                "without_contention_us": _or_none(n.ideal_us),
                "slowdown": _or_none(n.slowdown),
                "waits": n.waits,
                "wait_us": _or_none(n.wait_us),
                "gain": _or_none(n.gain),
                "members": [
                    {
                        "name": m.name,
                        "parts": m.parts,
                        "all_cores_us": _or_none(m.divided_us),
                        "one_core_us": _or_none(m.one_core_us),
                        "speedup": _or_none(m.speedup),
                    }
                    for m in n.members
                ],
            }
        return facts


def judge(numbers: SideBySide) -> tuple[Verdict, str]:
    """Return the verdict on a set of independent operators, and a sentence with the reason.

    If concurrent execution is not profitable, the verdict is the first of these that is true:

    1. Concurrent execution would be profitable without the waits.
    2. The longest operator fills the device.
    3. The operators slow each other down.
    4. There is little to gain.
    """
    missing = numbers.missing()
    if missing:
        some = "; ".join(missing[:3]) + (f"; and {len(missing) - 3} more" if missing[3:] else "")
        return Verdict.UNKNOWN, f"not measured: {some}"
    n = numbers
    said = f"{n.in_turn_us:.1f} us in turn, {n.beside_us:.1f} us side by side"
    if n.gain >= GAIN:
        return Verdict.PROFITABLE, f"{said}: saves {n.gain:.0%}"
    if n.saved(n.without_waits_us) >= GAIN:
        cost = f"a fork and a join of streams take {n.waits * n.wait_us:.1f} us"
        return Verdict.WAITS, (
            f"{said}; {cost}; without them, running side by side would take "
            f"{n.without_waits_us:.1f} us"
        )
    longest = max(n.members, key=lambda member: member.one_core_us)
    if n.cores > 1 and longest.speedup >= FILLS * n.cores:
        text = f"`{longest.name}` is {longest.speedup:.2f} times as fast on {n.cores} cores as on 1"
        return Verdict.FILLS, f"{text}; {said}"
    if n.slowdown >= SLOWDOWN and n.saved(n.ideal_us) >= GAIN:
        text = f"at once the operators take {n.slowdown:.2f} times as long as alone"
        return Verdict.MEMORY, (
            f"{text}: {said}, {n.ideal_us:.1f} us side by side without this slowdown"
        )
    most = f"{max(n.in_turn_us - n.ideal_us, 0):.1f} us is the most that could be saved"
    return Verdict.LITTLE, f"{said}; {most}, and running side by side saves less than {GAIN:.0%}"


def _or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None
