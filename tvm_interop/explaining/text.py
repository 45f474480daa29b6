"""Explanations and comparisons as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .api import Explanation
from .verdict import THRESHOLDS, Finding

_NAMES = 3
"""As many names of a set as are written out."""


def explanation_text(explained: Explanation) -> str:
    """A paragraph a set of operators, then the ceiling and the changes."""
    lines = [f"{explained.title} on {explained.cores} cores"]
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
            f"ceiling: sequential execution takes {top.sequential_us:.0f} us; the critical path is "
            f"{top.without_contention:.2f} of it,",
            f"  {top.with_contention:.2f} where the cores are shared; the profitable sets, as "
            f"measured, come to {top.as_measured:.2f}",
        ]
    elif top is not None:
        lines.append("ceiling: unknown; not every operator has been measured")
    for i, change in enumerate(explained.changes, start=1):
        lines.append(f"change {i}: {change.what}; should save up to {change.gain:.0%}")
    lines += _trial_lines(explained)
    lines.append(f"thresholds: {THRESHOLDS}")
    return "\n".join(lines)


def _trial_lines(explained: Explanation) -> Sequence[str]:
    trial = explained.trial
    if trial is None:
        return ()
    if trial.interval is None:
        between = "too few rounds to say how sure that is"
    else:
        between = f"with 90% confidence {trial.interval[0]:.3f} to {trial.interval[1]:.3f}"
    saved = f"saves {trial.gain:.1%}" if trial.gain >= 0 else f"costs {-trial.gain:.1%}"
    return [
        f"tried: {trial.change.what}",
        f"  {saved}, {trial.change.gain:.1%} was the estimate: {trial.changed_us:.0f} us against "
        f"{trial.present_us:.0f} us, ratio {trial.ratio:.3f}, {between};",
        f"  {trial.rounds} rounds, sequential execution against itself {trial.noise_ratio:.3f}",
    ]


def _names(finding: Finding) -> str:
    shown = [f"`{name}`" for name in finding.operators[:_NAMES]]
    more = len(finding.operators) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
