"""A baseline schedule, in which only the parts of a divided operator run side by side."""

from __future__ import annotations

from itertools import groupby

from ..program.program import Program
from .schedules import Schedule
from .stages import Stage


def one_after_another(program: Program, streams: int) -> Schedule:
    """Run the operators in the program's order, and the parts of each operator side by side.

    Each operator gets one stage, or several stages if it has more parts than there are streams.
    This is how a framework runs a model if it divides each operator among its threads. The stages
    have no barriers, so an operator waits only for its inputs and its stream. Barriers would make
    the baseline slower, so a comparison with it would not be fair.
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
    # The times in `stats` are 0, because nothing is searched and no latency model is asked.
    stats = {"search_us": 0.0, "pricing_us": 0.0}
    return Schedule("sequential", names, stages=tuple(stages), stats=stats)
