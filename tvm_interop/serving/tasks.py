"""The words in which policies, the simulator and a server talk: requests, instances, decisions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

WHOLE = -1
"""The block of a `Start` that runs a model whole."""


@dataclass(slots=True, eq=False)
class Request:
    """One task: a run of one model that somebody waits for.

    Attributes
    ----------
    id: numbered from 0 in order of arrival.
    model: index of its model.
    arrived_us: when it came into its queue.
    priority: higher ones stand before lower ones in their queue.
    deadline_us: when it should be served at the latest; inf for no deadline.
    batch: how many inputs it brings.
    ready_us: since when it waits where it is: in its queue, or for its next block.
    dequeued_us, finished_us: when it left its queue and was served; nan before.
    """

    id: int
    model: int
    arrived_us: float
    priority: int = 0
    deadline_us: float = math.inf
    batch: int = 1
    ready_us: float = 0.0
    dequeued_us: float = math.nan
    finished_us: float = math.nan


@dataclass(frozen=True, slots=True)
class Start:
    """Start an instance now.

    Without `parts`, one model runs whole for all of the requests, as one batch. With `parts`, the
    instance is a joint graph of several parts, of which some may be absent; the operators of absent
    parts are left out of its schedule.

    Attributes
    ----------
    requests: which it serves. With `parts`: one for each, None where the part is absent.
    schedule: the scheduler by whose schedule its operators run, one of
        `tvm_interop.schedulers()`.
    parts: (model, block) of each part; block `WHOLE` for the whole model.
    barriers: whether the host waits between the stages of a staged schedule, as the engines of IOS
        and TOP do. Without, an operator waits for what it reads only.
    slot: where it runs, a number from 0; a server has a set of buffers and streams for each.
    alone: the policy promises that nothing else runs beside it.
    """

    requests: tuple[Request | None, ...]
    schedule: str = "sequential"
    parts: tuple[tuple[int, int], ...] | None = None
    barriers: bool = False
    slot: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Admit:
    """Take a request from its queue; it then waits for the first block of its model."""

    request: Request


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to start now.

    Attributes
    ----------
    until_us: when to be asked again, even if nothing happens until then.
    full: nothing can start until an instance ends, whatever arrives. A hint: who is asked at
        arrivals too gives the same answer.
    """

    until_us: float = math.inf
    full: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """An instance that runs.

    Attributes
    ----------
    start: what was asked for.
    started_us: when.
    """

    start: Start
    started_us: float


@dataclass(slots=True)
class View:
    """What a policy is shown.

    Attributes
    ----------
    now_us: the time.
    queues: of each model its waiting requests, higher priority first, then in order of arrival.
    between: of each model and block, the admitted requests that wait for that block.
    running: the instances that run, by their numbers.
    num_finished: how many requests were served so far.
    """

    now_us: float
    queues: Sequence[deque[Request]]
    between: Sequence[Sequence[deque[Request]]]
    running: dict[int, Running] = field(default_factory=dict)
    num_finished: int = 0
