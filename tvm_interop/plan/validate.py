"""Checks an artifact before anything in it is used, because its file may come from anywhere.

The hashes in an artifact file reveal damage, but not an attack: an attacker who writes a file also
writes its hashes. So no number in the file is trusted. The functions of this module check the
following:

- each number is within bounds, so that computations with it do not overflow;
- memory will only be allocated for data that the file holds;
- each index points at an existing entry;
- the bytes of a tensor lie within the tensor's storage;
- each byte that is read has been written.

`check.check_plan` proves that a plan's waits suffice. The machine code in the artifact's file
`kernels.so` is not checked, so a user who runs it must trust the author of the artifact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ..errors import ArtifactError
from ..program.library_op import LibraryOp, from_document
from ..program.storage import ALIGNMENT, GPU_PART_ALIGNMENT, dependencies, span
from ..scheduling.schedules import Schedule
from .limits import (
    DTYPES,
    MAX_BYTES,
    MAX_DEVICES,
    MAX_DIMENSION,
    MAX_OPERATORS,
    MAX_RANK,
    MAX_REPEATED,
    MAX_STREAMS,
    MAX_THREADS,
)
from .plan import Plan, PlannedOperator, PlannedValue
from .several_shapes import interface
from .validate_devices import check_arenas, check_devices
from .validate_libraries import check_library

_DEVICE = re.compile(r"cpu:0|cuda:(0|[1-9][0-9]{0,3})", re.ASCII)

_T = TypeVar("_T")


def decoded(name: str, data: str | bytes, kind: type[_T]) -> _T:
    """Decode the JSON text `data` into an object of type `kind`.

    Parameters
    ----------
    name: the name of the text in error messages.

    Raises
    ------
    ArtifactError
        The text is not JSON, or its fields are not those of `kind`; the message says which.
    """
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_described)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ArtifactError(
            f"`{name}` cannot be read by this version: {error}; compile the model again"
        ) from error


def _described(kind: type, given: Any) -> LibraryOp:
    """Decode the description of a library's operator in a plan."""
    if kind is not LibraryOp:
        raise NotImplementedError(kind)
    return from_document(given)


def check_weights(plans: Sequence[Plan], weights: Mapping[int, Any]) -> None:
    """Check that every weight of the plans has data of the plan's shape and type.

    Parameters
    ----------
    weights: the weights, by index into the plans' values. A weight is an array or another object
        with `shape` and `dtype`.

    Raises
    ------
    ArtifactError
        A weight has no data, or data of another shape or type; the message names the weight.
    """
    for plan in plans:
        for v, value in weights_of(plan).items():
            if v not in weights:
                raise ArtifactError(f"there is no data for weight `{value.name}`")
            shape, dtype = tuple(weights[v].shape), str(weights[v].dtype)
            if (shape, dtype) != (value.shape, value.dtype):
                raise ArtifactError(
                    f"weight `{value.name}` is {dtype}{shape}, the plan says "
                    f"{value.dtype}{value.shape}"
                )


def weights_of(plan: Plan) -> dict[int, PlannedValue]:
    """The weights whose data an artifact must hold, keyed by index, without copies of weights."""
    return {
        v: value
        for v, value in enumerate(plan.values)
        if value.storage == "weight" and value.copy_of is None
    }


def check_schedule(schedule: Schedule, plan: Plan) -> None:
    """Check that a schedule and a plan are of the same model.

    Raises
    ------
    ArtifactError
        An operator is only in the schedule or only in the plan; the message names the operator.
    """
    planned = {op.name for op in plan.operators if not op.is_copy}
    alone = planned.symmetric_difference(schedule.op_names)
    if alone:
        raise ArtifactError(
            f"operator `{min(alone)}` is in the {'plan' if min(alone) in planned else 'schedule'} "
            "alone: the two are not of one model"
        )


def check_fallback(fallback: Plan, plan: Plan) -> None:
    """Check that the plan for machines without kernel libraries needs no library, and fits `plan`.

    The plan without libraries (`fallback`) and `plan` must have the same inputs and outputs.

    Raises
    ------
    ArtifactError
        An operator of the fallback plan needs a library, or its inputs or outputs differ from those
        of `plan`. The message names the operator or says what differs.
    """
    for op in fallback.operators:
        if op.library is not None:
            raise ArtifactError(
                f"operator `{op.name}` of `fallback.json` needs kernel library `{op.library}`; a "
                "fallback needs none"
            )
    for kind, ours, others in (
        ("inputs", interface(fallback, fallback.inputs), interface(plan, plan.inputs)),
        ("outputs", interface(fallback, fallback.outputs), interface(plan, plan.outputs)),
    ):
        if ours != others:
            raise ArtifactError(f"the {kind} of `fallback.json` are not those of `plan.json`")


