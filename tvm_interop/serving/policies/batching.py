"""Several requests of one model as one run."""

from __future__ import annotations

import math
from collections import deque

from ...errors import InputError
from ...plain_data import is_finite
from ..policy import Policy, Setting, register_policy, require_counts
from ..tasks import Request, Start, View, Wait
from .slots import free_slot


@register_policy("batching")
class Batching(Policy):
    """Dynamic batching: wait a little for a large batch, then run what there is.

    Parameters
    ----------
    batch: the largest batch; of the sizes that a model has costs for, the largest that fits.
    delay_us: the longest that a request waits for others to join it.
    streams: how many batches run at once.
    schedule: the scheduler by whose schedule a batch runs.
    """

    def __init__(
        self,
        batch: int = 8,
        delay_us: float = 0.0,
        streams: int = 1,
        schedule: str = "sequential",
    ) -> None:
        require_counts(batch=batch, streams=streams)
        if not is_finite(delay_us) or delay_us < 0:
            raise InputError(f"`delay_us` is {delay_us!r}; give microseconds, 0 or more")
        self._batch = batch
        self._delay_us = delay_us
        self._streams = streams
        self._schedule = schedule

    def prepare(self, setting: Setting) -> None:
        """Look up which batch sizes each model has."""
        super().prepare(setting)
        self._sizes = [
            {size for size in model.costs if size <= self._batch}
            for model in setting.programs.models
        ]

    def decide(self, view: View) -> Start | Wait:
        """Start, of the models that are due, that of the first request that is most urgent.

        The highest priority, then the earliest deadline, then the earliest arrival.
        """
        if len(view.running) >= self._streams:
            return Wait(full=True)
        due_us = math.inf
        best: Request | None = None
        for model, queue in enumerate(view.queues):
            if not queue:
                continue
            head = queue[0]
            head_due_us = head.arrived_us + self._delay_us
            if head_due_us > view.now_us and len(queue) < max(self._sizes[model]):
                due_us = min(due_us, head_due_us)
            elif best is None or _urgency(head) < _urgency(best):
                best = head
        if best is None:
            return Wait(due_us)
        taken = _largest(view.queues[best.model], self._sizes[best.model])
        alone = self._streams == 1
        return Start(taken, self._schedule, slot=free_slot(view), alone=alone)


def _urgency(request: Request) -> tuple[float, float, float]:
    return (-request.priority, request.deadline_us, request.arrived_us)


def _largest(queue: deque[Request], sizes: set[int]) -> tuple[Request, ...]:
    """The first requests of the queue that make up the largest batch size there is.

    The first one by itself where it alone brings more.
    """
    taken: list[Request] = []
    count = fitting = 0
    most = max(sizes)
    for request in queue:
        count += request.batch
        if count > most and taken:
            break
        taken.append(request)
        if count in sizes:
            fitting = len(taken)
    return tuple(taken[: max(1, fitting)])
