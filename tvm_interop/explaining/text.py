"""Writes explanations and comparisons as text for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..artifact.ranges import Ranges, RequestCost
from .api import Explanation
from .compare import Comparison, Cost
from .verdict import THRESHOLDS, Finding

_PLAINLY = 0.05
"""The ratio of the medians is printed too if it lies outside the confidence interval by more than
this number."""
_NAMES = 3
"""The largest number of operator names that the text lists for a set."""


def explanation_text(explained: Explanation) -> str:
    """Return an explanation as text: two lines for each set, then the ceiling and the changes."""
    lines = [f"{explained.title} on {explained.cores} cores"]
    if explained.merge_check is not None:
        lines.append(f"  {explained.merge_check}")
    lines += range_lines(explained.ranges, explained.request)
    for finding in explained.findings:
        shipped = f" (runs {finding.shipped})" if finding.shipped else ""
        lines += [f"  {_names(finding)}: {finding.verdict.value}{shipped}", f"    {finding.reason}"]
    if not explained.findings:
        lines.append("  no two operators are independent: there is nothing to run side by side")
    counts = explained.counts()
    if len(explained.findings) > 1:
        lines.append("verdicts: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    top = explained.ceiling
    if top is not None and math.isfinite(top.without_contention):
        lines += [
            f"ceiling: sequential execution takes {top.sequential_us:.0f} us; without contention "
            f"the critical path takes {top.without_contention:.2f} of that,",
            f"  {top.with_contention:.2f} if all operators share the cores; with the profitable "
            f"sets side by side, as measured, the run takes {top.as_measured:.2f}",
        ]
    elif top is not None:
        lines.append("ceiling: unknown; not every operator has been measured")
    for i, change in enumerate(explained.changes, start=1):
        gain = (
            f"saves {change.gain:.0%} at most"
            if change.is_bound
            else f"saves {change.gain:.0%} by estimate"
        )
        lines.append(f"change {i}: {change.what}; {gain}")
    lines += _trial_lines(explained)
    lines.append(f"thresholds: {THRESHOLDS}")
    return "\n".join(lines)


def range_lines(ranges: Ranges | None, request: RequestCost | None) -> list[str]:
    """Return the text about ranges of sizes, and about the plan that is explained."""
    if ranges is None:
        return []
    if request is None:
        return [*ranges.lines(), f"what follows is of {ranges.compiled[0]}"]
    return [*ranges.lines(), f"request: {request}", f"what follows is of {request.runs_at}"]


def comparison_text(found: Comparison) -> str:
    """Return a comparison as text: each difference with its measurement, then the total."""
    lines = [f"{found.titles[0]} against {found.titles[1]}"]
    for difference, cost in found.differences:
        lines.append(
            f"  {difference.kind} {_listed(difference.operators)}: "
            f"{difference.first}, against {difference.second}"
        )
        if cost is not None:
            lines.append(f"    {_cost(cost)}")
    if not found.differences:
        lines.append("  the artifacts have the same operators, kernels and stages")
    lines.append("not measured" if found.total is None else f"the whole: {_cost(found.total)}")
    return "\n".join(lines)


def _cost(cost: Cost) -> str:
    between = "too few rounds to say more"
    if cost.interval is not None:
        between = f"{cost.interval[0]:.3f} to {cost.interval[1]:.3f}"
    beyond = "" if cost.is_beyond_noise else ", not beyond noise"
    return (
        f"medians {cost.first_us:.1f} and {cost.second_us:.1f} us; ratio within a round "
        f"{cost.ratio:.3f} ({between}){beyond}; {cost.rounds} rounds, the first against itself "
        f"{cost.noise_ratio:.3f}{_medians_apart(cost)}"
    )


def _medians_apart(cost: Cost) -> str:
    """Return a remark if the ratio of the medians is far outside `cost.interval`, else ""."""
    if cost.interval is None or not cost.first_us:
        return ""
    by_medians = cost.second_us / cost.first_us
    low, high = cost.interval
    if low - _PLAINLY <= by_medians <= high + _PLAINLY:
        return ""
    return (
        f"; the ratio of the medians is {by_medians:.3f}, and other work on the machine distorts it"
    )


def _trial_lines(explained: Explanation) -> Sequence[str]:
    trial = explained.trial
    if trial is None:
        return ()
    if trial.interval is None:
        between = "too few rounds for a confidence interval"
    else:
        between = f"with 90% confidence {trial.interval[0]:.3f} to {trial.interval[1]:.3f}"
    promised = "the bound" if trial.change.is_bound else "the estimate"
    saved = f"saves {trial.gain:.1%}" if trial.gain >= 0 else f"costs {-trial.gain:.1%}"
    return [
        f"tried: {trial.change.what}",
        f"  {saved}, {trial.change.gain:.1%} was {promised}: {trial.changed_us:.0f} us against "
        f"{trial.present_us:.0f} us, ratio {trial.ratio:.3f}, {between};",
        f"  {trial.rounds} rounds, sequential execution against itself {trial.noise_ratio:.3f}",
    ]


def _names(finding: Finding) -> str:
    return _listed(finding.operators)


def _listed(names: Sequence[str]) -> str:
    shown = [f"`{name}`" for name in names[:_NAMES]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
