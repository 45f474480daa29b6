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
    """The longest queue; ties: the earliest arrival."""
    best, best_length = None, 0
    for queue in view.queues:
        if not queue:
            continue
        head = queue[0]
        if len(queue) > best_length or (
            best is not None and len(queue) == best_length and head.arrived_us < best.arrived_us
        ):
            best, best_length = head, len(queue)
    return best


def _deadline(view: View) -> Request | None:
    """The earliest deadline among the first of each queue; ties: the earliest arrival."""
    best, least = None, (math.inf, math.inf, 0)
    for queue in view.queues:
        if queue:
            key = (queue[0].deadline_us, queue[0].arrived_us, queue[0].id)
            if best is None or key < least:
                best, least = queue[0], key
    return best


ORDERS: dict[str, Order] = {"fifo": _fifo, "longest": _longest, "deadline": _deadline}
"""First come first served, longest queue first, earliest deadline first; all between the queues,
of which each keeps its own order (priority, then arrival)."""


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
