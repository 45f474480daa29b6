"""Requests in, outputs out: a policy decides, threads of the executor run the models.

No thread owns the policy. Whoever of the executor's threads is idle when something has happened
decides for all, and then runs what there is to run, so a request passes from one thread to one
other. There is one thread more than instances may run at once: decisions, and requests that are too
late, never wait for a model.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...errors import (
    ExecutionError,
    InputError,
    ModelNotFoundError,
    OverloadedError,
    UnavailableError,
    cut,
    did_you_mean,
)
from ...plain_data import is_finite, is_whole
from ..models import ServedModel
from ..policy import Policy, Setting
from ..programs import Programs
from ..tasks import WHOLE
from .any_model import VERSION, AnyModel, failure
from .dispatcher import Dispatcher, Job
from .measuring import device, served_model, warm_up
from .ticket import Ticket, Waiter

_LOG = logging.getLogger("tvm_interop.serving")


class Executor:
    """Serves models by a policy.

    Examples
    --------
    >>> executor = Executor([Model("net", load("net.tar"))], Sequential)  # doctest: +SKIP
    >>> executor.infer("net", {"x": array})  # doctest: +SKIP
    """

    def __init__(
        self,
        models: Sequence[AnyModel],
        policy: Callable[[], Policy],
        *,
        max_queue: int = 64,
        instances: int = 1,
        blocks: int = 1,
    ) -> None:
        """Run each model a few times, to warm it up and to measure it, and start the threads.

        Parameters
        ----------
        policy: makes the policy; called again whenever the models change.
        max_queue: how many requests of a model may wait.
        instances: how many instances may run at once, of all models together; each model has at
            least as many. Of a combined block so many blocks run side by side.
        blocks: into how many blocks each model is divided at most, for a policy that runs blocks;
            1 for policies that run models whole.
        """
        if not is_whole(max_queue) or max_queue < 1:
            raise InputError(f"`max_queue` is {max_queue!r}; it must be a whole number, 1 or more")
        self._make_policy = policy
        self._max_queue = max_queue
        self._instances = instances
        self._blocks = blocks
        self._began = time.monotonic()
        self._changing = threading.Lock()  # One change of the models at a time.
        self._told: dict[AnyModel, ServedModel] = {}
        # Used by the one thread that decides, or while nobody does.
        self._dispatcher = Dispatcher()
        self._wake = threading.Condition()
        # The lock of `_wake` guards all of these.
        self._arrived: list[Ticket] = []
        self._ended: list[Job] = []
        self._ready: deque[Job] = deque()
        self._waiting: dict[str, int] = {}
        self._in_flight = 0
        self._num_blocks_at_work = 0
        self._next_id = 0
        self._until_us = math.inf
        self._has_changed = self._is_deciding = False
        self._is_paused = self._is_draining = self._is_stopped = False
        for model in models:
            self._measure(model)
        self._serve(list(models), self._prepared(list(models)))
        self._threads = [
            threading.Thread(target=self._work, name=f"tvm-interop-serve-{i}", daemon=True)
            for i in range(instances + 1)
        ]
        for thread in self._threads:
            thread.start()

    # Models.

    @property
    def models(self) -> dict[str, AnyModel]:
        """The models that are served, by name."""
        return {model.name: model for model in self._dispatcher.models}

    def model(self, name: str, version: str = "") -> AnyModel:
        """The model of this name.

        Raises
        ------
        ModelNotFoundError
            There is none, or none of that version.
        """
        found = next((model for model in self._dispatcher.models if model.name == name), None)
        if found is None:
            names = list(self.models)
            raise ModelNotFoundError(
                f"there is no model `{cut(name)}`{did_you_mean(name, names)}; the models are "
                f"{', '.join(names) or 'none'}"
            )
        if version not in ("", VERSION):
            raise ModelNotFoundError(
                f"model `{name}` has no version `{cut(version)}`; it has {VERSION}"
            )
        return found

    def add(self, model: AnyModel) -> None:
        """Serve one model more, or another in place of the one of that name."""
        with self._changing:
            self._measure(model)
            kept = [m for m in self._dispatcher.models if m.name != model.name]
            self._change([*kept, model])

    def remove(self, name: str) -> None:
        """Serve a model no longer; requests that wait for it are refused.

        Raises
        ------
        ModelNotFoundError
            There is none of that name.
        """
        with self._changing:
            self.model(name)
            self._change([m for m in self._dispatcher.models if m.name != name])

    # Requests.

    def submit(
        self,
        model: str,
        inputs: Mapping[str, np.ndarray],
        done: Callable[[Ticket], None],
        *,
        version: str = "",
        priority: int = 0,
        timeout_us: float | None = None,
    ) -> Ticket:
        """Take in a request. It does not wait for anything.

        Parameters
        ----------
        inputs: by name; they must not change until the request is done.
        done: called with the ticket by a thread of the executor, once; it must not block.
        priority: higher ones are served first.
        timeout_us: how soon it must be served. It is not started once it cannot be, by what runs
            took lately, and gets a `DeadlineError`. None for no matter how long.

        Raises
        ------
        InputError
            As `AnyModel.check`; a timeout that is none.
        ModelNotFoundError, OverloadedError, UnavailableError
            The queue is full; the server ends.
        """
        found = self.model(model, version)
        if timeout_us is not None and (not is_finite(timeout_us) or timeout_us <= 0):
            raise InputError(f"`timeout` is {timeout_us!r}; give microseconds, above 0")
        shape, rows = found.check(inputs)
        size = found.size_for(rows) if found.is_batched else 1
        with self._wake:
            try:
                self._require_room(found)
            except OverloadedError as error:
                found.statistics.failed(error)
                raise
            now_us = self._now_us()
            ticket = Ticket(
                self._next_id, -1, now_us, priority,
                math.inf if timeout_us is None else now_us + timeout_us, size, now_us,
                inputs=inputs, rows=rows, shape=shape, done=done, served=found.name,
            )  # fmt: skip
            self._next_id += 1
            self._waiting[model] += 1
            self._in_flight += 1
            self._arrived.append(ticket)
            self._has_changed = True
            self._wake.notify()
        return ticket

    def infer(
        self,
        model: str,
        inputs: Mapping[str, np.ndarray],
        *,
        priority: int = 0,
        timeout_us: float | None = None,
    ) -> list[np.ndarray]:
        """Serve one request, and wait for it; raises what went wrong, as `submit` does."""
        waiter = Waiter()
        self.submit(model, inputs, waiter, priority=priority, timeout_us=timeout_us)
        return waiter.outputs()

    def cancel(self, ticket: Ticket) -> None:
        """Nobody waits for this request any more: it does not start, if it has not yet."""
        with self._wake:
            ticket.is_cancelled = True
            self._has_changed = True
            self._wake.notify()

    # The state.

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return not (self._is_draining or self._is_stopped) and self.broken is None

    @property
    def broken(self) -> str | None:
        """Why nothing is served any more, where the policy has failed."""
        return self._dispatcher.broken

    @property
    def in_flight(self) -> int:
        """How many requests have no answer yet."""
        return self._in_flight

    def waiting(self, model: str) -> int:
        """How many requests wait for a model."""
        return self._waiting.get(model, 0)

    def explanation(self) -> list[tuple[float, str]]:
        """What the policy says of its decisions, see `Policy.explanation`."""
        return self._dispatcher.explanation()

    # The end.

    def drain(self, limit_s: float | None = None) -> bool:
        """Take no requests any more and serve those that were taken; whether all were in time."""
        until = math.inf if limit_s is None else time.monotonic() + limit_s
        with self._wake:
            self._is_draining = True
            while self._in_flight:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._wake.wait(min(left, 0.2))
        return True

    def close(self, limit_s: float | None = None) -> None:
        """Stop the threads; requests that wait are refused.

        Parameters
        ----------
        limit_s: how long to wait for runs that have begun.
        """
        until = math.inf if limit_s is None else time.monotonic() + limit_s
        with self._wake:
            self._is_draining = self._is_stopped = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join(None if limit_s is None else max(0.0, until - time.monotonic()))
        with self._wake:
            left = [*self._arrived, *(ticket for job in self._ready for ticket in job.tickets)]
            self._arrived, self._ready = [], deque()
            # A block of theirs has ended, and the next one will not begin.
            half_done = [*self._ended, *self._dispatcher.half_done()]
            left += [
                t
                for job in half_done
                if job.block != WHOLE
                for t in job.tickets
                if t.outputs is None and t.error is None
            ]
            policy = self._dispatcher.policy
            if not self._is_deciding:
                left += self._dispatcher.reconfigure(self._dispatcher.models, None)
        for ticket in left:
            self._refuse(ticket, UnavailableError("the server has ended"))
        if policy is not None:
            policy.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.drain()
        self.close()

    # What the threads do.

    def _work(self) -> None:
        while (job := self._next()) is not None:
            if job.block == WHOLE:
                self._carry_out(job)
            else:
                self._carry_out_block(job)
            with self._wake:
                self._num_blocks_at_work -= job.block != WHOLE
                self._ended.append(job)
                self._has_changed = True

    def _next(self) -> Job | None:
        """What this thread is to run; it decides first, where that is due and nobody does."""
        with self._wake:
            while not self._is_stopped:
                if self._has_changed and not self._is_deciding:
                    self._decide()
                elif self._ready and (
                    self._ready[0].block == WHOLE or self._num_blocks_at_work < self._instances
                ):
                    if self._has_changed or len(self._ready) > 1:
                        self._wake.notify()
                    job = self._ready.popleft()
                    self._num_blocks_at_work += job.block != WHOLE
                    return job
                else:
                    left_us = self._until_us - self._now_us()
                    if left_us > 0:
                        self._wake.wait(min(left_us / 1e6, 3600.0))
                    if self._until_us <= self._now_us():
                        self._until_us, self._has_changed = math.inf, True
        return None

    def _decide(self) -> None:
        """Let the policy decide. The lock, which is held, is free meanwhile: requests come in."""
        arrived, self._arrived = self._arrived, []
        ended, self._ended = self._ended, []
        self._has_changed, self._is_deciding = False, True
        starts = not self._is_paused
        self._wake.release()
        try:
            decision = self._dispatcher.decide(self._now_us(), arrived, ended, starts)
            for ticket, error in decision.refused:
                self._refuse(ticket, error)
        finally:
            self._wake.acquire()
            self._is_deciding = False
        for ticket in decision.left:
            self._waiting[ticket.served] -= 1
        self._ready.extend(decision.jobs)
        self._until_us = decision.until_us
        self._in_flight -= len(decision.refused) + decision.num_finished
        if self._in_flight == 0 or self._is_paused:
            self._wake.notify_all()

    def _carry_out(self, job: Job) -> None:
        """Run a job, and tell whoever waits; a batch that fails is run again one by one."""
        error = self._run(job, job.tickets)
        if error is None:
            return
        for ticket in job.tickets:
            if len(job.tickets) > 1:
                error = self._run(job, [ticket])
            if error is not None:
                _LOG.error("%s", error)
                self._refuse(ticket, error)

    def _carry_out_block(self, job: Job) -> None:
        """Run one block for its request, and tell whoever waits if it was the last one."""
        (ticket,) = job.tickets
        if job.block == 0:
            ticket.started_us = self._now_us()
        try:
            job.model.run_block(job.slot, job.block, ticket)
        except Exception as error:
            told = failure(job.model.name, error)
            _LOG.error("%s", told)
            self._refuse(ticket, told)
            return
        if job.block + 1 == job.model.num_blocks:
            ticket.finished_us = self._now_us()
            job.model.statistics.ran([ticket])
            _tell(ticket)
        elif self._is_stopped:
            self._refuse(ticket, UnavailableError("the server has ended"))

    def _run(self, job: Job, tickets: list[Ticket]) -> ExecutionError | None:
        """Run a model and tell whoever waits, unless it fails."""
        started_us = self._now_us()
        for ticket in tickets:
            ticket.started_us = started_us
        try:
            job.model.run(job.slot, tickets)
        except Exception as error:
            return failure(job.model.name, error)
        finished_us = self._now_us()
        for ticket in tickets:
            ticket.finished_us = finished_us
        job.model.statistics.ran(tickets)
        for ticket in tickets:
            _tell(ticket)
        return None

    def _refuse(self, ticket: Ticket, error: Exception) -> None:
        model = self.models.get(ticket.served)
        if model is not None:
            model.statistics.failed(error, self._now_us() - ticket.arrived_us)
        ticket.outputs, ticket.error = None, error
        _tell(ticket)

    # Changes of the models.

    def _measure(self, model: AnyModel) -> None:
        warm_up(model)
        if self._blocks > 1:
            model.divide(self._blocks)
        self._told[model] = served_model(model)

    def _prepared(self, models: list[AnyModel]) -> Policy | None:
        """A new policy that knows these models."""
        if not models:
            return None
        policy = self._make_policy()
        programs = Programs([self._told[model] for model in models], device(models))
        policy.prepare(Setting(programs))
        return policy

    def _change(self, models: list[AnyModel]) -> None:
        """Serve these from now on; what runs ends first, and requests are taken in meanwhile."""
        policy, before = self._prepared(models), self._dispatcher.policy
        with self._wake:
            self._is_paused = True
            while self._is_deciding or self._ready or self._ended or self._dispatcher.num_running:
                self._has_changed = True
                self._wake.notify_all()
                self._wake.wait(0.05)
            self._serve(models, policy)
            self._is_paused = False
            self._has_changed = True
            self._wake.notify_all()
        if before is not None:
            before.close()

    def _serve(self, models: list[AnyModel], policy: Policy | None) -> None:
        """From now on, these; what waits for them waits on, in its old order."""
        self._arrived = [*self._dispatcher.reconfigure(models, policy), *self._arrived]
        self._told = {model: self._told[model] for model in models}
        self._waiting = dict.fromkeys((*self._waiting, *(m.name for m in models)), 0)
        for ticket in self._arrived:
            self._waiting[ticket.served] += 1

    def _require_room(self, model: AnyModel) -> None:
        if self.broken is not None:
            raise UnavailableError(self.broken)
        if self._is_draining:
            raise UnavailableError("the server is about to end; ask another one")
        waiting = self._waiting[model.name]
        if waiting >= self._max_queue:
            retry_s = waiting * model.statistics.expected_us(model.sizes[0]) / 1e6
            raise OverloadedError(
                f"{waiting} requests wait for model `{model.name}` already; try again in "
                f"{retry_s:.3f} s",
                retry_s,
            )

    def _now_us(self) -> float:
        return (time.monotonic() - self._began) * 1e6


def _tell(ticket: Ticket) -> None:
    """Tell whoever waits; what goes wrong there is none of the executor's business."""
    try:
        ticket.done(ticket)
    except Exception:
        _LOG.exception("an answer could not be handed over")
