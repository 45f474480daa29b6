"""The policy `batching`: several requests of one model run as one batch."""

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
    """Dynamic batching: wait a limited time for a large batch, then run the waiting requests.

    Deadlines limit the size of a batch: the requests in the batch have deadlines, and so have the
    requests that wait until the batch ends.

    Parameters
    ----------
    batch: upper limit of the batch size. A batch has the largest size up to this limit for which
        the model has costs. There must also be enough requests.
    delay_us: maximum time in microseconds that a request waits for other requests to join it.
    streams: number of batches that run at the same time.
    schedule: name of the scheduler that orders the operators of a batch.
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
        """Collect the batch sizes that each model has costs for."""
        super().prepare(setting)
        self._sizes = [
            {size for size in model.costs if size <= self._batch}
            for model in setting.programs.models
        ]

    def decide(self, view: View) -> Start | Wait:
        """Start a batch of the model whose first request is the most urgent.

        Only models that have a full batch or whose first request has waited `delay_us` are
        considered. The most urgent request has the highest priority, then the earliest deadline,
        then the earliest arrival.
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
        """Return the largest batch that starts with `head` and meets the deadlines.

        A request whose deadline would be missed even if `head` ran alone does not limit the batch.
        """
        queue, sizes = view.queues[head.model], self._sizes[head.model]
        taken = _largest(queue, sizes)
        waiting = [r for each in view.queues for r in each if r.deadline_us < math.inf]
        if len(taken) == 1 or not waiting:
            return taken
        programs = self.setting.programs
        # Running batches share the cores, so the latency grows with their number.
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
        """Return how many microseconds a batch may take without making a request miss its deadline.

        The request runs in the batch if it is in `taken`, otherwise after the batch.
        """
        left_us = request.deadline_us - view.now_us
        if request in taken:
            return left_us
        return left_us - self.setting.programs.model_us(request.model, request.batch)


def _urgency(request: Request) -> tuple[float, float, float]:
    return (-request.priority, request.deadline_us, request.arrived_us)


def _largest(queue: deque[Request], sizes: set[int]) -> tuple[Request, ...]:
    """Return the first requests of a queue whose inputs exactly fill the largest possible batch.

    If the first requests fill no batch size exactly, only the first request is returned.
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
