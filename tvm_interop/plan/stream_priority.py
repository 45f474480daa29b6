"""Chooses the stream that a GPU should prefer.

In a chain of operators, each operator waits for the operator before it. A run of the model takes at
least as long as the longest chain, so nothing should delay the operators of this chain. The chosen
stream is the one that runs most of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .plan import Plan


def prefer_longest_chain(plan: Plan, op_us: Sequence[float] | None = None) -> Plan:
    """Return a copy of `plan` in which the stream that runs most of the longest chain is urgent.

    In a chain each operator waits for the operator before it, or comes after it on the same stream.
    The length of a chain is the sum of its operators' latencies. Among equally long chains, the
    chain whose last operator comes first in the plan is taken. If two such chains end in the same
    operator, the operators before it are compared in the same way. If several streams run as much
    of the chain, the stream with the lowest index is taken. A plan with a single stream is returned
    unchanged.

    Parameters
    ----------
    op_us: latency of each of `plan.operators` in microseconds; by default 1 for each operator.

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
    """The longest chain of operators in which each operator waits for the previous one.

    The list begins with the last operator of the chain.
    """
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
