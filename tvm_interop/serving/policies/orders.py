"""Which queue is served next."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...errors import InputError, did_you_mean
from ..tasks import Request, View

Order = Callable[[View], "Request | None"]


def _fifo(view: View) -> Request | None:
    """The highest priority, then the earliest arrival."""
    best = None
    for queue in view.queues:
        if queue:
            head = queue[0]
            if best is None or (-head.priority, head.arrived_us, head.id) < (
                -best.priority, best.arrived_us, best.id,
            ):  # fmt: skip
                best = head
    return best


def _longest(view: View) -> Request | None:
    """The highest priority, then the longest queue; ties: the earliest arrival."""
    best, least = None, (math.inf, 0, math.inf)
    for queue in view.queues:
        if queue:
            key = (-queue[0].priority, -len(queue), queue[0].arrived_us)
            if best is None or key < least:
                best, least = queue[0], key
    return best


def _deadline(view: View) -> Request | None:
    """The highest priority, then the earliest deadline; ties: the earliest arrival."""
    best, least = None, (math.inf, math.inf, math.inf, 0)
    for queue in view.queues:
        if queue:
            head = queue[0]
            key = (-head.priority, head.deadline_us, head.arrived_us, head.id)
            if best is None or key < least:
                best, least = queue[0], key
    return best


ORDERS: dict[str, Order] = {"fifo": _fifo, "longest": _longest, "deadline": _deadline}
"""First come first served, longest queue first, earliest deadline first; all between the queues,
of which each keeps its own order (priority, then arrival), and among those whose first request has
the highest priority."""


def order_named(name: str) -> Order:
    """The order of this name.

    Raises
    ------
    InputError: there is none, listing those that are.
    """
    if name not in ORDERS:
        raise InputError(
            f"there is no order `{name}`{did_you_mean(str(name), list(ORDERS))}; the orders are "
            f"{', '.join(ORDERS)}"
        )
    return ORDERS[name]
