"""An execution plan: what runs on which stream, what waits for what, and where tensors live.

A plan is all the executor needs besides kernels and weights. It is made once, checked once, and
written into the artifact as JSON; nothing in it depends on Relax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from .device_placement import Placement, place_on_devices
from .errors import ArtifactError, ScheduleError
from .graph import OpGraph
from .library_op import LibraryOp
from .plan_structure import check_structure
from .planning import Buffer, MemoryPlan, check_memory, check_sync, memory_plan, sync_plan
from .storage import ALIGNMENT, PEER_COPY, Layout, dependencies, stored_nbytes, stored_shape

if TYPE_CHECKING:
    from .program import Program
    from .scheduling import Schedule


class Stream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue of operators.

    Attributes
    ----------
    device: `cpu:0`, or a GPU such as `cuda:0`.
    threads: threads its kernels may use.
    urgent: whether a GPU should prefer its work to that of the others.
    """

    device: str
    threads: int
    urgent: bool = False


class PlannedValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor and where its bytes are.

    Attributes
    ----------
    storage: `input`, `weight` and `output` have a buffer of their own, for as long as the module
        lives; `arena` shares the arena, at `offset` bytes; `alias` is in the storage of `alias_of`,
        `offset` bytes into it.
    layout: how it lies in memory.
    device: the device that it lies on; None in a plan for one device.
    copy_of: the value on another device that it holds the same as. An input or a weight is written
        to both by the host; of others, a copy writes one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    storage: Literal["input", "weight", "output", "arena", "alias"]
    offset: int | None = None
    alias_of: int | None = None
    layout: Layout = "plain"
    device: str | None = None
    copy_of: int | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the memory behind it."""
        return stored_shape(self.shape, self.layout)

    @property
    def nbytes(self) -> int:
        """Bytes the tensor takes."""
        return stored_nbytes(self.shape, self.dtype, self.layout)


class PlannedOperator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kernel call.

    Attributes
    ----------
    kernel: name of TVM's kernel; `PEER_COPY` for a copy to another GPU, which has none.
    inputs, outputs: indices into `Plan.values`; the kernel is called with them in this order.
    stream: index into `Plan.streams`.
    waits: operators on other streams that must have ended: indices of earlier operators.
    library: the kernel library that runs it, by `description`; None for TVM's `kernel`.
    share: which share of TVM's kernel runs, and of how many; None for all of it.
    """

    name: str
    kernel: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stream: int
    waits: tuple[int, ...]
    library: str | None = None
    description: LibraryOp | None = None
    share: tuple[int, int] | None = None

    @property
    def is_copy(self) -> bool:
        """Whether it copies its input from one GPU to another."""
        return self.kernel == PEER_COPY


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole model, ready to run.

    Attributes
    ----------
    operators: in an order that respects dependencies, stream orders and waits.
    inputs, outputs: indices into `values`, in the model's order.
    arena_bytes: size of the storage that `arena` values share, on all devices together.
    parallel_kernels: whether any kernel splits its work over a team of threads.
    arenas: size of each device's own; empty in a plan for one device.
    """

    streams: tuple[Stream, ...]
    values: tuple[PlannedValue, ...]
    operators: tuple[PlannedOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arena_bytes: int
    parallel_kernels: bool
    arenas: dict[str, int] = {}
    format: Literal["tvm_interop.plan"] = "tvm_interop.plan"
    version: Literal[1] = 1

    def to_json(self) -> str:
        """The plan as JSON text, for `Plan.from_json`."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> Plan:
        """Read a plan and check it.

        Raises
        ------
        ArtifactError
            The text is no plan of this version; an index is out of range.
        PlanError
            The plan is unsafe: a missing wait, or storage shared without an order.
        """
        try:
            plan = msgspec.json.decode(text, type=Plan)
        except msgspec.DecodeError as error:
            raise ArtifactError(
                f"plan.json is not a plan this version can read: {error}; compile the model again"
            ) from error
        plan.check()
        return plan

    def root_of(self, value: int) -> int:
        """The value whose storage `value` is in."""
        alias_of = self.values[value].alias_of
        return value if alias_of is None else alias_of

    def is_constant(self, value: int) -> bool:
        """Whether `value` is a weight, or a view of one."""
        return self.values[self.root_of(value)].storage == "weight"

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that it runs on, in the order of its streams."""
        return tuple(dict.fromkeys(stream.device for stream in self.streams))

    def device_of(self, value: int) -> str:
        """The device that `value` lies on."""
        return self.values[value].device or self.devices[0]

    def arena_of(self, device: str) -> int:
        """Size of the arena on `device`, in bytes."""
        return self.arenas.get(device, 0) if self.arenas else self.arena_bytes

    def twins(self) -> dict[int, list[int]]:
        """By value, those on other devices that hold the same."""
        found: dict[int, list[int]] = {}
        for v, value in enumerate(self.values):
            if value.copy_of is not None:
                found.setdefault(value.copy_of, []).append(v)
        return found

    def graph(self) -> OpGraph:
        """The dependencies between the plan's operators."""
        edges = dependencies(self.values, self.operators)
        return OpGraph.from_edges([op.name for op in self.operators], edges)

    def stream_orders(self) -> list[list[int]]:
        """The operators of each stream, in order."""
        orders: list[list[int]] = [[] for _ in self.streams]
        for i, op in enumerate(self.operators):
            orders[op.stream].append(i)
        return orders

    def check(self) -> None:
        """Prove the plan safe: every dependency ordered, no storage shared without an order.

        Raises
        ------
        ArtifactError
            An index points nowhere.
        PlanError
            Names the operators whose order, or the buffers whose storage, is at fault.
        """
        check_structure(self)
        graph = self.graph()
        orders = self.stream_orders()
        waits = [op.waits for op in self.operators]
        check_sync(graph, orders, waits)
        for device, buffers in _arena_buffers(self).items():
            offsets = tuple(self.values[v].offset or 0 for v in buffers)
            layout = MemoryPlan(offsets, self.arena_of(device))
            check_memory(graph, orders, waits, list(buffers.values()), layout, ALIGNMENT)


