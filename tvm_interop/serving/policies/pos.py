"""One joint graph of all models: the stand-in for POS."""

from __future__ import annotations

from ...errors import InputError
from ..policy import Policy, Setting, register_policy
from ..tasks import WHOLE, Start, View, Wait

_SCHEDULES = ("greedy", "lios", "opara", "nimble")


@register_policy("pos")
class Pos(Policy):
    """A joint graph of one instance of each model, one after the other.

    POS (IPSN 2023), with which TOP compares itself, has no public code; this runs its joint graph
    by a scheduler of ours. What it does when a model has no task, its papers do not say.

    Parameters
    ----------
    absent: what to do when some queue is empty: `wait` for a request of each model, or `skip` the
        models without one.
    schedule: the scheduler of the joint graph; `best` is the one of `greedy`, `lios`, `opara` and
        `nimble` by whose schedule the whole joint graph is through first.
    barriers: whether the host waits after each stage, see `Start.barriers`.
    """

    def __init__(
        self, absent: str = "skip", schedule: str = "greedy", barriers: bool = True
    ) -> None:
        if absent not in ("wait", "skip"):
            raise InputError(f"`absent` is {absent!r}; it must be `wait` or `skip`")
        self._waits = absent == "wait"
        self._schedule = schedule
        self._barriers = barriers

    def prepare(self, setting: Setting) -> None:
        """Choose the schedule."""
        super().prepare(setting)
        programs = setting.programs
        self._parts = tuple((model, WHOLE) for model in range(len(programs.models)))
        if self._schedule == "best":
            everything = (1 << len(self._parts)) - 1
            self._schedule = min(
                _SCHEDULES,
                key=lambda name: programs.alone_us(
                    programs.of_parts(self._parts, name, self._barriers), everything
                ),
            )

    def decide(self, view: View) -> Start | Wait:
        """Start the next joint graph when nothing runs."""
        if view.running:
            return Wait(full=True)
        heads = tuple(queue[0] if queue else None for queue in view.queues)
        num_absent = heads.count(None)
        if num_absent == len(heads) or (self._waits and num_absent):
            return Wait()
        return Start(heads, self._schedule, self._parts, self._barriers, alone=True)
