"""Makes a schedule of the merged model from a schedule with merged stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from ..errors import ScheduleError
from ..lowering.merge_convs import merged_name
from ..program.graph import OpGraph
from ..program.part_names import whole_name
from ..program.program import Program
from ..scheduling import Schedule, Stage
from ..scheduling.whole_operators import WholeOperators


def realize_merges(schedule: Schedule, program: Program, streams: int) -> Schedule:
    """Make a schedule of the merged model from a schedule with merged stages.

    If operators are divided into parts, the merged operators are divided too. Each merged operator
    then has its own stage, in which its parts run side by side on all streams. The operators that
    split the merged operator's output follow in the next stages.

    Parameters
    ----------
    program: the merged model. Operators that are not merged keep their names.
    streams: the number of streams for the parts of merged operators.

    Raises
    ------
    ScheduleError: an operator of the merged model has no place in the schedule, or the parts of one
        operator are in several stages.
    """
    parts = program.parts()
    if parts is None and all(whole_name(name) == name for name in schedule.op_names):
        return _realized(schedule, program.graph())
    graph = program.graph()
    parts = parts or [[op] for op in range(graph.num_ops)]
    names = [program.operators[ops[0]].whole or graph.names[ops[0]] for ops in parts]
    edges = WholeOperators(graph, parts).graph.edges
    made = _realized(_of_wholes(schedule), OpGraph.from_edges(names, edges))
    stream_of = {
        schedule.op_names[op]: stream
        for stage in schedule.stages
        if stage.kind != "merge"
        for stream, ops in stage.by_stream().items()
        for op in ops
    }
    stages = []
    for stage in made.stages:
        # Groups are independent. So the first operators of all groups can run side by side, then
        # the second operators, and so on.
        for number, row in enumerate(zip_longest(*stage.groups)):
            ops = [(op, i) for whole in row if whole is not None
                   for i, op in enumerate(parts[whole])]  # fmt: skip
            stages.append(
                Stage(
                    tuple((op,) for op, _ in ops),
                    tuple(stream_of.get(graph.names[op], i % streams) for op, i in ops),
                    barrier=stage.barrier and number == 0,
                )
            )
    return _with_stages(schedule, graph.names, stages)


def _with_stages(
    schedule: Schedule, op_names: tuple[str, ...], stages: Iterable[Stage]
) -> Schedule:
    """A copy of `schedule` with the merged model's operators `op_names` and with `stages`."""
    return Schedule(
        schedule.scheduler,
        op_names,
        stages=tuple(stages),
        makespan=schedule.makespan,
        stats=schedule.stats,
    )


def _of_wholes(schedule: Schedule) -> Schedule:
    """Return `schedule` with each divided operator as one operator, and all operators on stream 0.

    The undivided operator gets the place of its first part.

    Raises
    ------
    ScheduleError: the parts of an operator are in several stages.
    """
    names = tuple(dict.fromkeys(map(whole_name, schedule.op_names)))
    ids = {name: i for i, name in enumerate(names)}
    stage_of: dict[int, int] = {}
    stages = []
    for number, stage in enumerate(schedule.stages):
        groups = []
        for group in stage.groups:
            wholes = dict.fromkeys(ids[whole_name(schedule.op_names[op])] for op in group)
            for whole in wholes:
                if stage_of.get(whole, number) != number:
                    raise ScheduleError(
                        f"the parts of `{names[whole]}` are in several stages, but a schedule that "
                        "merges operators must have all parts of an operator in one stage"
                    )
            groups.append(tuple(whole for whole in wholes if whole not in stage_of))
            stage_of.update(dict.fromkeys(wholes, number))
        kept = tuple(group for group in groups if group)
        stages.append(Stage(kept, (0,) * len(kept), stage.kind, stage.barrier))
    return Schedule(schedule.scheduler, names, stages=tuple(stages))


def _realized(schedule: Schedule, graph: OpGraph) -> Schedule:
    """The schedule of the merged model, if no operator is divided.

    A merged stage becomes a stage with one group on the stage's first stream. The group has the
    merged operator, and then the operators that split its output. Merging can make operators
    superfluous, such as a concat of the split output. Superfluous operators are left out of all
    stages. A merged operator may also be fused with the operator that read the concat. The fused
    operator may read tensors that a later stage computes. Then it gets a stage of its own after
    that later stage.

    Parameters
    ----------
    graph: the graph of the merged model. Operators that are not merged keep their names.

    Raises
    ------
    ScheduleError: an operator of the merged model has no place in the schedule.
    """
    names = schedule.op_names
    ids = {name: i for i, name in enumerate(graph.names)}
    places: dict[int, _Place] = {}
    for i, stage in enumerate(schedule.stages):
        groups = [[ids[names[op]] for op in group if names[op] in ids] for group in stage.groups]
        if stage.kind == "merge":
            merged = merged_name([names[op] for op in stage.ops])
            groups = [[ids[merged], *(op for group in groups for op in group)]]
        places |= {op: _Place(i, False, g) for g, group in enumerate(groups) for op in group}
    settled: dict[_Place, list[int]] = {}
    for op, place in _settled(places, schedule.stages, graph).items():
        settled.setdefault(place, []).append(op)
    stages = []
    for i, stage in enumerate(schedule.stages):
        for is_late in (False, True):
            here = sorted(place for place in settled if place[:2] == (i, is_late))
            if here:
                kept = tuple(tuple(settled[place]) for place in here)
                streams = tuple(stage.streams[place.group] for place in here)
                stages.append(Stage(kept, streams, barrier=stage.barrier, device=stage.device))
    return _with_stages(schedule, graph.names, stages)


class _Place(NamedTuple):
    """The place of an operator in a schedule. Places are ordered as their operators run.

    Attributes
    ----------
    stage: the number of the stage in the schedule with merged stages.
    is_late: whether the operator is in an additional stage, directly after the stage number
        `stage`.
    group: the number of the group.
    """

    stage: int
    is_late: bool
    group: int


def _settled(
    places: Mapping[int, _Place], stages: Sequence[Stage], graph: OpGraph
) -> dict[int, _Place]:
    """The place of each operator of the merged model, in topological order.

    Parameters
    ----------
    places: the places of operators that are known from the stages. Any other operator joins the
        group of its last predecessor.
    """
    settled: dict[int, _Place] = {}
    for op in graph.topological_order():
        before = [settled[source] for source in graph.predecessors(op)]
        if op not in places and not before:
            raise ScheduleError(f"operator `{graph.names[op]}` is in no stage after merging")
        place = places[op] if op in places else max(before)
        # Compare only stages of one GPU, which run one after the other. The stages of two GPUs have
        # no fixed order.
        device = stages[place.stage].device
        known = [source for source in before if stages[source.stage].device == device]
        last = max(known, default=place)
        if last[:2] > place[:2]:
            place = _Place(last.stage, True, 0)
        settled[op] = place
    return settled