def make_plan(
    program: Program,
    schedule: Schedule,
    threads: int = 1,
    parallel_kernels: bool = False,
    device: str = "cpu:0",
) -> Plan:
    """Turn a schedule into a plan: streams, the fewest waits, and a memory layout.

    Over several GPUs, tensors lie where `place_on_devices` puts them, each GPU has an arena, and
    for each two GPUs between which anything is copied there is a stream more, on the GPU that
    sends: so no operator waits for the link but those that read what is sent, the copies take turns
    on it as they would anyway, and it is the sender whose copy engine works (writes to a peer's
    memory need no answer, reads do).

    Parameters
    ----------
    program: the model.
    schedule: of `program`'s operators; validated here.
    threads: threads the kernels of each stream may use.
    parallel_kernels: whether any kernel uses more than its calling thread.
    device: where all of it runs, `cpu:0` or a GPU such as `cuda:0`, unless the schedule names
        several GPUs.

    Raises
    ------
    ScheduleError
        The schedule does not fit the program, or the CPU is to be several devices.
    """
    graph = program.graph()
    schedule.validate(graph)
    ids = schedule.ids_in(graph)  # A schedule may list the operators in an order of its own.
    stream_orders = [[ids[op] for op in ops] for ops in schedule.streams if ops]
    devices = _stream_devices(schedule, device)
    ordering = [(ids[before], ids[after]) for before, after in schedule.ordering_edges()]
    waits = sync_plan(graph, stream_orders, ordering)
    order = (
        _launch_order(graph, stream_orders, waits)
        if schedule.launch_order is None
        else [ids[op] for op in schedule.launch_order]
    )
    placement = None
    if len(set(devices)) > 1:
        placement = _spread(program, order, stream_orders, devices)
        program, order = placement.program, list(placement.order)
        for (source, _), copies in placement.links.items():
            stream_orders.append(list(copies))
            devices.append(source)
        waits = sync_plan(program.graph(), stream_orders)
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
    plan.check()
    return plan


def _launch_order(
    graph: OpGraph, stream_orders: list[list[int]], waits: list[tuple[int, ...]]
) -> list[int]:
    """Merge the streams into one order in which every wait points backwards.

    Round robin over the streams, each advancing as far as its waits allow.
    """
    order: list[int] = []
    done: set[int] = set()
    next_of = [0] * len(stream_orders)
    while len(order) < graph.num_ops:
        before = len(order)
        for s, ops in enumerate(stream_orders):
            while next_of[s] < len(ops) and done.issuperset(waits[ops[next_of[s]]]):
                done.add(ops[next_of[s]])
                order.append(ops[next_of[s]])
                next_of[s] += 1
        assert len(order) > before, "validated schedules have no circular waits"
    return order


def _stream_devices(schedule: Schedule, device: str) -> list[str]:
    """The device of each stream that has operators; `device` where the schedule names none."""
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
            return storage(copy_of[index])  # An input or a weight, on another device.
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
    """Give every arena value its offset, in the arena of its device."""
    offset_of: dict[int, int] = {}
    arenas: dict[str, int] = {}
    for device, buffers in _arena_buffers(plan).items():
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


def _arena_buffers(plan: Plan) -> dict[str, dict[int, Buffer]]:
    """The buffers in each device's arena by value: who writes each, and who reads it.

    Aliases are included.
    """
    writers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for i, op in enumerate(plan.operators):
        for value in op.outputs:
            writers.setdefault(plan.root_of(value), []).append(i)
        for value in op.inputs:
            readers.setdefault(plan.root_of(value), []).append(i)
    buffers: dict[str, dict[int, Buffer]] = {device: {} for device in plan.devices}
    for v, stored in enumerate(plan.values):
        if stored.storage == "arena":
            buffers[plan.device_of(v)][v] = Buffer(
                stored.nbytes,
                tuple(dict.fromkeys(writers[v])),
                tuple(dict.fromkeys(readers.get(v, ()))),
            )
    return buffers
