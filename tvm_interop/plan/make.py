"""Makes a plan of a schedule: streams, the fewest waits, and a memory layout."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..errors import ScheduleError
from ..program.graph import OpGraph
from ..program.planning import launch_order, memory_plan, sync_plan
from ..program.program import Program
from ..program.storage import ALIGNMENT
from ..scheduling.schedules import Schedule
from .check import check_plan
from .device_placement import Placement, place_on_devices
from .limits import MAX_DEVICES
from .plan import Plan, PlannedOperator, PlannedValue, Stream


def make_plan(
    program: Program,
    schedule: Schedule,
    threads: int = 1,
    parallel_kernels: bool = False,
    device: str = "cpu:0",
) -> Plan:
    """Turn a schedule into a plan: streams, the fewest waits, and a memory layout.

    With several GPUs, `place_on_devices` says which GPU each tensor lies on, and each GPU has its
    own arena. If tensors are copied from one GPU to another GPU, the plan has one more stream,
    which runs only these copies. So an operator waits for a copy only if it reads the copy. One
    stream per pair of GPUs is enough, because copies from one GPU to another use the same link one
    after the other. The stream is on the sending GPU, because a GPU can write to another GPU's
    memory without waiting for an answer. A read would need an answer.

    Parameters
    ----------
    program: the model.
    schedule: a schedule of `program`'s operators. The function validates it.
    threads: the number of threads that the kernels of each stream may use.
    parallel_kernels: whether any kernel divides its loops over a team of threads.
    device: the device of all streams, `cpu:0` or a GPU such as `cuda:0`. If the schedule names
        several GPUs, its streams are on those GPUs instead.

    Raises
    ------
    ScheduleError
        The schedule does not fit the program, or names several CPUs or too many GPUs.
    """
    graph = program.graph()
    schedule.validate(graph)
    # Compare names, because the schedule and the graph may number the operators differently.
    ids = schedule.ids_in(graph)
    stream_orders = [[ids[op] for op in ops] for ops in schedule.streams if ops]
    devices = _stream_devices(schedule, device)
    ordering = [(ids[before], ids[after]) for before, after in schedule.ordering_edges()]
    waits = sync_plan(graph, stream_orders, ordering)
    order = _launch_order(graph, schedule, stream_orders, waits)
    placement = None
    if len(set(devices)) > 1:
        placement = _spread(program, order, stream_orders, devices)
        program, order = placement.program, list(placement.order)
        for (source, _), copies in placement.links.items():
            stream_orders.append(list(copies))
            devices.append(source)
        waits = sync_plan(program.graph(), stream_orders, ordering)
    position = {op: i for i, op in enumerate(order)}
    stream_of = {op: s for s, ops in enumerate(stream_orders) for op in ops}
    operators = tuple(
        PlannedOperator(
            name=program.operators[op].name,
            kernel=program.operators[op].kernel,
            inputs=program.operators[op].inputs,
            outputs=program.operators[op].outputs,
            stream=stream_of[op],
            waits=tuple(sorted(position[w] for w in waits[op])),
            library=program.operators[op].library,
            description=(
                program.operators[op].description if program.operators[op].library else None
            ),
            share=program.operators[op].share,
        )
        for op in order
    )
    unplaced = Plan(
        streams=tuple(Stream(name, threads) for name in devices),
        values=_values_by_kind(program, placement),
        operators=operators,
        inputs=program.inputs,
        outputs=program.outputs,
        arena_bytes=0,
        parallel_kernels=parallel_kernels,
    )
    plan = _place(unplaced)
    check_plan(plan)
    return plan


def _launch_order(
    graph: OpGraph, schedule: Schedule, stream_orders: list[list[int]], waits: list[tuple[int, ...]]
) -> list[int]:
    """The graph's operators in the order in which the host launches them."""
    ids = schedule.ids_in(graph)
    if schedule.launch_order is not None:
        return [ids[op] for op in schedule.launch_order]
    if schedule.is_staged and schedule.devices:
        # Copies from one GPU to another run in the order in which they are launched. So order the
        # stages by `launch_order_of_stages`, which makes urgent copies come first.
        stages = schedule.launch_order_of_stages(graph)
        return [ids[op] for s in stages for op in schedule.stages[s].ops]
    return launch_order(stream_orders, waits)


def _stream_devices(schedule: Schedule, device: str) -> list[str]:
    """The device of each stream that has operators; this is `device` if the schedule names none."""
    if not schedule.devices:
        return [device for ops in schedule.streams if ops]
    kind = device.partition(":")[0]
    busy = [(n, ops[0]) for n, ops in zip(schedule.devices, schedule.streams, strict=True) if ops]
    for number, op in busy:
        if kind == "cpu" and number > 0:
            raise ScheduleError(
                f"the schedule has `{schedule.op_names[op]}` on device {number}, but the CPU is "
                "one device, 0; compile for `cuda`, or leave `devices` out of the schedule"
            )
        if number >= MAX_DEVICES:
            raise ScheduleError(
                f"the schedule has `{schedule.op_names[op]}` on device {number}; there can be "
                f"{MAX_DEVICES} devices, numbered from 0"
            )
    return [f"{kind}:{number}" for number, _ in busy]


def _spread(
    program: Program, order: list[int], stream_orders: list[list[int]], devices: list[str]
) -> Placement:
    device_of = {op: devices[s] for s, ops in enumerate(stream_orders) for op in ops}
    return place_on_devices(program, order, [device_of[op] for op in range(len(order))])


def _values_by_kind(program: Program, placement: Placement | None) -> tuple[PlannedValue, ...]:
    written = {program.storage_of(v) for op in program.operators for v in op.outputs}
    inputs = set(program.inputs)
    outputs = {program.storage_of(v) for v in program.outputs}
    copy_of = placement.copy_of if placement else {}

    def storage(index: int) -> Literal["input", "weight", "output", "arena", "alias"]:
        if program.values[index].alias_of is not None:
            return "alias"
        if index in program.weights:
            return "weight"
        if index in inputs:
            return "input"
        if index not in written:
            assert index in copy_of, f"value `{program.values[index].name}` has no producer"
            # A copy of an input has storage `input`, and a copy of a weight has storage `weight`.
            return storage(copy_of[index])
        return "output" if index in outputs else "arena"

    return tuple(
        PlannedValue(
            v.name,
            v.shape,
            v.dtype,
            storage(i),
            None if v.alias_of is None else v.offset,
            v.alias_of,
            v.layout,
            placement.devices[i] if placement else None,
            copy_of.get(i),
        )
        for i, v in enumerate(program.values)
    )


def _place(plan: Plan) -> Plan:
    """Give every value with storage `arena` its offset in the arena of its device."""
    offset_of: dict[int, int] = {}
    arenas: dict[str, int] = {}
    for device, buffers in plan.arena_buffers().items():
        layout = memory_plan(
            plan.graph(),
            plan.stream_orders(),
            [op.waits for op in plan.operators],
            list(buffers.values()),
            ALIGNMENT,
        )
        offset_of.update(zip(buffers, layout.offsets, strict=True))
        arenas[device] = layout.arena_bytes
    values = tuple(
        msgspec.structs.replace(v, offset=offset_of[i]) if i in offset_of else v
        for i, v in enumerate(plan.values)
    )
    return msgspec.structs.replace(
        plan,
        values=values,
        arena_bytes=sum(arenas.values()),
        arenas=arenas if len(plan.devices) > 1 else {},
    )
