"""The instances of a module, one for each set of input shapes that it has met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from .._native.runtime import Port
from ..errors import InputError
from .arrays import check_key, described, shape_of
from .instance import ChangeableInstance, ClosedInstance, PlanInstance
from .open_instance import Shapes


class ShapedInstances:
    """Opens an instance for a set of input shapes when it is needed, and keeps it."""

    def __init__(self, shapes: Shapes, first: PlanInstance) -> None:
        """Begin with the instance for the first set of input shapes."""
        self._shapes = shapes
        self._instance = first
        self._instances: dict[int, PlanInstance] = {0: self._instance}
        self._params: dict[str, np.ndarray] = {}
        self._input_index = {port.name: i for i, port in enumerate(first.inputs)}

    def _drop_instances(self) -> None:
        self._instance = cast(PlanInstance, ClosedInstance())
        self._instances.clear()
        self._params.clear()

    def _take_fitting_shape(self, sizes: Mapping[int, tuple[int, ...]]) -> None:
        """Switch to the plan for inputs of these shapes, unless it is the current plan.

        Inputs that are not in `sizes` keep their values.

        Parameters
        ----------
        sizes: shapes by the inputs' positions.

        Raises
        ------
        InputError
            There is no such plan, or an input that is not in `sizes` has another shape in it.
        """
        if all(self._instance.inputs[i].shape == size for i, size in sizes.items()):
            return
        shape = self._shapes.fitting(sizes)
        kept = {}
        for i, port in enumerate(self._instance.inputs):
            wanted = self._shapes.inputs[shape][i].shape
            if i in sizes:
                continue
            if port.shape != wanted:
                raise InputError(
                    f"input `{port.name}` changes its shape too, to {wanted}: give it in the same "
                    "call"
                )
            kept[i] = self._instance.read(port.value).copy()
        if shape not in self._instances:
            self._instances[shape] = self._shapes.open(shape)
            self._replace_weights(shape, self._params)
        self._instance = self._instances[shape]
        for i, array in kept.items():
            self._instance.write(self._instance.inputs[i].value, array)

    def _set_weights(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set weights by name, in all instances that there are and will be."""
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
                    f"for inputs of other shapes the model has no weight `{name}`: give the "
                    "weights when the model is compiled"
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
        """The shapes of the given arrays by the inputs' positions, if the module has a choice."""
        if len(self._shapes) < 2:
            return {}
        return {self._position(key): shape_of(value) for key, value in given.items()}

    def _input(self, key: str | int) -> Port:
        return self._instance.inputs[self._position(key)]

    def _position(self, key: str | int) -> int:
        check_key(key, "input")
        index = self._input_index.get(key, -1) if isinstance(key, str) else key
        if not 0 <= index < len(self._input_index):
            raise InputError(f"the model has no input `{key}`; it has {self._inputs_in_words()}")
        return index

    def _inputs_in_words(self) -> str:
        return ", ".join(map(described, self._instance.inputs))
