"""A served model made from an artifact: several instances that share one copy of the weights."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...artifact.artifact import Artifact
from ...errors import InputError
from ...execution.instance import PlanInstance
from ...execution.open_instance import open_instance
from ...execution.segments import Segments, equal_cuts
from ...plan.plan import Plan
from .any_model import AnyModel, Memory
from .tensors import specs_of
from .ticket import Ticket


class Model(AnyModel):
    """A loaded artifact with several instances.

    Each instance has its own input, output and intermediate tensors, and runs one batch at a time.
    All instances share the weights and the machine code.

    Attributes
    ----------
    artifact: artifact that the model was loaded from.
    """

    def __init__(self, name: str, artifact: Artifact, instances: int = 1) -> None:
        """Load the kernels and allocate the tensors of all instances.

        Raises
        ------
        ArtifactError, DeviceError
            As for `GraphModule`.
        """
        self.artifact = artifact
        each = [artifact, *artifact.others]
        self._plans = [one.usable_plan() for one in each]
        sizes = artifact.manifest.batch_sizes
        super().__init__(
            name,
            specs_of(self._plans, "inputs"),
            specs_of(self._plans, "outputs"),
            _memory(each, self._plans),
            sizes,
        )
        self._shape_of_size = {size: i for i, size in enumerate(sizes)}
        # The model is compiled for each shape separately. The instances of a shape share kernels.
        self._kernels = [one.load_kernels() for one in each]
        self._instances: list[list[PlanInstance]] = [
            [open_instance(one, kernels) for _ in range(instances)]
            for one, kernels in zip(each, self._kernels, strict=True)
        ]
        self._segments: list[Segments] = []

    @property
    def num_instances(self) -> int:
        """The number of batches that can run at the same time."""
        return len(self._instances[0])

    @property
    def num_blocks(self) -> int:
        """The number of blocks that the model is divided into; 1 if it runs as a whole."""
        return len(self._segments[0]) if self._segments else 1

    @property
    def is_divided(self) -> bool:
        """Whether the model can run block by block."""
        return bool(self._segments)

    def divide(self, count: int) -> None:
        """Divide the model into `count` blocks of about equal latency, measured in one run.

        A model that has fewer possible blocks is divided into all of them.

        Raises
        ------
        InputError
            The model was compiled for several shapes.
        DeviceError
            The model does not run on the CPU.
        """
        if len(self._plans) > 1:
            raise InputError(
                f"model `{self.name}` was compiled for {len(self._plans)} shapes, and a policy "
                "that runs blocks serves models of one shape; compile it for one, or choose a "
                "policy that runs models whole"
            )
        plan, instances = self._plans[0], self._instances[0]
        op_us = np.zeros(len(plan.operators))
        instances[0].run()
        for timing in instances[0].profile():
            op_us[timing.op] = timing.end_us - timing.start_us
        cuts = equal_cuts(plan, op_us.tolist(), count)
        self._segments = [Segments(instance, cuts) for instance in instances]

    def run_block(self, slot: int, block: int, ticket: Ticket) -> None:
        """Run one block of a divided model.

        The first block also copies the inputs, and the last block also copies the outputs.

        Raises
        ------
        ExecutionError
            An operator failed, or another block is next.
        """
        segments, plan = self._segments[slot], self._plans[0]
        began = time.perf_counter()
        if block == 0:
            for v in plan.inputs:
                segments.instance.write(v, ticket.inputs[plan.values[v].name])
        wrote = time.perf_counter()
        segments.run(block)
        ran = time.perf_counter()
        if block + 1 == len(segments):
            results = [segments.instance.read(v) for v in plan.outputs]
            ticket.outputs = [_copy(result, slice(None)) for result in results]
            ticket.ran_batch = 1
        ticket.input_us += (wrote - began) * 1e6
        ticket.infer_us += (ran - wrote) * 1e6
        ticket.output_us += (time.perf_counter() - ran) * 1e6

    def run_blocks_once(self, slot: int) -> list[float]:
        """Run all blocks once on the current inputs; return each block's latency in seconds."""
        took = []
        for block in range(self.num_blocks):
            began = time.perf_counter()
            self._segments[slot].run(block)
            took.append(time.perf_counter() - began)
        return took

    def run(self, slot: int, tickets: Sequence[Ticket]) -> None:
        """Run instance `slot` once for all tickets, and set the outputs and times of each ticket.

        If the tickets have fewer rows than the batch size, the last row is repeated.

        Raises
        ------
        ExecutionError
            An operator failed.
        """
        began = time.perf_counter()
        shape = tickets[0].shape
        size = 1
        if self.is_batched:
            size = self.size_for(sum(ticket.rows for ticket in tickets))
            shape = self._shape_of_size[size]
        instance, plan = self._instances[shape][slot], self._plans[shape]
        for v in plan.inputs:
            given = [ticket.inputs[plan.values[v].name] for ticket in tickets]
            instance.write(v, _joined(given, plan.values[v].shape))
        wrote = time.perf_counter()
        instance.run()
        ran = time.perf_counter()
        begin = 0
        results = [instance.read(v) for v in plan.outputs]
        for ticket in tickets:
            rows = slice(begin, begin + ticket.rows) if self.is_batched else slice(None)
            ticket.outputs = [_copy(result, rows) for result in results]
            begin += ticket.rows
        read = time.perf_counter()
        for ticket in tickets:
            ticket.ran_batch = size
            ticket.input_us = (wrote - began) * 1e6
            ticket.infer_us = (ran - wrote) * 1e6
            ticket.output_us = (read - ran) * 1e6

    def run_once(self, slot: int, size: int) -> float:
        """Run instance `slot` once on its current inputs; return the latency in seconds.

        The server calls this method to warm up and to measure.
        """
        instance = self._instances[self._shape_of_size.get(size, 0)][slot]
        began = time.perf_counter()
        instance.run()
        return time.perf_counter() - began

    def _fitting(self, inputs: Mapping[str, np.ndarray]) -> int:
        for i, plan in enumerate(self._plans):
            values = [plan.values[v] for v in plan.inputs]
            if all(inputs[value.name].shape == value.shape for value in values):
                return i
        known = "; ".join(str(shapes) for shapes in self.artifact.input_shapes)
        found = {name: array.shape for name, array in inputs.items()}
        raise InputError(
            f"model `{self.name}` was not compiled for the shapes {found}; it was compiled for "
            f"{known}"
        )

    def _shape_of(self, size: int) -> int:
        return self._shape_of_size[size]


def _memory(each: Sequence[Artifact], plans: Sequence[Plan]) -> Memory:
    weights: dict[int, int] = {}
    for one in each:
        weights.update((array.ctypes.data, array.nbytes) for array in one.weights.values())
    own = 0
    for plan in plans:
        own += plan.arena_bytes
        own += sum(v.nbytes for v in plan.values if v.storage in ("input", "output"))
    return Memory(sum(weights.values()), own)


def _joined(arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Concatenate the rows of all arrays, and repeat the last row until `shape` is filled."""
    if len(arrays) == 1 and arrays[0].shape == shape:
        return arrays[0]
    missing = shape[0] - sum(array.shape[0] for array in arrays)
    padding = [np.repeat(arrays[-1][-1:], missing, axis=0)] if missing else []
    return np.concatenate([*arrays, *padding])


def _copy(array: np.ndarray, rows: Any) -> np.ndarray:
    """Copy rows of an output, because the next run overwrites the output."""
    return np.array(array[rows] if array.ndim else array, order="C")
