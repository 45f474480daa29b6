"""Finds which operators, kernels and stages of two artifacts differ, without running anything."""

from __future__ import annotations

from dataclasses import dataclass

from ..artifact.artifact import Artifact
from ..errors import InputError
from ..machine.kernel_libraries import TVM
from ..plan.plan import Plan, PlannedOperator, PlannedValue
from ..program.part_names import whole_name
from ..scheduling import Schedule


@dataclass(frozen=True)
class Difference:
    """A difference between two artifacts.

    Attributes
    ----------
    kind: `operator` if only one artifact has the operator, else `kernel` or `stage`.
    operators: the names of the model's operators that the difference concerns.
    first, second: descriptions of how each artifact runs these operators.
    """

    kind: str
    operators: tuple[str, ...]
    first: str
    second: str


def differences(first: Artifact, second: Artifact) -> tuple[Difference, ...]:
    """Return the differences in operators, then in kernels, then in stages, each in the plans'
    order.

    Weights are not compared. TVM's kernels are compared only by name.

    Raises
    ------
    InputError
        The artifacts cannot be compared, because their inputs, outputs or devices differ or they
        have no operator in common.
    """
    a, b = first.plan, second.plan
    _check_same_model(a, b)
    ops = [_wholes(plan) for plan in (a, b)]
    names = list(dict.fromkeys([*ops[0], *ops[1]]))
    both = [name for name in names if name in ops[0] and name in ops[1]]
    if names and not both:
        raise InputError(
            "the artifacts have no operator in common: they are of different models, and only "
            "artifacts of one model can be compared"
        )
    found = [
        Difference("operator", (name,), *(_kernel(of.get(name)) for of in ops))
        for name in names
        if name not in both
    ]
    kernels = [
        Difference("kernel", (name,), *(_kernel(of[name]) for of in ops))
        for name in both
        if _kernel(ops[0][name]) != _kernel(ops[1][name])
    ]
    changed = {name for difference in kernels for name in difference.operators}
    schedules = (first.schedule, second.schedule)
    stages = [
        Difference("stage", region, *(_arrangement(s, region) for s in schedules))
        for region in _regions(*schedules, both)
        if not changed.issuperset(region)
    ]
    return (*found, *kernels, *stages)


def _check_same_model(a: Plan, b: Plan) -> None:
    if set(a.devices) != set(b.devices) and a.operators and b.operators:
        raise InputError(
            f"one artifact runs on {', '.join(a.devices)}, the other on {', '.join(b.devices)}: "
            "their times cannot be compared; compile both for one device"
        )
    for kind, of_a, of_b in (("input", a.inputs, b.inputs), ("output", a.outputs, b.outputs)):
        left = {a.values[v].name: _described(a.values[v]) for v in of_a}
        right = {b.values[v].name: _described(b.values[v]) for v in of_b}
        for name in {**left, **right}:
            if left.get(name) != right.get(name):
                raise InputError(
                    f"{kind} `{name}` is {left.get(name, 'not there')} in the first artifact and "
                    f"{right.get(name, 'not there')} in the second: only artifacts of one model, "
                    "for the same shapes, can be compared"
                )


def _described(value: PlannedValue) -> str:
    return f"{value.dtype} of shape {value.shape}"


def _wholes(plan: Plan) -> dict[str, list[PlannedOperator]]:
    found: dict[str, list[PlannedOperator]] = {}
    for op in plan.operators:
        found.setdefault(op.whole, []).append(op)
    return found


def _kernel(parts: list[PlannedOperator] | None) -> str:
    """Return a text with the name of an operator's kernel and the operator's number of parts."""
    if parts is None:
        return "not there"
    op = parts[0]
    name = op.kernel if op.description is None else op.description.op
    divided = f" in {len(parts)} parts" if len(parts) > 1 else ""
    return f"{op.library or TVM}.{name}{divided}"


def _stages(schedule: Schedule) -> list[tuple[tuple[str, ...], ...]]:
    """Return, for each stage, the names of the operators on each stream.

    If several parts of an operator are on one stream, the operator is named once. A schedule
    without stages counts as one stage.
    """
    names = [whole_name(name) for name in schedule.op_names]
    each = [list(stage.by_stream().values()) for stage in schedule.stages]
    if not schedule.is_staged:
        each = [[ops for ops in schedule.streams if ops]]
    return [
        tuple(sorted(tuple(dict.fromkeys(names[op] for op in ops)) for ops in streams))
        for streams in each
    ]


def _regions(a: Schedule, b: Schedule, both: list[str]) -> list[tuple[str, ...]]:
    """Return groups of operators that the two schedules run in different stages.

    At first, each stage that only one of the two schedules has is a group of its own. Then groups
    with operators in common are joined. Only operators that both artifacts have (`both`) are
    listed.
    """
    stages = [_stages(schedule) for schedule in (a, b)]
    differing = [
        {name for ops in stage for name in ops}
        for mine, other in (stages, stages[::-1])
        for stage in mine
        if stage not in other
    ]
    regions: list[set[str]] = []
    for region in differing:
        for other in [known for known in regions if known & region]:
            regions.remove(other)
            region = region | other
        regions.append(region)
    place = {name: i for i, name in enumerate(both)}
    kept = [tuple(name for name in both if name in region) for region in regions]
    return sorted((region for region in kept if region), key=lambda names: place[names[0]])


def _arrangement(schedule: Schedule, region: tuple[str, ...]) -> str:
    """Return how many stages and streams a schedule uses for the operators in `region`, as text."""
    wanted = set(region)
    stages = [s for s in _stages(schedule) if any(name in wanted for ops in s for name in ops)]
    if not schedule.is_staged:
        return f"{len(stages[0]) if stages else 0} streams, no stages"
    widest = max((len(stage) for stage in stages), default=0)
    stage_word = "stage" if len(stages) == 1 else "stages"
    return f"{len(stages)} {stage_word} on up to {widest} streams"
