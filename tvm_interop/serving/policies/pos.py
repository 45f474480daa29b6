"""The policy `pos`: one joint graph of all models, as a stand-in for the system POS."""

from __future__ import annotations

from ...errors import InputError
from ..policy import Policy, Setting, register_policy
from ..tasks import WHOLE, Start, View, Wait

_SCHEDULES = ("greedy", "lios", "opara", "nimble")


@register_policy("pos")
class Pos(Policy):
    """A policy that runs one joint graph at a time, with one request of every model.

    TOP's paper compares TOP with POS (IPSN 2023), which has no public code. This policy runs the
    same joint graph as POS, but with a scheduler of this project. The papers on POS do not say what
    happens when a model has no request.

    Parameters
    ----------
    absent: what to do when some queue is empty: `wait` for a request of each model, or `skip` the
        models without a request.
    schedule: name of the scheduler of the joint graph. `best` takes the scheduler among `greedy`,
        `lios`, `opara` and `nimble` whose schedule has the lowest latency if all models are
        present.
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
