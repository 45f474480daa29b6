"""Defines `Plan`, which says each operator's stream and waits, and each tensor's place in memory.

Besides kernels and weights, the executor needs only a plan. `make.make_plan` makes a plan,
`check.check_plan` proves it safe, and the artifact holds it as JSON. Plans do not depend on Relax.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..program.graph import OpGraph
from ..program.library_op import LibraryOp
from ..program.part_names import whole_name
from ..program.planning import Buffer
from ..program.storage import PEER_COPY, Layout, dependencies, stored_nbytes, stored_shape


class Stream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue of operators that a device runs in order.

    Attributes
    ----------
    device: `cpu:0`, or a GPU such as `cuda:0`.
    threads: number of threads that the stream's kernels may use.
    urgent: whether a GPU should run this stream's work before the work of other streams.
    """

    device: str
    threads: int
    urgent: bool = False


class PlannedValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor and the place of its bytes.

    Attributes
    ----------
    storage: the place of the value's bytes. With storage `input`, `weight` or `output`, the value
        has a buffer of its own, which is kept as long as the loaded model. With storage `arena`,
        the value begins at byte `offset` of the arena, which values share. With storage `alias`,
        the value begins at byte `offset` of the storage of the value `alias_of`.
    layout: the order of the tensor's elements in memory.
    device: the device that the tensor is on; None in a plan for one device.
    copy_of: another value with the same contents, on another device; None if there is no such
        value. If the other value is an input or a weight, the host writes both values.
        Otherwise a copy operator copies the other value to this value.
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
        """The shape in memory: larger than `shape` if the layout pads channels to full blocks."""
        return stored_shape(self.shape, self.layout)

    @property
    def nbytes(self) -> int:
        """The number of bytes that the tensor takes in memory."""
        return stored_nbytes(self.shape, self.dtype, self.layout)


class PlannedOperator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kernel call.

    Attributes
    ----------
    kernel: name of TVM's kernel; `PEER_COPY` for a copy to another GPU, which needs no kernel.
    inputs, outputs: indices into `Plan.values`; the kernel is called with them in this order.
    stream: index into `Plan.streams`.
    waits: indices of earlier operators, on other streams, that must end before this one starts.
    library: the kernel library that runs the operator; `description` tells it what to compute. None
        if TVM's `kernel` runs the operator.
    share: for an operator that runs one share of a kernel, the share's index and the number of
        shares. None if the operator runs the whole kernel.
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
    def whole(self) -> str:
        """The name of the divided operator of which this operator is a part.

        The result is the operator's own name if it is not a part of another operator.
        """
        return whole_name(self.name)

    @property
    def is_copy(self) -> bool:
        """Whether the operator copies its input from one GPU to another."""
        return self.kernel == PEER_COPY


_SHOWN = 4
"""How many inputs, and how many outputs, `Plan.summary` names."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plan of a whole model, which an executor can run.

    Attributes
    ----------
    operators: in an order that respects dependencies, stream orders and waits.
    inputs, outputs: indices into `values`, in the model's order.
    arena_bytes: size of the storage that `arena` values share, on all devices together.
    parallel_kernels: whether any kernel splits its work over a team of threads.
    arenas: bytes of the arena on each device, by device; empty in a plan for one device.
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

    def __repr__(self) -> str:
        return f"Plan({self.summary()})"

    def summary(self) -> str:
        """A line that says what the plan computes: operators, streams, inputs and outputs."""
        return (
            f"{len(self.operators)} operators on {len(self.streams)} stream(s), inputs "
            f"{self._tensors(self.inputs)}, outputs {self._tensors(self.outputs)}"
        )

    def _tensors(self, values: tuple[int, ...]) -> str:
        shown = ", ".join(
            f"{self.values[v].name} {self.values[v].dtype}{list(self.values[v].shape)}"
            for v in values[:_SHOWN]
        )
        return shown + (f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else "")

    def to_json(self) -> str:
        """The plan as JSON text, for `read_plan`."""
        document = msgspec.to_builtins(self)
        for op, written in zip(self.operators, document["operators"], strict=True):
            if op.description is not None:
                written["description"] = op.description.fields()
        return msgspec.json.encode(document).decode()

    def root_of(self, value: int) -> int:
        """The value whose storage holds `value`."""
        alias_of = self.values[value].alias_of
        return value if alias_of is None else alias_of

    def is_constant(self, value: int) -> bool:
        """Whether `value` is a weight or a view of a weight."""
        return self.values[self.root_of(value)].storage == "weight"

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that the plan runs on, in the order of its streams."""
        return tuple(dict.fromkeys(stream.device for stream in self.streams))

    def device_of(self, value: int) -> str:
        """The device that `value` (an index into `values`) lies on."""
        return self.values[value].device or self.devices[0]

    def arena_of(self, device: str) -> int:
        """Size of the arena on `device`, in bytes."""
        return self.arenas.get(device, 0) if self.arenas else self.arena_bytes

    def twins(self) -> dict[int, list[int]]:
        """The indices of the copies of each value that has copies on other devices."""
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

    def device_in_words(self) -> str:
        """Return the name of the first device, for messages."""
        device = self.streams[0].device if self.streams else "cpu:0"
        return "the CPU" if device.startswith("cpu") else device

    def weight_indices(self) -> dict[str, int]:
        """The index into `values` of each weight, by the weight's name."""
        return {
            v.name: i
            for i, v in enumerate(self.values)
            if v.storage == "weight" and v.copy_of is None
        }

    def arena_buffers(self) -> dict[str, dict[int, Buffer]]:
        """The buffers in each device's arena, by value, with their writers and readers.

        If an operator writes or reads an alias, it counts as a writer or reader of the value whose
        storage the alias uses.
        """
        writers: dict[int, list[int]] = {}
        readers: dict[int, list[int]] = {}
        for i, op in enumerate(self.operators):
            for value in op.outputs:
                writers.setdefault(self.root_of(value), []).append(i)
            for value in op.inputs:
                readers.setdefault(self.root_of(value), []).append(i)
        buffers: dict[str, dict[int, Buffer]] = {device: {} for device in self.devices}
        for v, stored in enumerate(self.values):
            if stored.storage == "arena":
                buffers[self.device_of(v)][v] = Buffer(
                    stored.nbytes,
                    tuple(dict.fromkeys(writers[v])),
                    tuple(dict.fromkeys(readers.get(v, ()))),
                )
        return buffers
