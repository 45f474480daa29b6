"""Finds out whether sets of operators are faster side by side, and how an artifact runs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ..artifact.artifact import Artifact
from ..errors import GraphError
from ..plan.plan import Plan
from ..program.graph import OpGraph
from .verdict import Finding, Verdict, judge
from .wholes import Wholes

_CHECKED = (Verdict.PROFITABLE, Verdict.WAITS, Verdict.MEMORY)
"""The verdicts for which the difference between two measured latencies is decisive."""


def find_all(wholes: Wholes, artifact: Artifact | None = None) -> tuple[Finding, ...]:
    """Return the finding on each set of operators with the same depth (see `Wholes.levels`)."""
    return _judged(wholes, wholes.levels(), artifact)


def find_pair(
    wholes: Wholes, names: Sequence[str], artifact: Artifact | None = None
) -> tuple[Finding, ...]:
    """Return the finding on two operators: whether they are faster side by side.

    Raises
    ------
    GraphError: there is no operator of that name, or both names are the same.
    """
    a, b = (wholes.id_of(name) for name in names)
    if a == b:
        raise GraphError(f"`{names[0]}` is named twice: give two different operators")
    for first, second in ((a, b), (b, a)):
        path = _path(wholes.graph, first, second)
        if path:
            chain = [f"`{wholes.graph.names[op]}`" for op in path]
            if len(chain) > 6:
                chain = [*chain[:3], "...", *chain[-2:]]
            reason = f"one operator depends on the other: {' -> '.join(chain)}"
            return (Finding(tuple(names), Verdict.DEPENDENT, reason),)
    return _judged(wholes, [[a, b]], artifact)


def shipped_as(plan: Plan, names: Sequence[str]) -> str:
    """Return how a plan runs some operators: `side by side` or `in turn`.

    Operators run side by side if two of them have no stream in common, and neither of the two must
    end before the other begins.
    """
    edges = [(wait, op) for op, planned in enumerate(plan.operators) for wait in planned.waits]
    for order in plan.stream_orders():
        edges += pairwise(order)
    ordered = OpGraph.from_edges([op.name for op in plan.operators], edges)
    parts: dict[str, list[int]] = {name: [] for name in names}
    for i, op in enumerate(plan.operators):
        if op.whole in parts:
            parts[op.whole].append(i)
    groups = list(parts.values())
    streams = [{plan.operators[op].stream for op in ops} for ops in groups]
    for i, ops in enumerate(groups):
        for j in range(i):
            apart = streams[i].isdisjoint(streams[j])
            pairs = [(u, v) for u in ops for v in groups[j]]
            if apart and not any(ordered.reaches(u, v) or ordered.reaches(v, u) for u, v in pairs):
                return "side by side"
    return "in turn"


def _judged(
    wholes: Wholes, sets: Sequence[Sequence[int]], artifact: Artifact | None
) -> tuple[Finding, ...]:
    first = wholes.side_by_side(sets)
    # If many sets are measured, noise makes some of them look faster or slower than they are. So
    # all sets whose verdict depends on the difference between two measurements are measured again.
    wholes.measure_again([s for s, n in zip(sets, first, strict=True) if judge(n)[0] in _CHECKED])
    found = []
    for numbers in wholes.side_by_side(sets):
        verdict, reason = judge(numbers)
        names = tuple(member.name for member in numbers.members)
        finding = Finding(names, verdict, reason, numbers)
        found.append(finding if artifact is None else _as_shipped(finding, artifact))
    return tuple(found)


def _as_shipped(finding: Finding, artifact: Artifact) -> Finding:
    shipped = shipped_as(artifact.plan, finding.operators)
    checked = artifact.manifest.speed_check
    if (
        finding.verdict is Verdict.PROFITABLE
        and shipped == "in turn"
        and checked is not None
        and checked.shipped == "sequential"
    ):
        reason = (
            f"{finding.reason} here; when the model was compiled, the whole schedule took "
            f"{checked.ratio:.3f} of the time of sequential execution, and the artifact runs a "
            "schedule only if this ratio is surely below 0.99"
        )
        return replace(finding, verdict=Verdict.SEQUENTIAL, reason=reason, shipped=shipped)
    return replace(finding, shipped=shipped)


def _path(graph: OpGraph, source: int, target: int) -> list[int]:
    """Return the operators on the shortest path from `source` to `target`; [] if there is none."""
    if not graph.reaches(source, target):
        return []
    before: dict[int, int] = {}
    waiting = deque([source])
    while target not in before:
        op = waiting.popleft()
        for following in graph.successors(op):
            if following not in before:
                before[following] = op
                waiting.append(following)
    path = [target]
    while path[-1] != source:
        path.append(before[path[-1]])
    return path[::-1]
