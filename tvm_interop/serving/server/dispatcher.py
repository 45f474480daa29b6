"""The queues of a server, and the policy that decides which requests start.

This module starts no threads and runs no models; see `executor`.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import (
    CancelledError,
    DeadlineError,
    ExecutionError,
    InputError,
    UnavailableError,
)
from ..policy import Policy
from ..tasks import WHOLE, Admit, Request, Running, Start, View
from .any_model import AnyModel
from .ticket import Ticket

_LOG = logging.getLogger("tvm_interop.serving")

_PROBE = 16
"""One in `_PROBE` of the requests that are expected to miss their deadline runs nevertheless. The
others are refused. The expectation comes from the latencies of recent runs. If they were unusually
slow, only another run can correct the expectation.
"""


@dataclass(eq=False)
class Job:
    """One run of a model, or of one of its blocks, for some requests.

    Attributes
    ----------
    number: number of this run. All blocks of a combined block, which run side by side, have the
        same number.
    model: model to run.
    slot: index of the model's instance to run.
    tickets: requests that the run serves.
    block: block to run; `WHOLE` for the whole model.
    """

    number: int
    model: AnyModel
    slot: int
    tickets: list[Ticket]
    block: int = WHOLE


@dataclass(eq=False)
class Decision:
    """The result of one call of `Dispatcher.decide`.

    Attributes
    ----------
    jobs: runs to start now.
    refused: requests that will not be served, each with an error. Some of their blocks may have
        run.
    left: requests that have left their queues, because they start or because they are refused.
    num_finished: number of requests whose runs have ended, successfully or not.
    until_us: time in microseconds at which to decide again at the latest.
    """

    jobs: list[Job] = field(default_factory=list)
    refused: list[tuple[Ticket, Exception]] = field(default_factory=list)
    left: list[Ticket] = field(default_factory=list)
    num_finished: int = 0
    until_us: float = math.inf


class Dispatcher:
    """The queues of all models, and the policy. Only one thread at a time may use this object.

    Attributes
    ----------
    models: models that are served. The policy sees their indices.
    broken: error message if the policy has failed and nothing is served any more; otherwise None.
    """

    def __init__(self) -> None:
        self.models: list[AnyModel] = []
        self.broken: str | None = None
        self._policy: Policy | None = None
        self._view = View(0.0, [], [])
        self._ended: dict[int, list[Job]] = {}
        self._next_job = 0
        self._num_late = 0

    @property
    def policy(self) -> Policy | None:
        """The policy that decides; None if there are no models."""
        return self._policy

    @property
    def num_running(self) -> int:
        """The number of running instances. A combined block counts as one instance."""
        return len(self._view.running)

    def waiting(self) -> list[Ticket]:
        """Return the requests that wait in the queues of all models."""
        return [r for queue in self._view.queues for r in queue if isinstance(r, Ticket)]

    def between(self) -> list[Ticket]:
        """Return the requests that have left the queues and wait for a block of their model."""
        return [
            request
            for buffers in self._view.between
            for buffer in buffers
            for request in buffer
            if isinstance(request, Ticket)
        ]

    def half_done(self) -> list[Job]:
        """Return the jobs that have ended while another job of their combined block still runs."""
        return [job for jobs in self._ended.values() for job in jobs]

    def explanation(self) -> list[tuple[float, str]]:
        """Return the choices of the policy, see `Policy.explanation`."""
        return self._policy.explanation() if self._policy is not None else []

    def reconfigure(self, models: list[AnyModel], policy: Policy | None) -> list[Ticket]:
        """From now on, serve the given models by the given policy.

        Returns
        -------
        The requests that were waiting, which are no longer in any queue. Requests that waited for a
        block are included. They must start again at the first block.
        """
        waiting = [*self.between(), *self.waiting()]
        for ticket in waiting:
            ticket.slot = -1
        self.models, self._policy = models, policy
        self._view = View(
            self._view.now_us,
            [deque() for _ in models],
            [[deque() for _ in range(model.num_blocks)] for model in models],
            {},
            self._view.num_finished,
        )
        return waiting

    def decide(
        self, now_us: float, arrived: Sequence[Ticket], ended: Sequence[Job], starts: bool
    ) -> Decision:
        """Record arrivals and ended jobs in the queues, and let the policy decide.

        Parameters
        ----------
        now_us: current time in microseconds.
        arrived: requests that have arrived since the last call.
        ended: jobs that have ended since the last call.
        starts: whether jobs may start.
        """
        view = self._view
        view.now_us = now_us
        decision = Decision()
        for job in ended:
            self._end(job, decision)
        for ticket in arrived:
            self._enqueue(ticket, decision)
        self._refuse_hopeless(decision)
        if starts and self._policy is not None:
            try:
                decision.until_us = self._ask(self._policy, decision)
            except Exception as error:
                self._break(self._policy, error, decision)
        # Wake up at the earliest deadline of a waiting request, to refuse this request.
        deadlines = [r.deadline_us for queue in view.queues for r in queue]
        decision.until_us = min([decision.until_us, *deadlines])
        return decision

    def _enqueue(self, ticket: Ticket, decision: Decision) -> None:
        """Put a request into its queue, behind requests of the same priority."""
        index = next((i for i, m in enumerate(self.models) if m.name == ticket.served), None)
        if self.broken is not None or index is None:
            why = self.broken or f"model `{ticket.served}` was unloaded"
            decision.refused.append((ticket, UnavailableError(why)))
            decision.left.append(ticket)
            return
        try:
            _check_again(ticket, self.models[index])
        except Exception as error:
            decision.refused.append((ticket, error))
            decision.left.append(ticket)
            return
        ticket.model = index
        queue = self._view.queues[index]
        place = len(queue)
        while place and queue[place - 1].priority < ticket.priority:
            place -= 1
        queue.insert(place, ticket)

    def _refuse_hopeless(self, decision: Decision) -> None:
        """Refuse cancelled requests, and requests that cannot meet their deadline."""
        for ticket in self.waiting():
            error: Exception | None = None
            if ticket.is_cancelled:
                error = CancelledError("the request was cancelled")
            elif ticket.deadline_us < math.inf and self._is_late(ticket):
                given_ms = (ticket.deadline_us - ticket.arrived_us) / 1e3
                error = DeadlineError(
                    f"model `{ticket.served}` could not serve the request in the {given_ms:.1f} ms "
                    "that the client allows; send fewer requests at once, or allow more time"
                )
            if error is not None:
                self._view.queues[ticket.model].remove(ticket)
                decision.refused.append((ticket, error))
                decision.left.append(ticket)

    def _is_late(self, ticket: Ticket) -> bool:
        now_us = self._view.now_us
        if now_us >= ticket.deadline_us:
            return True
        statistics = self.models[ticket.model].statistics
        expected_us = statistics.expected_us(ticket.batch)
        if now_us + expected_us <= ticket.deadline_us:
            return False
        if ticket.arrived_us + expected_us > ticket.deadline_us:
            # By the expected latency, the request would be late even if it had started on arrival.
            # A few slow runs may have made the expected latency too high. Then all such requests
            # would be refused, and no new run could correct the latency. So forget an old run.
            statistics.doubted()
        self._num_late += 1
        return self._num_late % _PROBE != 0

    def _ask(self, policy: Policy, decision: Decision) -> float:
        """Carry out the policy's decisions until it decides to wait; return the end of the wait."""
        while True:
            action = policy.decide(self._view)
            if isinstance(action, Start):
                if action.parts is None:
                    decision.jobs.append(self._started(action))
                    decision.left += decision.jobs[-1].tickets
                else:
                    decision.jobs += self._started_blocks(action)
                continue
            if isinstance(action, Admit):
                decision.left.append(self._admitted(action.request))
                continue
            until_us = action.until_us
            if until_us <= self._view.now_us:
                raise InputError("the policy asks to be called in the past; give a later time")
            return float(until_us)

    def _started(self, start: Start) -> Job:
        tickets = [ticket for ticket in start.requests if isinstance(ticket, Ticket)]
        if len(tickets) != len(start.requests) or not tickets:
            raise InputError("the policy's `Start` has no request; it must name one")
        if len({ticket.model for ticket in tickets}) > 1:
            raise InputError(
                "the policy's `Start` has requests of several models; it must name one model"
            )
        model = self.models[tickets[0].model]
        running = self._view.running
        if any(other.start.slot == start.slot for other in running.values()):
            raise InputError(f"slot {start.slot} is occupied; the policy must use a free slot")
        if not 0 <= start.slot < model.num_instances:
            raise InputError(
                f"the policy starts an instance in slot {start.slot}, and model `{model.name}` has "
                f"{model.num_instances} slots; give the server more instances"
            )
        rows = sum(ticket.rows for ticket in tickets)
        if rows > model.sizes[-1] or (len(tickets) > 1 and not model.is_batched):
            raise InputError(
                f"the policy joins {len(tickets)} requests of model `{model.name}`, which takes "
                f"batches of at most {model.sizes[-1]}; join fewer requests"
            )
        for ticket in tickets:
            self._view.queues[ticket.model].remove(ticket)
            ticket.dequeued_us = self._view.now_us
        job = Job(self._next_job, model, start.slot, tickets)
        self._next_job += 1
        running[job.number] = Running(start, self._view.now_us)
        return job

    def _admitted(self, request: Request) -> Ticket:
        """Assign an instance of its model to a request.

        The instance will run all blocks for the request.
        """
        assert isinstance(request, Ticket)
        model = self.models[request.model]
        if not model.is_divided:
            raise InputError(
                f"the policy runs blocks, but model `{model.name}` is not divided; set `blocks`"
            )
        taken = {ticket.slot for ticket in self._inside() if ticket.model == request.model}
        free = [slot for slot in range(model.num_instances) if slot not in taken]
        if not free:
            raise InputError(
                f"the policy lets more requests into model `{model.name}` than the model's "
                f"{model.num_instances} instance(s) can run; limit them with its option `inside`"
            )
        self._view.queues[request.model].remove(request)
        request.dequeued_us = request.ready_us = self._view.now_us
        request.slot = free[0]
        self._view.between[request.model][0].append(request)
        return request

    def _inside(self) -> list[Ticket]:
        """Return the requests that have left the queues: they wait for a block, or they run."""
        run = [request for r in self._view.running.values() for request in r.start.requests]
        return [*self.between(), *(request for request in run if isinstance(request, Ticket))]

    def _started_blocks(self, start: Start) -> list[Job]:
        """Start a combined block; return one job for each of its blocks that has a request."""
        assert start.parts is not None
        jobs = []
        for request, (index, block) in zip(start.requests, start.parts, strict=True):
            if not isinstance(request, Ticket):
                continue
            if block == WHOLE:
                raise InputError(
                    "the policy joins models into one graph, but compiled models run separately; "
                    "choose another policy"
                )
            self._view.between[index][block].remove(request)
            jobs.append(Job(self._next_job, self.models[index], request.slot, [request], block))
        if not jobs:
            raise InputError("the policy starts a combined block without a request; give it one")
        self._view.running[self._next_job] = Running(start, self._view.now_us)
        self._ended[self._next_job] = []
        self._next_job += 1
        return jobs

    def _end(self, job: Job, decision: Decision) -> None:
        """Record the end of a job.

        When all jobs of a combined block have ended, its requests go on to their next blocks.
        """
        view = self._view
        jobs = [job]
        if job.block != WHOLE:
            jobs = self._ended[job.number]
            jobs.append(job)
            if len(jobs) < sum(r is not None for r in view.running[job.number].start.requests):
                return
            del self._ended[job.number]
        view.running.pop(job.number)
        before = decision.num_finished
        for each in jobs:
            is_last = each.block in (WHOLE, each.model.num_blocks - 1)
            if is_last or each.tickets[0].error is not None:
                decision.num_finished += len(each.tickets)
                continue
            ticket = each.tickets[0]
            if self.broken is not None:
                decision.refused.append((ticket, UnavailableError(self.broken)))
                continue
            ticket.ready_us = view.now_us
            view.between[ticket.model][each.block + 1].append(ticket)
        view.num_finished += decision.num_finished - before

    def _break(self, policy: Policy, error: Exception, decision: Decision) -> None:
        """Record that the policy has failed, and refuse all waiting requests."""
        _LOG.exception("policy `%s` failed; the server must be started again", policy.name)
        self.broken = f"policy `{policy.name}` failed: {error}"
        decision.left += self.waiting()
        for ticket in [*self.between(), *self.waiting()]:
            decision.refused.append((ticket, ExecutionError(self.broken)))
        for queue in [*self._view.queues, *(b for each in self._view.between for b in each)]:
            queue.clear()


def _check_again(ticket: Ticket, model: AnyModel) -> None:
    """Check a request again if its model was loaded again since the first check.

    The new model may take other inputs and batch sizes than the old one.

    Raises
    ------
    InputError
        The model refuses the inputs, see `AnyModel.check`.
    """
    if ticket.checked_by is model:
        return
    ticket.shape, ticket.rows = model.check(ticket.inputs)
    ticket.batch = model.size_for(ticket.rows) if model.is_batched else 1
    ticket.checked_by = model
