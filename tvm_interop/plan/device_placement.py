"""Decides which GPU each tensor is on, and which tensors are copied to other GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..program.program import Operator, Program, Value
from ..program.storage import PEER_COPY, dependencies, span


@dataclass(frozen=True)
class Placement:
    """A program for several devices, in which each operator's tensors lie on the operator's device.

    Attributes
    ----------
    program: the given program with copy operators appended. The kernel of a copy operator is
        `PEER_COPY`. The given operators and values keep their ids. An operator may read a copy
        instead of the original.
    order: ids of all operators, copies included, in the order of launching.
    devices: the device of each value.
    copy_of: for each value that is a copy, the original on another device.
    links: ids of the copy operators, in the order of launching, keyed by their source and target
        device.
    """

    program: Program
    order: tuple[int, ...]
    devices: tuple[str, ...]
    copy_of: dict[int, int]
    links: dict[tuple[str, str], tuple[int, ...]]


def place_on_devices(program: Program, order: Sequence[int], device_of: Sequence[str]) -> Placement:
    """Put each value on the device that writes it, and copy it to the devices that read it.

    A value lies on the device of the operator that writes it. An input or a weight of the model
    lies on the device of the first operator that reads it. If operators on several devices write
    parts of one tensor, the tensor lies on the device of the first of these operators. The parts
    written on other devices are copied to this device. If operators on another device read the
    tensor, that device gets one copy for all of them. If these operators read only a part of the
    tensor, only this part is copied. Inputs and weights are never copied during a run: the host
    writes them to every device that reads them.

    In the launch order, a copy comes right after the last operator that writes the copied value.

    Parameters
    ----------
    order: all operators by id, in the order of launching.
    device_of: each operator's device, such as `cuda:1`.

    Complexity: O(operators + copies), plus the time that `dependencies` takes.
    """
    return _Placer(program, device_of).run(order)


class _Placer:
    def __init__(self, program: Program, device_of: Sequence[str]) -> None:
        self._program = program
        self._device_of = device_of
        self._values = list(program.values)
        self._operators: list[Operator] = []
        self._copies: list[Operator] = []
        self._copy_of: dict[int, int] = {}
        self._fixed = {*program.inputs, *program.weights}
        self._names = {value.name for value in program.values}
        self._names |= {op.name for op in program.operators}
        homes = self._homes()
        self._devices = [homes[program.storage_of(v)] for v in range(len(program.values))]
        # Maps a part of a tensor to its copy. The key is (id of the tensor's root value, first
        # byte, end byte, device).
        self._here: dict[tuple[int, int, int, str], int] = {}
        # Maps (value, device) to the copy that operators on `device` read instead of `value`.
        self._views: dict[tuple[int, str], int] = {}

    def run(self, order: Sequence[int]) -> Placement:
        for op, device in zip(self._program.operators, self._device_of, strict=True):
            inputs = tuple(self._read(v, device) for v in op.inputs)
            outputs = tuple(self._written(v, device) for v in op.outputs)
            self._operators.append(replace(op, inputs=inputs, outputs=outputs))
        operators = [*self._operators, *self._copies]
        program = replace(self._program, values=self._values, operators=operators)
        launched = self._with_copies(order, program)
        links: dict[tuple[str, str], list[int]] = {}
        for op_id in launched:
            if op_id >= len(self._operators):
                (source,), (target,) = operators[op_id].inputs, operators[op_id].outputs
                link = self._devices[source], self._devices[target]
                links.setdefault(link, []).append(op_id)
        return Placement(
            program,
            tuple(launched),
            tuple(self._devices),
            self._copy_of,
            {link: tuple(ops) for link, ops in sorted(links.items())},
        )

    def _homes(self) -> dict[int, str]:
        """The device of each value that is not an alias, keyed by the value's index."""
        homes: dict[int, str] = {}
        for op, device in zip(self._program.operators, self._device_of, strict=True):
            for v in (*op.outputs, *op.inputs):
                homes.setdefault(self._program.storage_of(v), device)
        return {v: homes.get(v, self._device_of[0]) for v in range(len(self._values))}

    def _read(self, value: int, device: str) -> int:
        """The value that an operator on `device` reads: `value`, or its copy on that device."""
        if self._devices[value] == device:
            return value
        if (value, device) not in self._views:
            self._views[value, device] = self._view(value, device)
        return self._views[value, device]

    def _view(self, value: int, device: str) -> int:
        root, begin, end = span(self._values, value)
        # The host writes a whole input or weight to each device. If a tensor is neither an input
        # nor a weight, only the part that operators on the device read is copied.
        source = root if root in self._fixed else value
        region = (root, 0, self._values[root].nbytes) if source == root else (root, begin, end)
        key = (*region, device)
        if key not in self._here:
            self._here[key] = self._twin(source, device)
            if source not in self._fixed:
                self._copy(source, self._here[key])
        here = self._here[key]
        if self._copy_of[here] == value:
            return here
        view = replace(self._values[value], alias_of=here, offset=begin - region[1])
        return self._add(view, device)

    def _written(self, value: int, device: str) -> int:
        """The value that an operator on `device` writes instead of `value`.

        The operator writes `value` itself if it lies on `device`. Otherwise it writes a new value,
        which is then copied to `value`.
        """
        if self._devices[value] == device:
            return value
        root, begin, end = span(self._values, value)
        twin = self._here[root, begin, end, device] = self._twin(value, device)
        self._copy(twin, value)
        return twin

    def _twin(self, value: int, device: str) -> int:
        """Add a value with storage of its own on `device`, with the same contents as `value`."""
        twin = self._add(replace(self._values[value], alias_of=None, offset=0), device)
        self._copy_of[twin] = value
        return twin

    def _add(self, value: Value, device: str) -> int:
        name = self._unique(f"{value.name}@{device}")
        self._values.append(replace(value, name=name))
        self._devices.append(device)
        return len(self._values) - 1

    def _copy(self, source: int, target: int) -> None:
        original = self._values[self._copy_of.get(target, target)].name
        name = self._unique(f"{original} to {self._devices[target]}")
        self._copies.append(Operator(name, PEER_COPY, (source,), (target,)))

    def _unique(self, name: str) -> str:
        while name in self._names:
            name += "'"
        self._names.add(name)
        return name

    def _with_copies(self, order: Sequence[int], program: Program) -> list[int]:
        """Insert each copy into `order`, right after the last operator that the copy waits for.

        Copies that are inserted at the same place are ordered by id.
        """
        waiting = [0] * len(program.operators)
        followers: dict[int, list[int]] = {}
        for before, after in dependencies(program.values, program.operators):
            if after >= len(self._operators):
                waiting[after] += 1
                followers.setdefault(before, []).append(after)
        launched: list[int] = []
        for op in order:
            ready = [op]
            while ready:
                launched.append(ready.pop(0))
                for copy in sorted(followers.get(launched[-1], ())):
                    waiting[copy] -= 1
                    if waiting[copy] == 0:
                        ready.append(copy)
        return launched
