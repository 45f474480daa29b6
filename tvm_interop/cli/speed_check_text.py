"""Describes the result of an artifact's speed check in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact

_NEEDED = 0.99
"""An artifact runs the schedule if it takes less than this fraction of sequential execution's time,
at a significance level of 5%. See `docs/speed_check.rst`."""


def speed_check_line(artifact: Artifact, given: str | None = None) -> str | None:
    """A line that compares the schedule with sequential execution.

    The line also says whether the artifact runs the schedule or runs sequentially.

    The result is None if the artifact has no speed check, unless it needs none because the
    scheduler chose sequential execution.

    Parameters
    ----------
    given: the name of the file that the schedule was read from; None if a scheduler made it.
    """
    checked = artifact.manifest.speed_check
    if checked is None:
        by = artifact.manifest.scheduler
        is_its_own = artifact.schedule.scheduler == by != "sequential"
        if not is_its_own or artifact.manifest.not_tried or not _is_in_turn(artifact):
            return None
        return f"no speed check: the schedule found by `{by}` is sequential execution"
    ships_schedule = checked.shipped == "scheduled"
    if not ships_schedule and artifact.plan.graph().width < 2:
        return "nothing to schedule: no two operators are independent of each other"
    by_auto = given is None and artifact.manifest.scheduler == "auto"
    named = given or artifact.manifest.scheduler
    what = "the fastest schedule found" if by_auto else f"`{named}`"
    rounds = f" in {checked.rounds} rounds" if checked.rounds else ""
    fresh = " that had no part in choosing it" if ships_schedule and by_auto else ""
    if checked.interval is None:
        surely = "There were too few rounds to say more"
    else:
        surely = f"At a significance level of 5% it is below {checked.interval[1]:.3f}"
    if ships_schedule:
        verdict = "it ships"
    else:
        verdict = "sequential execution ships"
        verdict += "" if by_auto else " (--keep-slower ships the schedule anyway)"
    return (
        f"speed check: {what} takes {checked.ratio:.3f} of sequential execution's time "
        f"(medians {checked.scheduled_us / 1e3:.3f} and {checked.sequential_us / 1e3:.3f} ms, "
        f"sequential against itself {checked.noise_ratio:.3f}){rounds}{fresh}. {surely}; to ship, "
        f"it must be below {_NEEDED:.3f}: {verdict}"
    )


def _is_in_turn(artifact: Artifact) -> bool:
    """Whether the artifact runs one operator after the other. Its parts may run side by side."""
    wholes = [op.whole for op in artifact.plan.operators]
    stages = artifact.schedule.stages
    if not stages:
        return len(artifact.plan.streams) == 1
    return all(len({wholes[op] for group in each.groups for op in group}) == 1 for each in stages)
