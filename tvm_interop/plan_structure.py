"""What a plan must be before anything follows it: indices that point somewhere, sizes that fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .errors import ArtifactError
from .plan_devices import check_devices
from .storage import ALIGNMENT, GPU_PART_ALIGNMENT, span

if TYPE_CHECKING:
    from .plan import Plan, PlannedOperator


def check_structure(plan: Plan) -> None:
    """Refuse a plan that points outside itself or leaves a tensor unwritten.

    Raises
    ------
    ArtifactError
        Names the operator or the value at fault.
    """
    _check_operators(plan)
    _check_aliases(plan)
    _check_writers(plan)
    check_devices(plan)
    for op in plan.operators:
        _check_description(plan, op)
    if not all(v in range(len(plan.values)) for v in (*plan.inputs, *plan.outputs)):
        raise ArtifactError("an input or output of the model is not among its values")


def _check_operators(plan: Plan) -> None:
    values = range(len(plan.values))
    for i, op in enumerate(plan.operators):
        if op.stream not in range(len(plan.streams)):
            raise ArtifactError(
                f"operator `{op.name}` is planned on stream {op.stream}, of {len(plan.streams)}"
            )
        if not all(v in values for v in (*op.inputs, *op.outputs)):
            raise ArtifactError(f"operator `{op.name}` reads or writes a value that is not there")
        if not all(w in range(i) for w in op.waits):
            raise ArtifactError(f"operator `{op.name}` waits for one that is not planned before it")
        if op.share is not None and op.share[0] not in range(op.share[1]):
            raise ArtifactError(f"operator `{op.name}` is share {op.share[0]} of {op.share[1]}")


def _check_aliases(plan: Plan) -> None:
    on_cpu = all(device.startswith("cpu") for device in plan.devices)
    alignment = ALIGNMENT if on_cpu else GPU_PART_ALIGNMENT
    for value in plan.values:
        if value.storage != "alias":
            continue
        root = -1 if value.alias_of is None else value.alias_of
        if root not in range(len(plan.values)) or plan.values[root].storage == "alias":
            raise ArtifactError(f"value `{value.name}` is an alias of none with storage")
        begin = value.offset or 0
        if begin < 0 or begin % alignment or begin + value.nbytes > plan.values[root].nbytes:
            raise ArtifactError(
                f"value `{value.name}` of {value.nbytes} bytes at {begin} is no part of what it "
                f"aliases, which has {plan.values[root].nbytes} bytes"
            )


def _check_writers(plan: Plan) -> None:
    """Every byte of what operators make is written, and by one operator only."""
    written: dict[int, dict[tuple[int, int], list[PlannedOperator]]] = {}
    for op in plan.operators:
        for v in op.outputs:
            root, begin, end = span(plan.values, v)
            written.setdefault(root, {}).setdefault((begin, end), []).append(op)
    for v, value in enumerate(plan.values):
        if value.storage in ("input", "weight") and v in written:
            raise ArtifactError(f"an operator writes {value.storage} `{value.name}`")
        if value.storage not in ("arena", "output"):
            continue
        reached = 0
        for (begin, end), writers in sorted(written.get(v, {}).items()):
            if begin < reached:
                raise ArtifactError(
                    f"operator `{writers[0].name}` writes over what another wrote to `{value.name}`"
                )
            if begin > reached:
                break
            _check_shares(value.name, writers)
            reached = end
        if reached != value.nbytes:
            raise ArtifactError(
                f"no operator writes value `{value.name}` from byte {reached} of {value.nbytes} on"
            )


def _check_shares(name: str, writers: list[PlannedOperator]) -> None:
    """Several write the same bytes only as shares of one kernel, and all of them must be there."""
    if len(writers) == 1 and writers[0].share is None:
        return
    first = writers[0]
    shares = sorted(op.share or (-1, -1) for op in writers)
    same = all(
        (op.kernel, op.inputs, op.outputs, op.library)
        == (first.kernel, first.inputs, first.outputs, None)
        for op in writers
    )
    if not same or shares != [(i, len(writers)) for i in range(len(writers))]:
        raise ArtifactError(
            f"operators {', '.join(f'`{op.name}`' for op in writers)} write `{name}`, and are not "
            "the shares of one kernel"
        )


def _check_description(plan: Plan, op: PlannedOperator) -> None:
    """Refuse a library's operator that would read or write beyond its tensors."""
    values = [plan.values[v] for v in (*op.inputs, *op.outputs)]
    if op.library is None:
        blocked = [v for v in values if v.layout != "plain" and v.stored_shape != v.shape]
        if blocked:
            raise ArtifactError(
                f"operator `{op.name}` is TVM's, but its `{blocked[0].name}` is {blocked[0].layout}"
            )
        return
    if op.description is None:
        raise ArtifactError(f"operator `{op.name}` is `{op.library}`'s, but not described")
    sizes = [math.prod(value.shape) for value in values]
    if sizes != [math.prod(shape) for shape in op.description.shapes]:
        raise ArtifactError(
            f"operator `{op.name}` is described with shapes {op.description.shapes}, but its "
            f"tensors are {tuple(value.shape for value in values)}"
        )
    if any(value.dtype != op.description.dtype for value in values):
        raise ArtifactError(f"operator `{op.name}` has a tensor that is not {op.description.dtype}")
    for value, layout in zip(values, op.description.layouts, strict=True):
        if value.layout != layout:
            raise ArtifactError(
                f"operator `{op.name}` takes `{value.name}` as {layout}, but it is {value.layout}"
            )
