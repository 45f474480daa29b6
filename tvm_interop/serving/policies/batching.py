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

    A batch is no larger than deadlines allow: of its own requests, and of those that wait for it to
    end.

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
        taken = self._taken(view, best)
        alone = self._streams == 1
        return Start(taken, self._schedule, slot=free_slot(view), alone=alone)

    def _taken(self, view: View, head: Request) -> tuple[Request, ...]:
        """The largest batch behind `head` that makes nothing late that `head` alone does not."""
        queue, sizes = view.queues[head.model], self._sizes[head.model]
        taken = _largest(queue, sizes)
        waiting = [r for each in view.queues for r in each if r.deadline_us < math.inf]
        if len(taken) == 1 or not waiting:
            return taken
        programs = self.setting.programs
        # All that runs shares the cores.
        shared = 1 + len(view.running)
        least_us = shared * programs.model_us(head.model, head.batch)
        while len(taken) > 1:
            size = sum(request.batch for request in taken)
            took_us = shared * programs.model_us(head.model, size)
            spare_us = min(
                (s for r in waiting if (s := self._spare_us(view, r, taken)) >= least_us),
                default=math.inf,
            )
            if took_us <= spare_us:
                break
            taken = _largest(queue, {fewer for fewer in sizes if fewer < size} | {1})
        return taken

    def _spare_us(self, view: View, request: Request, taken: tuple[Request, ...]) -> float:
        """How long a run may take for this request to be in time, in that run or after it."""
        left_us = request.deadline_us - view.now_us
        if request in taken:
            return left_us
        return left_us - self.setting.programs.model_us(request.model, request.batch)


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
