"""Data types that policies exchange with the simulator and the server.

A `Request` is one inference that a client waits for. An instance is one execution that serves one
or more requests. A policy gets a `View` and answers with a `Start`, an `Admit` or a `Wait`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

WHOLE = -1
"""The block number that stands for the whole model."""


@dataclass(slots=True, eq=False)
class Request:
    """One inference of one model that a client waits for.

    All times of a request are in microseconds.

    Attributes
    ----------
    id: number of the request, from 0 in order of arrival.
    model: index of the model.
    arrived_us: time when the request entered its queue.
    priority: priority of the request; higher priorities come first in the queue.
    deadline_us: latest time by which the request should be served; inf for no deadline.
    batch: number of inputs in the request.
    ready_us: time at which the request began to wait, in its queue or for its next block.
    dequeued_us: time when the request left its queue; nan before.
    finished_us: time when the request was served; nan before.
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
    """The decision of a policy to start an instance now.

    Without `parts`, one whole model serves all requests as one batch. With `parts`, the instance
    runs a joint graph of several parts, each a whole model or a block of it. A part without a
    request is absent, and its operators do not run.

    Attributes
    ----------
    requests: requests that the instance serves. With `parts`, one entry per part; None for an
        absent part.
    schedule: name of the scheduler that orders the operators, one of `tvm_interop.schedulers()`.
    parts: (model, block) of each part; block `WHOLE` for the whole model.
    barriers: whether the host waits between the stages of a staged schedule, as the engines of IOS
        and TOP do. Without barriers, an operator waits only for the tensors that it reads.
    slot: number of the slot in which the instance runs, from 0. A server has one set of buffers and
        streams per slot.
    alone: whether the policy promises that no other instance runs at the same time.
    """

    requests: tuple[Request | None, ...]
    schedule: str = "sequential"
    parts: tuple[tuple[int, int], ...] | None = None
    barriers: bool = False
    slot: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Admit:
    """The decision to move a request from its queue to its model's first block, where it waits."""

    request: Request


@dataclass(frozen=True, slots=True)
class Wait:
    """The decision of a policy to start nothing now.

    Attributes
    ----------
    until_us: time in microseconds at which the policy is asked again at the latest.
    full: whether nothing can start until an instance ends, even if requests arrive. If True, the
        simulator or server need not call the policy at arrivals. If it does call the policy, the
        policy must give the same answer.
    """

    until_us: float = math.inf
    full: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A running instance.

    Attributes
    ----------
    start: the decision that started the instance.
    started_us: time when the instance started, in microseconds.
    """

    start: Start
    started_us: float


@dataclass(slots=True)
class View:
    """The state that a policy sees when it decides.

    Attributes
    ----------
    now_us: current time in microseconds.
    queues: waiting requests of each model, by priority (highest first), then by arrival.
    between: for each model and block, the admitted requests that wait for that block.
    running: running instances, keyed by instance number.
    num_finished: number of requests served so far.
    """

    now_us: float
    queues: Sequence[deque[Request]]
    between: Sequence[Sequence[deque[Request]]]
    running: dict[int, Running] = field(default_factory=dict)
    num_finished: int = 0
