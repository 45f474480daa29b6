"""Checks the devices of a plan's operators and tensors, and the copies between devices."""

from __future__ import annotations

from ..errors import ArtifactError
from ..program.storage import ALIGNMENT
from .plan import Plan, PlannedOperator


def check_devices(plan: Plan) -> None:
    """Check that operators run on the device of their tensors. Only copies may use two devices.

    Raises
    ------
    ArtifactError
        An operator or a value is on a wrong device, a value differs from its copy, or the plan uses
        a CPU and another device; the message says which.
    """
    devices = plan.devices
    cpus = [device for device in devices if device.startswith("cpu")]
    if cpus and len(devices) > 1:
        raise ArtifactError(
            f"the plan runs on {', '.join(devices)}; `{cpus[0]}` cannot be combined with other "
            "devices"
        )
    for v in range(len(plan.values) if devices else 0):  # A plan without operators has no device.
        _check_place(plan, v)
        _check_twin(plan, v)
    for op in plan.operators:
        here = plan.streams[op.stream].device
        if op.is_copy:
            _check_copy(plan, op, here)
            continue
        for v in (*op.inputs, *op.outputs):
            if plan.device_of(v) != here:
                raise ArtifactError(
                    f"operator `{op.name}` runs on {here}, but its `{plan.values[v].name}` lies on "
                    f"{plan.device_of(v)}; copy it"
                )


def _check_place(plan: Plan, v: int) -> None:
    """Check that a value is on a device of the plan, and a view on the device of its storage."""
    name, here, root_is = plan.values[v].name, plan.device_of(v), plan.device_of(plan.root_of(v))
    if here not in plan.devices:
        raise ArtifactError(f"value `{name}` lies on {here}, where the plan has no stream")
    if here != root_is:
        raise ArtifactError(
            f"value `{name}` lies on {here}, but the value that it is an alias of lies on {root_is}"
        )


def _check_twin(plan: Plan, v: int) -> None:
    """Check a value that is marked as a copy of a value on another device.

    The value and the original must have the same shape, type and layout. The host writes the copies
    of inputs and weights. So if the copy is an input, the original must be an input too, and must
    not itself be a copy. The same holds for weights.
    """
    value = plan.values[v]
    if value.copy_of is None:
        return
    if value.copy_of not in range(len(plan.values)):
        raise ArtifactError(
            f"value `{value.name}` is a copy of a value that the plan does not have"
        )
    original = plan.values[value.copy_of]
    if (value.shape, value.dtype, value.layout) != (
        original.shape,
        original.dtype,
        original.layout,
    ):
        raise ArtifactError(
            f"value `{value.name}` is not a copy of `{original.name}`: their shapes, types or "
            "layouts differ"
        )
    if plan.device_of(v) == plan.device_of(value.copy_of):
        raise ArtifactError(
            f"value `{value.name}` is a copy of `{original.name}`, and both lie on "
            f"{plan.device_of(v)}"
        )
    by_host = ("input", "weight")
    if value.storage in by_host and (value.storage, original.copy_of) != (original.storage, None):
        raise ArtifactError(
            f"{value.storage} `{value.name}` is a copy of `{original.name}`, which the host does "
            "not write"
        )


def _check_copy(plan: Plan, op: PlannedOperator, here: str) -> None:
    """Check a copy operator: it runs on the device of its input, and copies to another device.

    The input and the output of a copy must be marked in the plan as the same value on two devices.
    """
    if (len(op.inputs), len(op.outputs)) != (1, 1):
        raise ArtifactError(f"copy `{op.name}` must have one input and one output")
    (source,), (target,) = op.inputs, op.outputs
    names = f"`{plan.values[source].name}` to `{plan.values[target].name}`"
    if plan.values[target].copy_of != source and plan.values[source].copy_of != target:
        raise ArtifactError(
            f"copy `{op.name}` copies {names}, but the plan marks neither as a copy of the other"
        )
    if plan.device_of(source) != here or plan.device_of(target) == here:
        raise ArtifactError(
            f"copy `{op.name}` of {names} must lead from its stream's device, {here}, to another"
        )


def check_arenas(plan: Plan) -> None:
    """Check that each arena is at most as large as all values in it together.

    `check.check_plan` proves that an arena is large enough.

    Raises
    ------
    ArtifactError
        An arena is too large, the devices or sizes of the arenas do not fit the plan, or a value
        has no offset; the message says what is wrong.
    """
    several = len(plan.devices) > 1
    if bool(plan.arenas) != several or not plan.arenas.keys() <= set(plan.devices):
        raise ArtifactError(
            f"the plan runs on {', '.join(plan.devices) or 'no device'}, and has arenas on "
            f"{', '.join(plan.arenas) or 'none by name'}"
        )
    if several and sum(plan.arenas.values()) != plan.arena_bytes:
        raise ArtifactError(
            f"the devices' arenas have {sum(plan.arenas.values())} bytes, but the plan says "
            f"{plan.arena_bytes}"
        )
    most = dict.fromkeys(plan.devices, 0)
    for v, value in enumerate(plan.values):
        if value.storage == "arena":
            if value.offset is None:
                raise ArtifactError(f"value `{value.name}` has no offset in the arena")
            most[plan.device_of(v)] += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
    for device in plan.devices or ("",):
        if not 0 <= plan.arena_of(device) <= most.get(device, 0):
            raise ArtifactError(
                f"the arena has {plan.arena_of(device)} bytes; it must have 0 to "
                f"{most.get(device, 0)} bytes, which all values in it have together"
            )
