"""The instances of a module, one for each set of input shapes that was used so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from .._native.runtime import Port
from ..errors import InputError
from .arrays import as_array, check_key, described, shape_of
from .inputs import as_input
from .instance import ChangeableInstance, ClosedInstance, PlanInstance, port_of
from .open_instance import Shapes
from .size_counts import RunCounts, SizeCounts


class ShapedInstances:
    """Makes an instance when a set of input shapes is used for the first time, and keeps it."""

    def __init__(self, shapes: Shapes, first: PlanInstance) -> None:
        """Begin with the instance for the first set of input shapes."""
        self._shapes = shapes
        self._shape = 0
        self._range = shapes.row_range
        self._counted = shapes.counted
        self._strings = shapes.strings
        self._num_outputs = len(shapes.outputs[0])
        # How many rows the current inputs have in each dimension with a range; empty without
        # ranges.
        self._rows = self._range.sizes[0] if self._range is not None else ()
        self._counts = SizeCounts(self._range.sizes if self._range is not None else ())
        self._ports_of: tuple[PlanInstance | None, tuple[int, ...]] = None, ()
        self._ports: tuple[list[Port], list[Port]] = [], []
        self._instance = first
        self._instances: dict[int, PlanInstance] = {0: self._instance}
        self._params: dict[str, np.ndarray] = {}
        self._input_index = {port.name: i for i, port in enumerate(first.inputs)}
        self._never_set = set(self._input_index.values())

    @property
    def runs_by_size(self) -> dict[tuple[int, ...], int]:
        """The number of runs at each size that a model with ranges was compiled for.

        A key has the size of each dimension, in the order of `artifact.ranges.dimensions`. The
        mapping is empty for a model without ranges. A run counts if it is started by calling the
        module, or by `run`, `run_into`, `start` or `benchmark(end_to_end=True)`. Runs by `profile`
        and runs that fail do not count. Any thread may read this property.
        """
        return self._counts.runs()

    @property
    def run_counts(self) -> dict[tuple[int, ...], RunCounts]:
        """The numbers of runs and rows at each size. The keys are the same as in `runs_by_size`."""
        return self._counts.counts()

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the current inputs, by the names of the dimensions with ranges."""
        return dict(zip(self.range_dimensions, self._rows, strict=True))

    @property
    def range_dimensions(self) -> tuple[str, ...]:
        """The names of the dimensions with a range."""
        return () if self._range is None else self._range.dimensions

    def count_with(self, other: ShapedInstances) -> None:
        """From now on, share the counts of runs with another module of the same artifact."""
        self._counts = other._counts

    def count_elsewhere(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Count a run of another module on inputs of these shapes, which were not padded."""
        found = {self._position(name): shape for name, shape in shapes.items()}
        rows = None if self._range is None else self._range.rows_of(found, self._rows)
        if rows is not None:
            self._counts.count(rows, rows)

    def _count_run(self) -> None:
        if self._range is not None:
            self._counts.count(self._rows, self._range.sizes[self._shape])

    def open_all_sizes(self) -> None:
        """Make the instances for all compiled sizes, so that the first run at a size is not slow.

        The largest size comes first, because the instances for smaller sizes can then use memory
        that is already allocated.
        """
        sizes = self._range.sizes if self._range is not None else []
        for shape in sorted(range(len(sizes)), key=lambda i: math.prod(sizes[i]), reverse=True):
            self._open_shape(shape)

    def _open_shape(self, shape: int) -> None:
        if shape not in self._instances:
            self._instances[shape] = self._shapes.open(shape)
            self._replace_weights(shape, self._params)

    def _drop_instances(self) -> None:
        self._instance = cast(PlanInstance, ClosedInstance())
        self._instances.clear()
        self._ports_of = None, ()
        self._params.clear()

    def _take_fitting_shape(self, sizes: Mapping[int, tuple[int, ...]]) -> None:
        """Switch to the plan for inputs of the shapes `sizes`, unless it is the current plan.

        Inputs that are not in `sizes` keep their values.

        Parameters
        ----------
        sizes: shapes by the inputs' positions.

        Raises
        ------
        InputError
            There is no plan for these shapes. Or an input that is not in `sizes` would change its
            shape.
        """
        shape, rows = self._fitting(sizes)
        if (shape, rows) == (self._shape, self._rows):
            return
        kept = {}
        for i, port in enumerate(self._current_inputs()):
            wanted = self._in_rows(self._shapes.inputs[shape][i], i, rows).shape
            if i in sizes:
                continue
            if port.shape != wanted:
                raise InputError(
                    f"input `{port.name}` changes its shape too, to {wanted}: give it in the same "
                    "call"
                )
            kept[i] = self._read_input(i).copy()
        self._open_shape(shape)
        self._instance = self._instances[shape]
        self._shape, self._rows = shape, rows
        for i, array in kept.items():
            self._write_input(i, array)

    def _prepared(self, given: Mapping[Any, Any]) -> dict[int, Any]:
        """Switch to the plan that fits the arrays, and return the arrays.

        The result maps the inputs' positions to the checked arrays.
        """
        with self._same_shape_after_errors():
            self._take_fitting_shape(self._sizes_of(given))
            checked, ports = {}, self._current_inputs()
            for key, value in given.items():
                position = self._position(key)
                encoded = self._strings.encoded(position, value)
                checked[position] = as_input(encoded, ports[position], self._instance)
                self._check_mask(position, checked[position])
        return checked

    def _write_all(self, prepared: Mapping[int, Any]) -> None:
        for position, array in prepared.items():
            self._write_input(position, array)
            self._never_set.discard(position)

    def _checked(self, key: str | int, value: Any) -> Any:
        return as_input(value, self._input(key), self._instance)

    @contextmanager
    def _same_shape_after_errors(self) -> Iterator[None]:
        """If the body of the `with` statement fails, restore the earlier plan and inputs."""
        before = self._instance, self._shape, self._rows
        try:
            yield
        except Exception:
            self._instance, self._shape, self._rows = before
            raise

    def _check_mask(self, position: int, array: Any) -> None:
        """Raise InputError if input `position` is a mask whose values do not allow padding."""
        if self._range is not None:
            self._range.check_mask(array, position, self._instance.inputs[position])

    def _fitting(self, sizes: Mapping[int, tuple[int, ...]]) -> tuple[int, tuple[int, ...]]:
        """The index of the set of input shapes that fits `sizes`, and the numbers of rows."""
        now = [port.shape for port in self._current_inputs()] if sizes else []
        if all(now[i] == size for i, size in sizes.items()):
            return self._shape, self._rows
        rows = None if self._range is None else self._range.rows_of(sizes, self._rows)
        if rows is None or self._range is None:
            return self._shapes.fitting(sizes), self._rows
        return self._range.shape_for(rows), rows

    def _current_inputs(self) -> list[Port]:
        """The inputs, with the shapes that they have now."""
        # The next line raises an error if the module was closed.
        ports = self._instance.inputs
        return ports if self._range is None else self._ports_in_rows()[0]

    def _current_outputs(self) -> list[Port]:
        """The outputs, with the shapes that they have for the current inputs.

        If an output's size depends on values that the model computes, its shape has the largest
        possible size.
        """
        ports = self._instance.outputs[: self._num_outputs]
        return ports if self._range is None else self._ports_in_rows()[1]

    def _ports_in_rows(self) -> tuple[list[Port], list[Port]]:
        """The inputs and outputs for the current number of rows."""
        instance, rows = self._ports_of
        if instance is not self._instance or rows != self._rows:
            both = self._instance.inputs, self._instance.outputs
            ins, outs = (
                [
                    self._in_rows(port, i, self._rows, is_output=is_output)
                    for i, port in enumerate(both[is_output])
                ]
                for is_output in (False, True)
            )
            self._ports_of, self._ports = (self._instance, self._rows), (ins, outs)
        return self._ports

    def _in_rows(
        self, port: Port, position: int, rows: tuple[int, ...], *, is_output: bool = False
    ) -> Port:
        if self._range is None:
            return port
        return self._range.port(port, position, rows, is_output=is_output)

    def _write_input(self, position: int, array: Any) -> None:
        """Copy an array into an input, padded to the instance's shape (see `RowRange.filled`)."""
        port = self._instance.inputs[position]
        if self._range is not None:
            array = self._range.filled(array, position, port)
        self._instance.write(port.value, array)

    def _read_input(self, position: int) -> np.ndarray:
        """Return an input without a copy."""
        array = self._instance.read(self._instance.inputs[position].value)
        if self._range is None:
            return array
        return self._range.of_rows(array, position, self._rows, is_output=False)

    def _read_output(self, position: int) -> np.ndarray:
        """Return an output without a copy."""
        array = self._counted.read(self._instance, position)
        if self._range is None:
            return array
        return self._range.of_rows(array, position, self._rows, is_output=True)

    @property
    def _is_full(self) -> bool:
        """Whether the current inputs need no padding: a run computes exactly their rows."""
        return self._range is None or self._rows in self._range.sizes

    def _check_is_full(self) -> None:
        """Refuse to use the caller's memory if it has fewer rows than a run computes."""
        if self._range is not None and not self._is_full:
            raise InputError(
                f"a run of {self._range.in_words(self._rows)} is padded, so it cannot use your "
                "memory: give one of the numbers of rows that the model was compiled for, "
                f"{self._range.sizes_in_words}, or use set_input and get_output, which copy"
            )

    def open_shapes(self) -> tuple[list[tuple[int | str, ...]], list[tuple[int | str, ...]]]:
        """Return the shapes of the inputs and the outputs.

        The result has a name instead of a size for two kinds of dimensions: a dimension with a
        range, and a dimension whose size depends on values that the model computes.
        """
        ports = self._current_inputs(), self._current_outputs()
        known = self._range
        if self._counted.axes:
            outs = [self._counted.open_shape(port, i) for i, port in enumerate(ports[1])]
            return [port.shape for port in ports[0]], outs
        ins, outs = (
            [
                port.shape if known is None else known.open_shape(port, i, is_output=is_output)
                for i, port in enumerate(ports[is_output])
            ]
            for is_output in (False, True)
        )
        return ins, outs

    @property
    def input_strings(self) -> dict[str, tuple[str, ...]]:
        """The strings of each input that is strings, by the input's name.

        Such an input takes an array of `str`, or the position of each string in this list, as
        int64. A string that is not in the list has the position -1.
        """
        names = [port.name for port in self._current_inputs()]
        return {names[i]: strings for i, strings in self._strings.inputs.items()}

    @property
    def output_strings(self) -> dict[str, tuple[str, ...]]:
        """The strings of each output that is strings, by the output's name.

        Such an output holds the position of each string in this list, as int64. The labels of a
        classifier are an example.
        """
        names = [port.name for port in self._current_outputs()]
        return {names[i]: strings for i, strings in self._strings.outputs.items()}

    def as_strings(self, position: int, array: np.ndarray) -> np.ndarray:
        """Return output number `position` as an array of `str`, of dtype object.

        An output that is not strings is returned unchanged.

        Parameters
        ----------
        array: the positions of strings that a run computed.

        Raises
        ------
        ExecutionError
            A number in `array` is not the position of a string.
        """
        return self._strings.decoded(position, array)

    def check_size_is_fixed(self, output: str) -> None:
        """Raise InputError if the size of an output depends on values that the model computes."""
        for i, port in enumerate(self._current_outputs()):
            if port.name == output:
                self._counted.refuse(port, i, "be bound to memory")

    def load_params(self, params_bytes: bytes | bytearray) -> None:
        """Set weights from bytes that `tvm.runtime.save_param_dict` returned.

        Raises
        ------
        InputError
            The model has no weight of a given name, or a weight has the wrong shape or dtype. In
            these cases no weight changes.
        """
        import tvm

        plan = self._instance.plan
        index = plan.weight_indices()
        arrays = {}
        for name, tensor in tvm.runtime.load_param_dict(params_bytes).items():
            if name not in index:
                raise InputError(
                    f"the model has no weight `{name}`; its weights are: {', '.join(index)}"
                )
            arrays[str(name)] = as_array(tensor, port_of(plan, index[name]), "weight")
        self._set_weights(arrays)

    def _set_weights(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set weights by name, in all present and later instances of this module."""
        for shape in list(self._instances):
            self._replace_weights(shape, arrays)
        # Instances for other input shapes get these weights when they are made.
        self._params.update(arrays)

    def _replace_weights(self, shape: int, arrays: Mapping[str, np.ndarray]) -> None:
        if not arrays:
            return
        instance = self._changeable(shape)
        index = instance.plan.weight_indices()
        for name, array in arrays.items():
            if name not in index:
                raise InputError(
                    "the weights cannot be changed, because for inputs of other shapes the model "
                    f"has no weight `{name}`: give the weights when the model is compiled"
                )
            instance.replace(index[name], array)

    def _changeable(self, shape: int) -> ChangeableInstance:
        """Return the instance for a set of input shapes, in a form whose weights can change."""
        before = self._instances[shape]
        instance = self._instances[shape] = self._shapes.changeable(before, shape)
        if self._instance is before:
            self._instance = instance
        return instance

    def _sizes_of(self, given: Mapping[str | int, Any]) -> dict[int, tuple[int, ...]]:
        """The shapes of the given arrays, by the inputs' positions.

        The result is empty for a model with a single set of input shapes, which never switches to
        another set.
        """
        if len(self._shapes) < 2:
            return {}
        return {self._position(key): shape_of(value) for key, value in given.items()}

    def _input(self, key: str | int) -> Port:
        return self._current_inputs()[self._position(key)]

    def _position(self, key: str | int) -> int:
        check_key(key, "input")
        index = self._input_index.get(key, -1) if isinstance(key, str) else key
        if not 0 <= index < len(self._input_index):
            raise InputError(f"the model has no input `{key}`; it has {self._inputs_in_words()}")
        return index

    def _inputs_in_words(self) -> str:
        return ", ".join(map(described, self._current_inputs()))