def check_bounds(plan: Plan) -> None:
    """Refuse a plan with numbers out of bounds, invalid indices or reads of unwritten bytes.

    Raises
    ------
    ArtifactError
        The plan is refused; the message names what is at fault, such as an operator or a value.
    """
    _check_streams(plan)
    for value in plan.values:
        _check_value(value)
    _check_total(plan)
    _check_operators(plan)
    _check_interface(plan)
    _check_aliases(plan)
    _check_writers(plan)
    check_devices(plan)
    check_arenas(plan)
    for op in plan.operators:
        check_library(plan, op)
    _check_readers(plan)


# The functions below check each stream, value and operator by itself.


def _check_streams(plan: Plan) -> None:
    if len(plan.streams) > MAX_STREAMS:
        raise ArtifactError(
            f"the plan has {len(plan.streams)} streams; at most {MAX_STREAMS} are allowed"
        )
    used = {op.stream for op in plan.operators}
    for s, stream in enumerate(plan.streams):
        device = _DEVICE.fullmatch(stream.device)
        if device is None or int(device[1] or 0) >= MAX_DEVICES:
            raise ArtifactError(
                f"stream {s} is on device `{stream.device}`; a device is `cpu:0`, or a GPU such as "
                "`cuda:0`"
            )
        if not 1 <= stream.threads <= MAX_THREADS:
            raise ArtifactError(
                f"stream {s} has {stream.threads} threads; it must have 1 to {MAX_THREADS}"
            )
        if stream.threads != plan.streams[0].threads:
            raise ArtifactError(
                f"stream {s} has {stream.threads} threads, and stream 0 {plan.streams[0].threads}; "
                "all streams must have the same number"
            )
        if s not in used:
            raise ArtifactError(f"stream {s} has no operator")


def _check_value(value: PlannedValue) -> None:
    if value.dtype not in DTYPES:
        raise ArtifactError(
            f"value `{value.name}` is of type `{value.dtype}`; known are "
            f"{', '.join(sorted(DTYPES))}"
        )
    if len(value.shape) > MAX_RANK:
        raise ArtifactError(
            f"value `{value.name}` has {len(value.shape)} dimensions; at most {MAX_RANK} are "
            "allowed"
        )
    for dim in value.shape:
        if not 0 <= dim <= MAX_DIMENSION:
            raise ArtifactError(
                f"value `{value.name}` has a dimension of {dim} in {value.shape}; a dimension is "
                f"from 0 to {MAX_DIMENSION}"
            )
    if value.layout != "plain" and value.storage == "weight":
        raise ArtifactError(
            f"weight `{value.name}` has the layout {value.layout}, but weights have the plain one"
        )
    if value.layout != "plain" and len(value.shape) != 4:
        raise ArtifactError(
            f"value `{value.name}` is {value.layout}, and has {len(value.shape)} dimensions; "
            "images have 4"
        )
    if value.offset is not None and not 0 <= value.offset <= MAX_BYTES:
        raise ArtifactError(
            f"value `{value.name}` lies at byte {value.offset}; an offset is from 0 to {MAX_BYTES}"
        )


def _check_total(plan: Plan) -> None:
    """Check that the sizes of all tensors add up to at most `MAX_BYTES`.

    If the check passes, sums of sizes and offsets cannot overflow 64 bits.
    """
    total = sum(value.nbytes for value in plan.values)
    if total > MAX_BYTES:
        raise ArtifactError(
            f"the plan's tensors have {total} bytes; at most {MAX_BYTES} are allowed"
        )


def _check_operators(plan: Plan) -> None:
    if len(plan.operators) > MAX_OPERATORS:
        raise ArtifactError(
            f"the plan has {len(plan.operators)} operators; at most {MAX_OPERATORS} are allowed"
        )
    values = range(len(plan.values))
    names: set[str] = set()
    for i, op in enumerate(plan.operators):
        if not op.name:
            raise ArtifactError(f"operator {i} has an empty name")
        if not op.kernel and op.library is None:
            raise ArtifactError(f"operator `{op.name}` does not name a kernel")
        if op.name in names:
            raise ArtifactError(f"two operators are called `{op.name}`; names must be unique")
        names.add(op.name)
        if op.stream not in range(len(plan.streams)):
            raise ArtifactError(
                f"operator `{op.name}` is planned on stream {op.stream}, but the plan has "
                f"{len(plan.streams)} streams, numbered from 0"
            )
        if len(op.inputs) > max(MAX_REPEATED, 2 * len(values)):
            raise ArtifactError(
                f"operator `{op.name}` has {len(op.inputs)} inputs; at most "
                f"{max(MAX_REPEATED, 2 * len(values))} are allowed, since the plan has "
                f"{len(values)} values"
            )
        if not all(v in values for v in (*op.inputs, *op.outputs)):
            raise ArtifactError(
                f"operator `{op.name}` reads or writes a value that the plan does not have"
            )
        if not all(w in range(i) for w in op.waits):
            raise ArtifactError(
                f"operator `{op.name}` waits for an operator that is not planned before it"
            )
        if len(set(op.waits)) < len(op.waits):
            raise ArtifactError(f"operator `{op.name}` waits twice for the same operator")
        if op.share is not None and not 0 <= op.share[0] < op.share[1] <= MAX_OPERATORS:
            raise ArtifactError(
                f"operator `{op.name}` is share {op.share[0]} of {op.share[1]}; shares are "
                f"numbered from 0, and at most {MAX_OPERATORS} are allowed"
            )


