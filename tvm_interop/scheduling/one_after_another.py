"""The baseline: one operator after the other, each on as many streams as it has parts."""

from __future__ import annotations

from itertools import groupby

from ..program.program import Program
from .schedules import Schedule, Stage


def one_after_another(program: Program, streams: int) -> Schedule:
    """A stage an operator, in the program's order; the parts of one run side by side.

    This is what a framework does that shares each operator out among its threads. No operator waits
    for more than its inputs and its stream: it is the best such execution, not a straw man.
    """
    names = tuple(op.name for op in program.operators)
    ids = range(len(names))
    wholes = groupby(ids, key=lambda i: program.operators[i].whole or program.operators[i].name)
    stages = []
    for _, parts in wholes:
        groups = [(i,) for i in parts]
        for begin in range(0, len(groups), streams):
            some = tuple(groups[begin : begin + streams])
            stages.append(Stage(groups=some, streams=tuple(range(len(some)))))
    stats = {"search_us": 0.0, "pricing_us": 0.0}  # Nothing is searched and nothing priced.
    return Schedule("sequential", names, stages=tuple(stages), stats=stats)
