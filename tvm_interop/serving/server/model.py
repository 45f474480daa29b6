"""A served model made from an artifact: several instances that share one copy of the weights."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._native.runtime import Port
from ...artifact.artifact import Artifact
from ...errors import InputError
from ...execution.instance import PlanInstance
from ...execution.open_instance import Shapes
from ...execution.size_counts import RunCounts, SizeCounts
from .any_model import AnyModel, Memory
from .tensors import specs_of
from .ticket import Ticket

if TYPE_CHECKING:
    from ...execution.segments import Segments


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
        self._shapes = shapes = Shapes(artifact)
        own = sum(shapes.instance_nbytes(shape) for shape in range(len(shapes)))
        has_rows = max(shapes.batch_sizes, default=1) > 1
        super().__init__(
            name,
            specs_of(shapes.inputs, strings=shapes.strings.inputs, has_rows=has_rows),
            specs_of(shapes.outputs, shapes.counted.axes, shapes.strings.outputs, has_rows),
            Memory(shapes.weights_nbytes, own),
            shapes.batch_sizes,
        )
        self._shape_of_size = {size: i for i, size in enumerate(shapes.batch_sizes)}
        # The method `run` joins requests and pads batches itself, so a model with batches needs no
        # `row_range` in the module.
        self._range = None if shapes.batch_sizes else shapes.row_range
        known = shapes.row_range
        self.dimensions = ("batch",) if shapes.batch_sizes else known.dimensions if known else ()
        batches = [(size,) for size in shapes.batch_sizes]
        self._counts = SizeCounts(batches or (known.sizes if known else ()))
        self._instances: list[list[PlanInstance]] = [
            [shapes.open(shape) for _ in range(instances)] for shape in range(len(shapes))
        ]
        self._segments: list[Segments] = []

    @property
    def run_counts(self) -> dict[tuple[int, ...], RunCounts]:
        """The counts of runs, keyed by batch size, or by the sizes of dimensions with a range."""
        return self._counts.counts()

    @property
    def num_instances(self) -> int:
        """The number of batches that can run at the same time."""
        return len(self._instances[0])

    @property
    def num_blocks(self) -> int:
        """The number of blocks that the model is divided into; 1 if the model is not divided."""
        return len(self._segments[0]) if self._segments else 1

    @property
    def is_divided(self) -> bool:
        """Whether the model can run block by block."""
        return bool(self._segments)

    def divide(self, count: int) -> None:
        """Divide the model into `count` blocks of about equal latency, measured in one run.

        If the model can only be divided into fewer blocks, it is divided into as many as possible.

        Raises
        ------
        InputError
            The model was compiled for several shapes.
        DeviceError
            The model does not run on the CPU.
        """
        from ...execution.segments import Segments, equal_cuts  # Imports tvm-ffi.

        if len(self._shapes) > 1:
            raise InputError(
                f"model `{self.name}` was compiled for {len(self._shapes)} shapes, and a policy "
                "that runs blocks serves models of one shape; compile it for one, or choose a "
                "policy that runs models whole"
            )
        # Only the instances that `changeable` returns can run a part of their operators.
        changeable = [self._shapes.changeable(one, 0) for one in self._instances[0]]
        instances = self._instances[0] = [*changeable]
        plan = instances[0].plan
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
            An operator failed, or it is the turn of another block.
        """
        segments = self._segments[slot]
        instance = segments.instance
        began = time.perf_counter()
        if block == 0:
            for i, port in enumerate(instance.inputs):
                instance.write(port.value, self._given(i, port, ticket))
        wrote = time.perf_counter()
        segments.run(block)
        ran = time.perf_counter()
        if block + 1 == len(segments):
            results = self._results_of(instance)
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

        If the requests have fewer rows than the batch size, their last row is repeated.

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
        instance = self._instances[shape][slot]
        for i, port in enumerate(instance.inputs):
            given = [self._given(i, port, ticket) for ticket in tickets]
            if self._range is not None:
                given = [self._range.filled(array, i, port) for array in given]
            instance.write(port.value, _joined(given, port.shape))
        wrote = time.perf_counter()
        instance.run()
        ran = time.perf_counter()
        self._count(tickets, shape, size)
        begin = 0
        results = self._results_of(instance)
        if self._range is not None:
            results = self._cut(results, tickets[0].inputs)
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

    def _given(self, position: int, port: Port, ticket: Ticket) -> np.ndarray:
        """The array that a request has for an input, with positions of strings for strings."""
        given: np.ndarray = self._shapes.strings.encoded(position, ticket.inputs[port.name])
        return given

    def _results_of(self, instance: PlanInstance) -> list[np.ndarray]:
        """The output arrays of the latest run. Only outputs of strings are copied."""
        counted, strings = self._shapes.counted, self._shapes.strings
        return [strings.decoded(i, counted.read(instance, i)) for i in range(len(self.outputs))]

    def run_once(self, slot: int, size: int) -> float:
        """Run instance `slot` once on its current inputs; return the latency in seconds.

        The server calls this method to warm up and to measure.
        """
        instance = self._instances[self._shape_of_size.get(size, 0)][slot]
        began = time.perf_counter()
        instance.run()
        return time.perf_counter() - began

    def _count(self, tickets: Sequence[Ticket], shape: int, size: int) -> None:
        if self.is_batched:
            self._counts.count((sum(ticket.rows for ticket in tickets),), (size,))
        elif self._range is not None:
            rows = self._rows(tickets[0].inputs) or self._range.sizes[shape]
            self._counts.count(rows, self._range.sizes[shape])

    def _rows(self, inputs: Mapping[str, np.ndarray]) -> tuple[int, ...] | None:
        """The inputs' size in each dimension that has a range of sizes; None without ranges."""
        if self._range is None:
            return None
        shapes = {i: inputs[port.name].shape for i, port in enumerate(self._shapes.inputs[0])}
        return self._range.rows_of(shapes, self._range.sizes[0])

    def _cut(self, results: list[np.ndarray], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs without the rows that padding has added."""
        rows = self._rows(inputs)
        assert self._range is not None, "only outputs of a model with ranges are cut"
        assert rows is not None, "`check` has found the numbers of rows"
        return [
            self._range.of_rows(result, i, rows, is_output=True) for i, result in enumerate(results)
        ]

    def _fitting(self, inputs: Mapping[str, np.ndarray]) -> int:
        rows = self._rows(inputs)
        if self._range is not None and rows is not None:
            shape = self._range.shape_for(rows)
            for i, port in enumerate(self._shapes.inputs[shape]):
                self._range.check_mask(inputs[port.name], i, port)
            return shape
        for i, ports in enumerate(self._shapes.inputs):
            if all(inputs[port.name].shape == port.shape for port in ports):
                return i
        known = "; ".join(str(shapes) for shapes in self.artifact.input_shapes)
        found = {name: array.shape for name, array in inputs.items()}
        raise InputError(
            f"model `{self.name}` was not compiled for the shapes {found}; it was compiled for "
            f"{known}"
        )

    def _shape_of(self, size: int) -> int:
        return self._shape_of_size[size]


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
