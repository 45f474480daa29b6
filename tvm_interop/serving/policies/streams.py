"""The policy `streams`: several instances run at the same time, each on its own stream."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...errors import InputError
from ...plain_data import is_finite, is_whole
from ..policy import Policy, register_policy
from ..tasks import Request, Start, View, Wait
from .orders import order_named
from .slots import free_slot

_WINDOW = 64
"""The minimum number of requests served between two changes of the number of streams."""
_WORSE, _BETTER = 0.93, 1.02
"""Two limits, as shares of the best recent speed, that decide whether a change of K helped.

K is the number of streams. After K has changed, a speed below the first share of the best recent
speed counts as a loss. A speed of at least the second share counts as a gain.
"""
_HOLD = 8
"""If one more stream did not help, it is tried again only after this many measured periods."""


@register_policy("streams")
class Streams(Policy):
    """A policy that runs up to K requests at the same time.

    With `streams=None`, K adapts to the load by additive increase and multiplicative decrease. K
    grows by one for as long as the speed improves. It is multiplied by three quarters when the
    speed drops. The speed is the work done per time, measured over 64 requests or more. The work of
    a request is its latency when it runs alone. K changes only after a period in which requests
    were always waiting.

    Parameters
    ----------
    streams: K, the maximum number of instances at the same time; None to adapt K while serving.
    order, schedule, barriers: as for `sequential`.
    interval_us: (num_models,) minimum time in microseconds between two starts of each model, as in
        TOP's launcher; None for no minimum.
    """

    def __init__(
        self,
        streams: int | None = 4,
        order: str = "fifo",
        schedule: str = "sequential",
        barriers: bool = False,
        interval_us: Sequence[float] | None = None,
    ) -> None:
        if streams is not None and (not is_whole(streams) or streams < 1):
            raise InputError(
                f"`streams` is {streams!r}; it must be a whole number, 1 or more, or None"
            )
        for interval in interval_us or ():
            if not is_finite(interval) or interval < 0:
                raise InputError(f"an interval is {interval!r}; give microseconds, 0 or more")
        self._streams = streams
        self._adapted = None if streams is not None else _Adapted()
        self._next = order_named(order)
        self._schedule = schedule
        self._barriers = barriers
        self._interval_us = None if interval_us is None else list(interval_us)
        self._due_us = [0.0] * len(interval_us or ())

    def decide(self, view: View) -> Start | Wait:
        """Start the next request while fewer than K instances run."""
        most = self._streams if self._adapted is None else self._adapted.streams(self, view)
        assert most is not None
        if len(view.running) >= most:
            return Wait(full=True)
        request = self._next(view) if self._interval_us is None else self._launched(view)
        if request is None:
            return Wait() if self._interval_us is None else Wait(self._next_due(view))
        if self._interval_us is not None:
            self._due_us[request.model] = view.now_us + self._interval_us[request.model]
        slot = free_slot(view)
        alone = most == 1 and self._adapted is None
        return Start((request,), self._schedule, None, self._barriers, slot, alone)

    def _launched(self, view: View) -> Request | None:
        assert self._interval_us is not None
        if len(self._interval_us) != len(view.queues):
            raise InputError(
                f"there are {len(self._interval_us)} intervals for {len(view.queues)} models; "
                "give one for each"
            )
        # The function `order` chooses the next request. To exclude models that may not start yet,
        # pass empty queues for them.
        due = [
            queue if self._due_us[model] <= view.now_us else queue.__class__()
            for model, queue in enumerate(view.queues)
        ]
        return self._next(View(view.now_us, due, view.between, view.running))

    def _next_due(self, view: View) -> float:
        return min(
            (due for due, queue in zip(self._due_us, view.queues, strict=True) if queue),
            default=math.inf,
        )


class _Adapted:
    """The number of streams K, adapted while serving."""

    def __init__(self) -> None:
        self._streams = 2
        self._seen: dict[int, float] = {}
        self._finished = 0
        self._work_us = 0.0
        self._since_us = 0.0
        self._was_saturated = True
        self._best = 0.0
        self._hold = 0

    def streams(self, policy: Policy, view: View) -> int:
        for number, running in view.running.items():
            if self._seen.get(number) != running.started_us:
                self._seen[number] = running.started_us
                request = running.start.requests[0]
                assert request is not None
                self._work_us += policy.setting.programs.model_us(request.model)
        if not any(view.queues):
            self._was_saturated = False
        # The work of an instance counts as done when the instance starts. This is accurate enough,
        # because far more requests end in a period of measurement than are in flight.
        if view.num_finished - self._finished >= max(_WINDOW, 32 * self._streams):
            self._change(view)
        return self._streams

    def _change(self, view: View) -> None:
        if self._was_saturated:
            speed = self._work_us / (view.now_us - self._since_us)
            if speed >= _BETTER * self._best:
                self._streams += 1
                self._best = speed
            elif speed < _WORSE * self._best:
                self._streams = max(1, self._streams * 3 // 4)
                # Lower the remembered best speed a little. If the load has changed, perhaps no
                # number of streams K can reach the old best speed any more.
                self._best *= 0.98
            elif self._hold == 0:
                self._streams = max(1, self._streams - 1)
                self._hold = _HOLD
            else:
                self._hold -= 1
                if self._hold == 0:
                    self._streams += 1
        self._finished = view.num_finished
        self._work_us = 0.0
        self._since_us = view.now_us
        self._was_saturated = True
