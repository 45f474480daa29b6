"""The queues of a server, and the policy that decides what starts: no threads, no models run."""

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
from ..tasks import Running, Start, View
from .model import Model
from .ticket import Ticket

_LOG = logging.getLogger("tvm_interop.serving")

_PROBE = 16
"""Of the requests that would be late by what runs took lately, one in so many runs all the same:
were the expectation wrong, nothing else would correct it."""


@dataclass(eq=False)
class Job:
    """One run of a model for some requests."""

    number: int
    model: Model
    slot: int
    tickets: list[Ticket]


@dataclass(eq=False)
class Decision:
    """What to do now.

    Attributes
    ----------
    jobs: to run.
    refused: requests that will not run, and why.
    until_us: when to decide again, even if nothing happens until then.
    """

    jobs: list[Job] = field(default_factory=list)
    refused: list[tuple[Ticket, Exception]] = field(default_factory=list)
    until_us: float = math.inf


class Dispatcher:
    """Queues and a policy. One thread at a time may use it.

    Attributes
    ----------
    models: that are served; their indices are those that the policy sees.
    broken: why nothing is served any more, where the policy has failed.
    """

    def __init__(self) -> None:
        self.models: list[Model] = []
        self.broken: str | None = None
        self._policy: Policy | None = None
        self._view = View(0.0, [], [])
        self._next_job = 0
        self._num_late = 0

    @property
    def policy(self) -> Policy | None:
        """What decides; None where there are no models."""
        return self._policy

    @property
    def num_running(self) -> int:
        """How many jobs run."""
        return len(self._view.running)

    def waiting(self) -> list[Ticket]:
        """The requests in all queues."""
        return [r for queue in self._view.queues for r in queue if isinstance(r, Ticket)]

    def explanation(self) -> list[tuple[float, str]]:
        """What the policy says of its decisions."""
        return self._policy.explanation() if self._policy is not None else []

    def reconfigure(self, models: list[Model], policy: Policy | None) -> list[Ticket]:
        """Serve these from now on; the requests that waited, which have no queue now."""
        waiting = self.waiting()
        self.models, self._policy = models, policy
        self._view = View(
            self._view.now_us,
            [deque() for _ in models],
            [[deque()] for _ in models],
            {},
            self._view.num_finished,
        )
        return waiting

    def decide(
        self, now_us: float, arrived: Sequence[Ticket], ended: Sequence[Job], starts: bool
    ) -> Decision:
        """Take in what has happened, and say what to do.

        Parameters
        ----------
        starts: whether anything may start.
        """
        view = self._view
        view.now_us = now_us
        for job in ended:
            view.running.pop(job.number)
            view.num_finished += len(job.tickets)
        decision = Decision()
        for ticket in arrived:
            self._enqueue(ticket, decision)
        self._refuse_hopeless(decision)
        if starts and self._policy is not None:
            try:
                decision.until_us = self._ask(self._policy, decision)
            except Exception as error:
                self._break(self._policy, error, decision)
        # What waits may be late while nothing else happens.
        deadlines = [r.deadline_us for queue in view.queues for r in queue]
        decision.until_us = min([decision.until_us, *deadlines])
        return decision

    def _enqueue(self, ticket: Ticket, decision: Decision) -> None:
        """Put a request into its queue, behind those of its priority."""
        index = next((i for i, m in enumerate(self.models) if m.name == ticket.served), None)
        if self.broken is not None or index is None:
            why = self.broken or f"model `{ticket.served}` was unloaded"
            decision.refused.append((ticket, UnavailableError(why)))
            return
        ticket.model = index
        queue = self._view.queues[index]
        place = len(queue)
        while place and queue[place - 1].priority < ticket.priority:
            place -= 1
        queue.insert(place, ticket)

    def _refuse_hopeless(self, decision: Decision) -> None:
        """Refuse requests that nobody waits for, and those that cannot be served in time."""
        for ticket in self.waiting():
            error: Exception | None = None
            if ticket.is_cancelled:
                error = CancelledError("the request was cancelled")
            elif ticket.deadline_us < math.inf and self._is_late(ticket):
                given_ms = (ticket.deadline_us - ticket.arrived_us) / 1e3
                error = DeadlineError(
                    f"model `{ticket.served}` could not serve the request in the {given_ms:.1f} ms "
                    "it was given; send fewer at once, or allow more time"
                )
            if error is not None:
                self._view.queues[ticket.model].remove(ticket)
                decision.refused.append((ticket, error))

    def _is_late(self, ticket: Ticket) -> bool:
        now_us = self._view.now_us
        if now_us >= ticket.deadline_us:
            return True
        statistics = self.models[ticket.model].statistics
        expected_us = statistics.expected_us(ticket.batch)
        if now_us + expected_us <= ticket.deadline_us:
            return False
        if ticket.arrived_us + expected_us > ticket.deadline_us:
            # Not for its waiting: after some slow runs, all that come would be refused.
            statistics.doubted()
        self._num_late += 1
        return self._num_late % _PROBE != 0

    def _ask(self, policy: Policy, decision: Decision) -> float:
        """Do what the policy says until it waits; until when."""
        while True:
            action = policy.decide(self._view)
            if isinstance(action, Start):
                decision.jobs.append(self._started(action))
                continue
            until_us = getattr(action, "until_us", None)
            if until_us is None:
                raise InputError("it runs models in parts, and compiled models run whole")
            if until_us <= self._view.now_us:
                raise InputError("it asks to be called again at a time that is past")
            return float(until_us)

    def _started(self, start: Start) -> Job:
        tickets = [ticket for ticket in start.requests if isinstance(ticket, Ticket)]
        if start.parts is not None or len(tickets) != len(start.requests) or not tickets:
            raise InputError("it runs models jointly or in parts, and compiled models run whole")
        if len({ticket.model for ticket in tickets}) > 1:
            raise InputError("it joins requests of several models")
        model = self.models[tickets[0].model]
        running = self._view.running
        if any(other.start.slot == start.slot for other in running.values()):
            raise InputError(f"it starts two instances in slot {start.slot}")
        if not 0 <= start.slot < model.num_instances:
            raise InputError(
                f"it starts an instance in slot {start.slot}, and model `{model.name}` has "
                f"{model.num_instances}; give the server more instances"
            )
        rows = sum(ticket.rows for ticket in tickets)
        if rows > model.sizes[-1] or (len(tickets) > 1 and not model.is_batched):
            raise InputError(
                f"it joins {len(tickets)} requests of model `{model.name}`, which takes batches of "
                f"at most {model.sizes[-1]}"
            )
        for ticket in tickets:
            self._view.queues[ticket.model].remove(ticket)
            ticket.dequeued_us = self._view.now_us
        job = Job(self._next_job, model, start.slot, tickets)
        self._next_job += 1
        running[job.number] = Running(start, self._view.now_us)
        return job

    def _break(self, policy: Policy, error: Exception, decision: Decision) -> None:
        """The policy has failed: nothing that waits will be served."""
        _LOG.exception("policy `%s` failed; the server must be started again", policy.name)
        self.broken = f"policy `{policy.name}` failed: {error}"
        for ticket in self.waiting():
            decision.refused.append((ticket, ExecutionError(self.broken)))
        for queue in self._view.queues:
            queue.clear()
