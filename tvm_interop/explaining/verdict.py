"""The verdict on some operators: would they gain by running side by side, and if not, why."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

GAIN = 0.03
"""Operators are worth running side by side where that saves this share of their time in turn."""
FILLS = 0.8
"""An operator fills the device where its speed-up over one core is this share of the cores."""
SLOWDOWN = 1.05
"""Operators are memory-bound together where they take this much longer at once than alone."""

THRESHOLDS = (
    f"profitable: running side by side, waits included, saves {GAIN:.0%} or more of the time in "
    f"turn. One fills the device: the speed-up of the longest operator on all cores is {FILLS:.0%} "
    "of the number of cores or more. Memory-bound together: at once the operators take "
    f"{SLOWDOWN:g} times as long as alone, or longer."
)
"""The thresholds in words, for help and output."""


class Verdict(str, enum.Enum):
    """The verdicts on operators that may run side by side."""

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
    """One operator of a set; times are not a number where they are not known.

    Attributes
    ----------
    name: of the whole operator.
    parts: how many it is divided into; 1 where it is not.
    divided_us: microseconds with its parts side by side, as it runs in turn.
    one_core_us: microseconds with its parts in order on one core.
    """

    name: str
    parts: int
    divided_us: float
    one_core_us: float

    @property
    def speedup(self) -> float:
        """Over one core."""
        return self.one_core_us / self.divided_us if self.divided_us else 1.0


@dataclass(frozen=True)
class SideBySide:
    """Operators in turn, each over all cores, against all at once, each on one core.

    Attributes
    ----------
    in_turn_us: microseconds one after the other, measured as a whole.
    beside_us: microseconds all at once, measured, with the waits.
    ideal_us: microseconds all at once if nobody slowed another down.
    waits: waits between streams in running at once: a fork and a join; 0 on a single core.
    wait_us: microseconds that one of them costs.
    cores: streams there are, a core each.
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
        """Microseconds all at once if waits between streams cost nothing."""
        waits_us = self.waits * self.wait_us if self.waits else 0.0
        return max(self.beside_us - waits_us, min(self.ideal_us, self.beside_us))

    @property
    def slowdown(self) -> float:
        """How much longer they take at once because of each other, waits apart."""
        return self.without_waits_us / self.ideal_us if self.ideal_us else 1.0

    @property
    def gain(self) -> float:
        """The share of the time in turn that running at once saves; below 0 it costs."""
        return self.saved(self.beside_us)

    def saved(self, us: float) -> float:
        """The share of the time in turn that `us` in its place would save."""
        return 1 - us / self.in_turn_us if self.in_turn_us else 0.0

    def missing(self) -> list[str]:
        """The facts that are not known, in words."""
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
            found.append("the time of all in turn")
        if math.isnan(self.beside_us):
            found.append("the time of all at once")
        if self.waits and math.isnan(self.wait_us):
            found.append("the cost of a wait")
        return found


@dataclass(frozen=True)
class Finding:
    """The finding on one set of operators.

    Attributes
    ----------
    operators: their names.
    verdict, reason: in one word, and in a sentence with the numbers.
    numbers: behind it; None where the operators depend on each other.
    shipped: what the artifact does with them, `side by side` or `in turn`; None for a model.
    """

    operators: tuple[str, ...]
    verdict: Verdict
    reason: str
    numbers: SideBySide | None = None
    shipped: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON: unknown numbers are null."""
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
    """The verdict on independent operators, and why.

    Where it is not profitable, the reason is the first that holds: without the waits it would be;
    the longest operator fills the device; they slow each other down; there is little to gain.
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
        text = f"at once they take {n.slowdown:.2f} times as long as alone"
        return Verdict.MEMORY, (
            f"{text}: {said}, {n.ideal_us:.1f} us side by side without this slowdown"
        )
    most = f"{max(n.in_turn_us - n.ideal_us, 0):.1f} us is the most that could be saved"
    return Verdict.LITTLE, f"{said}; {most}, and running side by side saves less than {GAIN:.0%}"


def _or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None
