"""The executor: threads that run models as a policy decides.

No thread owns the policy. At each event, an idle thread of the executor asks the policy for a
decision, and then runs the models. So a request usually passes from one thread to another only
once: from the thread that submits it to the thread that runs it. The number of threads is one more
than the number of instances that may run at the same time. So a thread is always free to let the
policy decide and to refuse late requests.
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
from .ticket import Ticket, Waiter, tell

_LOG = logging.getLogger("tvm_interop.serving")


class Executor:
    """Queues and runs requests for models, in threads, as a policy decides.

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
        """Run each model a few times to warm it up and to measure it, and start the threads.

        Parameters
        ----------
        policy: function that creates the policy. It is called again whenever the models change.
        max_queue: maximum number of waiting requests per model.
        instances: maximum number of instances of all models together that run at the same time.
            Each model must have at least this many instances. For a policy that runs blocks, this
            is the maximum number of blocks that run at the same time.
        blocks: maximum number of blocks per model, for a policy that runs blocks; 1 for policies
            that run models as a whole.
        """
        if not is_whole(max_queue) or max_queue < 1:
            raise InputError(f"`max_queue` is {max_queue!r}; it must be a whole number, 1 or more")
        self._make_policy = policy
        self._max_queue = max_queue
        self._instances = instances
        self._blocks = blocks
        self._began = time.monotonic()
        self._changing = threading.Lock()  # Locked while models are added or removed.
        self._told: dict[AnyModel, ServedModel] = {}
        # While a thread lets the policy decide, only that thread changes the dispatcher. While no
        # thread does so, any thread may change the dispatcher.
        self._dispatcher = Dispatcher()
        # Workers wait on `_wake`; threads that wait for the workers wait on `_at_rest`.
        lock = threading.RLock()
        self._wake, self._at_rest = threading.Condition(lock), threading.Condition(lock)
        # A thread must hold the lock of `_wake` to use any of the following attributes.
        self._arrived: list[Ticket] = []
        self._ended: list[Job] = []
        self._ready: deque[Job] = deque()
        self._waiting: dict[str, int] = {}
        self._in_flight = self._num_blocks_at_work = self._next_id = 0
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
        """The models that are served, keyed by name."""
        return {model.name: model for model in self._dispatcher.models}

    def model(self, name: str, version: str = "") -> AnyModel:
        """Return the model of a name.

        Raises
        ------
        ModelNotFoundError
            There is no model of this name, or the model does not have this version.
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
        """Add a model. It replaces a model of the same name."""
        with self._changing:
            self._measure(model)
            kept = [m for m in self._dispatcher.models if m.name != model.name]
            self._change([*kept, model])

    def remove(self, name: str) -> None:
        """Remove a model. Requests that wait for the model are refused.

        Raises
        ------
        ModelNotFoundError
            There is no model of this name.
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
        """Put a request into its queue and return at once.

        Parameters
        ----------
        inputs: input arrays, keyed by name. They must not change until the request is done.
        done: function that a thread of the executor calls once, with the ticket, when the request
            is done. It must not block.
        priority: priority of the request. Higher priorities are served first.
        timeout_us: time in microseconds in which the request must be served; None for no limit. A
            request that cannot meet this limit, judged by recent runs, does not start and gets a
            `DeadlineError`.

        Raises
        ------
        InputError
            As `AnyModel.check`, or the timeout is invalid.
        ModelNotFoundError, OverloadedError, UnavailableError
            There is no such model, its queue is full, or the executor accepts no more requests.
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
                inputs=inputs, rows=rows, shape=shape, checked_by=found, done=done,
                served=found.name,
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
        """Serve one request; return its outputs. Raises errors of `submit` and of a failed run."""
        waiter = Waiter()
        self.submit(model, inputs, waiter, priority=priority, timeout_us=timeout_us)
        return waiter.outputs()

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a request. If it has not started yet, it will not start."""
        with self._wake:
            ticket.is_cancelled = True
            self._has_changed = True
            self._wake.notify()

    # State.

    @property
    def is_ready(self) -> bool:
        """Whether the executor accepts requests."""
        return not (self._is_draining or self._is_stopped) and self.broken is None

    @property
    def broken(self) -> str | None:
        """The error message if the policy has failed and nothing is served any more, else None."""
        return self._dispatcher.broken

    @property
    def in_flight(self) -> int:
        """The number of requests without an answer yet."""
        return self._in_flight

    def waiting(self, model: str) -> int:
        """Return the number of requests in the queue of a model."""
        return self._waiting.get(model, 0)

    def explanation(self) -> list[tuple[float, str]]:
        """Return the choices of the policy, see `Policy.explanation`."""
        return self._dispatcher.explanation()

    # Shutdown.

    def drain(self, limit_s: float | None = None) -> bool:
        """Stop accepting requests, and wait until all accepted requests are served.

        The method waits for at most `limit_s` seconds (None: no limit), and returns whether all
        requests were served.
        """
        until = math.inf if limit_s is None else time.monotonic() + limit_s
        with self._wake:
            self._is_draining = True
            while self._in_flight:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._at_rest.wait(min(left, 0.2))
        return True

    def close(self, limit_s: float | None = None) -> None:
        """Stop the threads. Waiting requests are refused.

        Parameters
        ----------
        limit_s: maximum time in seconds to wait for runs that have started; None for no limit.
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
            # Requests that wait for their next block are refused too, because no block starts any
            # more.
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

    # Worker threads.

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
        """Return the next job for this thread, or None once the executor stops.

        If a decision is due and no other thread makes it, this thread first asks the policy.
        """
        with self._wake:
            while not self._is_stopped:
                if self._has_changed and not self._is_deciding:
                    self._decide()
                elif self._ready and (
                    self._ready[0].block == WHOLE or self._num_blocks_at_work < self._instances
                ):
                    if self._has_changed or len(self._ready) > 1 or self._until_us < math.inf:
                        self._wake.notify()  # Another thread decides, runs, or waits for the time.
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
        """Ask the policy which jobs start, and record its decision.

        The caller holds the lock of `_wake`. The method releases this lock while the policy
        decides, so that requests can arrive.
        """
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
            self._at_rest.notify_all()

    def _carry_out(self, job: Job) -> None:
        """Run a job and complete its requests. If a batch fails, its requests run one by one."""
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
        """Run one block for its request. The last block completes the request."""
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
            tell(ticket)
        elif self._is_stopped:
            self._refuse(ticket, UnavailableError("the server has ended"))

    def _run(self, job: Job, tickets: list[Ticket]) -> ExecutionError | None:
        """Run a model and complete its requests; return an error if the run failed."""
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
            tell(ticket)
        return None

    def _refuse(self, ticket: Ticket, error: Exception) -> None:
        model = self.models.get(ticket.served)
        if model is not None:
            model.statistics.failed(error, self._now_us() - ticket.arrived_us)
        ticket.outputs, ticket.error = None, error
        tell(ticket)

    # The methods below change which models are served.

    def _measure(self, model: AnyModel) -> None:
        warm_up(model)
        if self._blocks > 1:
            model.divide(self._blocks)
        self._told[model] = served_model(model)

    def _prepared(self, models: list[AnyModel]) -> Policy | None:
        """Create a policy for the given models, or return None if there are none."""
        if not models:
            return None
        policy = self._make_policy()
        programs = Programs([self._told[model] for model in models], device(models))
        policy.prepare(Setting(programs))
        return policy

    def _change(self, models: list[AnyModel]) -> None:
        """Change the models once no job runs any more. New requests wait until then.

        Raises `UnavailableError` if the executor stops meanwhile.
        """
        policy, before = self._prepared(models), self._dispatcher.policy
        with self._wake:
            self._is_paused = True
            while not self._is_stopped and (
                self._is_deciding or self._ready or self._ended or self._dispatcher.num_running
            ):
                self._has_changed = True
                self._wake.notify_all()
                self._at_rest.wait(0.05)
            is_stopped = self._is_stopped
            if not is_stopped:
                self._serve(models, policy)
            self._is_paused = False
            self._has_changed = True
            self._wake.notify_all()
        unused = policy if is_stopped else before
        if unused is not None:
            unused.close()
        if is_stopped:
            raise UnavailableError("the server is shutting down; ask another server")

    def _serve(self, models: list[AnyModel], policy: Policy | None) -> None:
        """Set the models and the policy. Waiting requests are queued again, in their old order."""
        self._arrived = [*self._dispatcher.reconfigure(models, policy), *self._arrived]
        self._told = {model: self._told[model] for model in models}
        self._waiting = dict.fromkeys((*self._waiting, *(m.name for m in models)), 0)
        for ticket in self._arrived:
            self._waiting[ticket.served] += 1

    def _require_room(self, model: AnyModel) -> None:
        if self.broken is not None:
            raise UnavailableError(self.broken)
        if self._is_draining:
            raise UnavailableError("the server is shutting down; ask another server")
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