# The functions below check values together with the operators that write or read them.


def _check_interface(plan: Plan) -> None:
    """Check the inputs and outputs of the model.

    Each input must have storage `input` and a name of its own, and must not be a copy. All inputs
    and outputs must have the plain layout.
    """
    if not all(v in range(len(plan.values)) for v in (*plan.inputs, *plan.outputs)):
        raise ArtifactError("an input or output of the model is not among the plan's values")
    names: set[str] = set()
    for v in plan.inputs:
        value = plan.values[v]
        if value.storage != "input" or value.copy_of is not None:
            raise ArtifactError(
                f"input `{value.name}` of the model is planned as {value.storage}; it must be an "
                "`input`, and no copy"
            )
        if value.name in names:
            raise ArtifactError(f"two inputs of the model are called `{value.name}`")
        names.add(value.name)
    for v in (*plan.inputs, *plan.outputs):
        value = plan.values[v]
        if value.layout != "plain":
            raise ArtifactError(
                f"`{value.name}`, an input or output of the model, is {value.layout}; it must be "
                "plain"
            )
        if "\0" in value.name:  # In the C interface, a zero byte ends a name.
            raise ArtifactError(
                f"{value.name!r}, an input or output of the model, has a zero byte in its name"
            )


def _check_aliases(plan: Plan) -> None:
    on_cpu = all(device.startswith("cpu") for device in plan.devices)
    alignment = ALIGNMENT if on_cpu else GPU_PART_ALIGNMENT
    for value in plan.values:
        if value.storage != "alias":
            if value.alias_of is not None:
                raise ArtifactError(
                    f"{value.storage} `{value.name}` is an alias too; a value either has storage "
                    "or is an alias"
                )
            continue
        root = -1 if value.alias_of is None else value.alias_of
        if root not in range(len(plan.values)) or plan.values[root].storage == "alias":
            raise ArtifactError(f"value `{value.name}` is not an alias of a value that has storage")
        begin = value.offset or 0
        if begin % alignment or begin + value.nbytes > plan.values[root].nbytes:
            raise ArtifactError(
                f"value `{value.name}` of {value.nbytes} bytes at {begin} is not part of the value "
                f"that it aliases, which has {plan.values[root].nbytes} bytes"
            )
    for v in plan.outputs:
        if plan.values[plan.root_of(v)].storage == "arena":
            raise ArtifactError(
                f"output `{plan.values[v].name}` of the model is planned in the arena, where "
                "operators may write over it"
            )


def _check_writers(plan: Plan) -> None:
    """Check that every byte of each computed value is written.

    Each byte must be written by one operator, or by one part of a divided operator."""
    written: dict[int, dict[tuple[int, int], list[PlannedOperator]]] = {}
    for op in plan.operators:
        for v in op.outputs:
            root, begin, end = span(plan.values, v)
            written.setdefault(root, {}).setdefault((begin, end), []).append(op)
    for v, value in enumerate(plan.values):
        if value.storage in ("input", "weight") and v in written:
            raise ArtifactError(
                f"an operator writes {value.storage} `{value.name}`, which operators may only read"
            )
        if value.storage not in ("arena", "output"):
            continue
        if v not in written:
            raise ArtifactError(f"no operator writes value `{value.name}`")
        reached = 0
        for (begin, end), writers in sorted(written[v].items(), key=lambda item: item[0]):
            if begin < reached:
                raise ArtifactError(
                    f"operator `{writers[0].name}` writes over bytes of `{value.name}` that "
                    "another operator wrote"
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
    """Check operators that write the same bytes: together they must be all shares of one kernel."""
    if len(writers) == 1 and writers[0].share is None:
        return
    first = writers[0]
    shares = sorted(op.share or (-1, -1) for op in writers)
    same = all(
        (op.kernel, op.inputs, op.outputs, op.library, op.description)
        == (first.kernel, first.inputs, first.outputs, first.library, first.description)
        for op in writers
    )
    if first.library is not None:
        same &= first.description is not None and first.description.has_shares
    if not same or shares != [(i, len(writers)) for i in range(len(writers))]:
        raise ArtifactError(
            f"operators {', '.join(f'`{op.name}`' for op in writers)} write `{name}`, and are not "
            "the shares of one kernel"
        )


def _check_readers(plan: Plan) -> None:
    """Check the order of the operators: each comes after all operators that write its inputs."""
    for producer, consumer in dependencies(plan.values, plan.operators):
        if producer >= consumer:
            raise ArtifactError(
                f"operator `{plan.operators[consumer].name}` reads what "
                f"`{plan.operators[producer].name}` writes, and is not planned after it"
            )
