"""Chooses the stream that a GPU should prefer: the stream with most of the longest chain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .plan import Plan


def prefer_longest_chain(plan: Plan, op_us: Sequence[float] | None = None) -> Plan:
    """`plan`, with the stream that carries most of the longest chain marked as urgent.

    In a chain each operator waits for the one before it, or comes after it on the same stream. So a
    run takes at least as long as the longest chain. Ties between chains: the chain whose last
    operator comes first in the plan. If two chains have the same last operator, their operators
    before it are compared in the same way. Ties between streams: the lowest stream. A plan with a
    single stream stays as it is.

    Parameters
    ----------
    op_us: microseconds that each of `plan.operators` takes alone; None counts each as 1.

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
