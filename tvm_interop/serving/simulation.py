"""A simulator of model serving.

The simulator runs a policy on models, a device and arrivals, and returns the times of every
request.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from .._native import passes as native
from ..errors import InputError
from ..plain_data import is_finite, is_whole
from .arrivals import Arrivals
from .models import ServedModel, ServingDevice
from .policy import Policy, Setting
from .programs import Programs
from .run import ServingRun
from .tasks import WHOLE, Admit, Request, Running, Start, View, Wait


def simulate_serving(
    models: Sequence[ServedModel],
    arrivals: Arrivals,
    policy: Policy,
    device: ServingDevice,
    seconds: float,
    *,
    queue_bound: int | None = None,
    refuse_late: bool = False,
    believed: ServingDevice | None = None,
    programs: Programs | None = None,
) -> ServingRun:
    """Simulate serving. The simulation is deterministic.

    The operators of all running instances share the device as described in `ServingDevice`. An
    operator starts when its stream is free and its inputs are ready.

    Parameters
    ----------
    seconds: simulated time.
    queue_bound: maximum number of waiting requests of a model. Requests that arrive at a full queue
        are dropped. None for no limit.
    refuse_late: whether requests that cannot meet their deadline are refused, as in a server. A
        request cannot meet its deadline if it would end too late even if it ran alone.
    believed: the device that the policy plans for, if it differs from the simulated `device`; None
        if the policy plans for `device`. Tests use it to give a policy wrong data.
    programs: cache of programs for the same models and device. If several runs share it, each
        schedule is made only once.

    Raises
    ------
    InputError: a request arrives for a model that does not exist. Or a decision of the policy
        cannot be carried out: it starts a request that is not waiting, or it waits for a time in
        the past.
    ScheduleError: as `tvm_interop.schedule`, or an instance starts beside an instance that must
        run alone.
    """
    if not is_finite(seconds) or seconds <= 0:
        raise InputError(f"`seconds` is {seconds!r}; it must be a number above 0")
    if queue_bound is not None and (not is_whole(queue_bound) or queue_bound < 1):
        raise InputError(f"`queue_bound` is {queue_bound!r}; it must be 1 or more, or None")
    if arrivals.num_models > len(models):
        raise InputError(
            f"requests arrive for model {arrivals.num_models - 1}, and there are {len(models)} "
            "models, numbered from 0"
        )
    made = programs if programs is not None else Programs(models, device)
    told = made if believed is None or believed == device else Programs(models, believed)
    policy.prepare(Setting(told))
    return _Simulator(arrivals, policy, made, seconds * 1e6, queue_bound, refuse_late).run()


class _Feed:
    """Yields the given requests and their follow-up requests, in order of arrival time."""

    def __init__(self, arrivals: Arrivals) -> None:
        count = len(arrivals.at_us)
        self._at_us: list[float] = arrivals.at_us.tolist()
        self._models: list[int] = arrivals.models.tolist()
        self._priorities = _column(arrivals.priorities, 0, count)
        self._batches = _column(arrivals.batches, 1, count)
        self._deadlines = _column(arrivals.deadlines_us, math.inf, count)
        self._next = 0
        self._following: list[tuple[float, int, int]] = []
        self._followers: dict[int, list[tuple[int, float]]] = {}
        for model, following, delay_us in arrivals.followers:
            self._followers.setdefault(model, []).append((following, delay_us))
        self._brought = 0
        self._arrived = 0

    @property
    def next_us(self) -> float:
        at_us = self._at_us[self._next] if self._next < len(self._at_us) else math.inf
        return min(at_us, self._following[0][0]) if self._following else at_us

    def pop(self) -> Request:
        number = self._arrived
        self._arrived += 1
        i = self._next
        if self._following and (i == len(self._at_us) or self._following[0][0] < self._at_us[i]):
            at_us, _, model = heapq.heappop(self._following)
            return Request(number, model, at_us, ready_us=at_us)
        self._next += 1
        at_us = self._at_us[i]
        return Request(
            number, self._models[i], at_us, self._priorities[i], self._deadlines[i],
            self._batches[i], at_us,
        )  # fmt: skip

    def has_served(self, model: int, at_us: float) -> None:
        for following, delay_us in self._followers.get(model, ()):
            heapq.heappush(self._following, (at_us + delay_us, self._brought, following))
            self._brought += 1


def _column(values: np.ndarray | None, default: float, count: int) -> list:  # type: ignore[type-arg]
    return [default] * count if values is None else values.tolist()


class _Simulator:
    def __init__(
        self,
        arrivals: Arrivals,
        policy: Policy,
        programs: Programs,
        end_us: float,
        queue_bound: int | None,
        refuse_late: bool,
    ) -> None:
        self._feed = _Feed(arrivals)
        self._policy = policy
        self._programs = programs
        self._end_us = end_us
        self._bound = math.inf if queue_bound is None else queue_bound
        self._refuses = refuse_late and arrivals.deadlines_us is not None
        models = programs.models
        self._view = View(
            0.0, [deque() for _ in models], [[deque() for _ in m.blocks] for m in models]
        )
        self._engine = native.serving_engine_make(programs.device.packed)
        self._requests: list[Request] = []
        self._dropped = [0] * len(models)
        self._instances = 0

    def run(self) -> ServingRun:
        view, engine, end_us = self._view, self._engine, self._end_us
        decide, advance = self._policy.decide, native.serving_engine_advance
        self._take_arrivals(0.0)
        while True:
            if self._refuses:
                self._refuse_late()
            action = decide(view)
            if isinstance(action, Start):
                self._start(action)
                continue
            if isinstance(action, Admit):
                self._admit(action.request)
                continue
            if action.until_us <= view.now_us:
                raise InputError(
                    f"policy `{self._policy.name}` asks to be called again at "
                    f"{action.until_us} us, but it is {view.now_us} us already; give a later time"
                )
            target_us = self._next_us(action)
            number = advance(engine, target_us)
            view.now_us = native.serving_engine_now(engine) if number >= 0 else target_us
            self._take_arrivals(view.now_us)
            if number >= 0:
                self._end(number)
            elif view.now_us >= end_us:
                return self._result()

    def _next_us(self, wait: Wait) -> float:
        target_us = min(wait.until_us, self._end_us)
        if wait.full and self._view.running:
            return target_us
        return min(target_us, self._feed.next_us)

    def _take_arrivals(self, until_us: float) -> None:
        feed, queues = self._feed, self._view.queues
        while feed.next_us <= until_us:
            request = feed.pop()
            queue = queues[request.model]
            if len(queue) >= self._bound:
                self._dropped[request.model] += 1
                continue
            self._requests.append(request)
            queue.append(request)
            place = len(queue) - 1
            while place and queue[place - 1].priority < request.priority:
                place -= 1
            if place < len(queue) - 1:
                queue.pop()
                queue.insert(place, request)

    def _refuse_late(self) -> None:
        for model, queue in enumerate(self._view.queues):
            late = [request for request in queue if self._is_late(model, request)]
            for request in late:
                queue.remove(request)

    def _is_late(self, model: int, request: Request) -> bool:
        alone_us = self._programs.model_us(model, request.batch)
        return request.deadline_us < self._view.now_us + alone_us

    def _start(self, start: Start) -> None:
        view = self._view
        program, present = self._programs.of_start(start)
        number = native.serving_engine_start(self._engine, program, present, start.alone)
        for i, request in enumerate(start.requests):
            if request is None:
                continue
            block = WHOLE if start.parts is None else start.parts[i][1]
            if block == WHOLE:
                self._remove(view.queues[request.model], request)
                request.dequeued_us = view.now_us
            else:
                self._remove(view.between[request.model][block], request)
        view.running[number] = Running(start, view.now_us)
        self._instances += 1

    def _admit(self, request: Request) -> None:
        self._remove(self._view.queues[request.model], request)
        request.dequeued_us = request.ready_us = self._view.now_us
        self._view.between[request.model][0].append(request)

    def _remove(self, waiting: deque[Request], request: Request) -> None:
        if waiting and waiting[0] is request:
            waiting.popleft()
            return
        try:
            waiting.remove(request)
        except ValueError:
            raise InputError(
                f"policy `{self._policy.name}` starts request {request.id}, which is not waiting; "
                "start only waiting requests"
            ) from None

    def _end(self, number: int) -> None:
        view = self._view
        start = view.running.pop(number).start
        for i, request in enumerate(start.requests):
            if request is None:
                continue
            block = WHOLE if start.parts is None else start.parts[i][1]
            buffers = view.between[request.model]
            if block != WHOLE and block + 1 < len(buffers):
                request.ready_us = view.now_us
                buffers[block + 1].append(request)
                continue
            request.finished_us = view.now_us
            view.num_finished += 1
            self._feed.has_served(request.model, view.now_us)
        self._take_arrivals(view.now_us)

    def _result(self) -> ServingRun:
        requests = self._requests
        busy_us = native.serving_engine_busy(self._engine)
        return ServingRun(
            self._end_us,
            len(self._programs.models),
            np.array([r.model for r in requests], dtype=np.int64),
            np.array([r.arrived_us for r in requests], dtype=np.float64),
            np.array([r.dequeued_us for r in requests], dtype=np.float64),
            np.array([r.finished_us for r in requests], dtype=np.float64),
            min(1.0, busy_us / self._end_us),
            np.array(self._dropped, dtype=np.int64),
            self._instances,
            tuple(self._policy.explanation()),
            np.array([r.deadline_us for r in requests], dtype=np.float64),
        )
