"""Orders between queues: functions that choose the queue to serve next."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...errors import InputError, did_you_mean
from ..tasks import Request, View

Order = Callable[[View], "Request | None"]


def _fifo(view: View) -> Request | None:
    """Return the next request by priority (highest first), then by arrival (earliest first)."""
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
    """Return the next request by priority, then by length of the queue (longest first).

    Among queues of equal length, the queue whose first request arrived earliest comes first.
    """
    best, least = None, (math.inf, 0, math.inf)
    for queue in view.queues:
        if queue:
            key = (-queue[0].priority, -len(queue), queue[0].arrived_us)
            if best is None or key < least:
                best, least = queue[0], key
    return best


def _deadline(view: View) -> Request | None:
    """Return the next request by priority, then by deadline (earliest first), then by arrival."""
    best, least = None, (math.inf, math.inf, math.inf, 0)
    for queue in view.queues:
        if queue:
            head = queue[0]
            key = (-head.priority, head.deadline_us, head.arrived_us, head.id)
            if best is None or key < least:
                best, least = queue[0], key
    return best


ORDERS: dict[str, Order] = {"fifo": _fifo, "longest": _longest, "deadline": _deadline}
"""The orders by name: first come first served, longest queue first, earliest deadline first.

An order compares the first requests of the queues, and requests of a higher priority always come
first. Within a queue, requests are sorted by priority, then by arrival.
"""


def order_named(name: str) -> Order:
    """Return the function for the order called `name`.

    Raises
    ------
    InputError: there is no order called `name`; the message lists all orders.
    """
    if name not in ORDERS:
        raise InputError(
            f"there is no order `{name}`{did_you_mean(str(name), list(ORDERS))}; the orders are "
            f"{', '.join(ORDERS)}"
        )
    return ORDERS[name]
