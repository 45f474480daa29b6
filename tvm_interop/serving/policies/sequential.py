"""The policy `sequential`: one instance runs at a time."""

from __future__ import annotations

from ..policy import Policy, register_policy
from ..tasks import Start, View, Wait
from .orders import order_named


@register_policy("sequential")
class Sequential(Policy):
    """A policy that runs one instance at a time. No other instance uses the device then.

    Parameters
    ----------
    order: order in which queues are served: `fifo`, `longest` or `deadline`. `longest` keeps the
        variance of the queue lengths low.
    schedule: name of the scheduler that orders the operators of an instance.
    barriers: see `Start.barriers`.
    """

    def __init__(
        self, order: str = "fifo", schedule: str = "sequential", barriers: bool = False
    ) -> None:
        self._next = order_named(order)
        self._schedule = schedule
        self._barriers = barriers

    def decide(self, view: View) -> Start | Wait:
        """Start the next request when nothing runs."""
        if view.running:
            return Wait(full=True)
        request = self._next(view)
        if request is None:
            return Wait()
        return Start((request,), self._schedule, barriers=self._barriers, alone=True)
