"""Which stream a GPU should prefer: the one that the length of a run hangs on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .plan import Plan


def prefer_longest_chain(plan: Plan, op_us: Sequence[float] | None = None) -> Plan:
    """`plan` with that stream urgent that carries most of the longest chain.

    A chain follows waits and the order on each stream: none of its operators starts before the one
    ahead has ended, so no run is shorter than the longest. Of several as long, the one that ends
    with the earliest operator, and so backwards; of several streams that carry as much of it, the
    lowest. A plan with a single stream stays as it is.

    Parameters
    ----------
    op_us: microseconds that each of `plan.operators` takes alone; None lets all count alike.

    Complexity: O(operators + waits).
    """
    if len(plan.streams) < 2 or not plan.operators:
        return plan
    lengths = [1.0] * len(plan.operators) if op_us is None else op_us
    carried = [0.0] * len(plan.streams)
    for i in _longest_chain(plan, lengths):
        carried[plan.operators[i].stream] += lengths[i]
    urgent = carried.index(max(carried))
    streams = tuple(
        msgspec.structs.replace(stream, urgent=s == urgent) for s, stream in enumerate(plan.streams)
    )
    return msgspec.structs.replace(plan, streams=streams)


def _longest_chain(plan: Plan, lengths: Sequence[float]) -> list[int]:
    """The operators of the longest chain, last one first."""
    ends: list[float] = []
    ahead_of: list[int | None] = []
    last_on: dict[int, int] = {}
    for i, op in enumerate(plan.operators):
        before = sorted({*op.waits, *([last_on[op.stream]] if op.stream in last_on else [])})
        ahead = max(before, key=ends.__getitem__, default=None)
        ends.append(lengths[i] + (0.0 if ahead is None else ends[ahead]))
        ahead_of.append(ahead)
        last_on[op.stream] = i
    chain: list[int] = []
    at: int | None = ends.index(max(ends))
    while at is not None:
        chain.append(at)
        at = ahead_of[at]
    return chain
