"""Reads outputs whose size along an axis depends on values that the model computes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .._native.runtime import Port
from ..errors import InputError
from .instance import PlanInstance
from .native import NativeInstance

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact


class CountedOutputs:
    """The outputs of a model whose size along an axis depends on values that the model computes.

    Attributes
    ----------
    axes: for each such output, by its position, the axis whose size depends on computed values.
    """

    def __init__(self, artifact: Artifact, *, is_remote: bool = False) -> None:
        """List the outputs.

        Parameters
        ----------
        is_remote: whether a server runs the model.
        """
        self._artifact = artifact
        if artifact.native is not None and not is_remote:
            self.axes = artifact.native.counted_axes
        else:
            self.axes = {each.output: each.axis for each in artifact.manifest.counted}

    def __contains__(self, position: int) -> bool:
        return position in self.axes

    @cached_property
    def _counts(self) -> dict[int, int]:
        """The position, among the plan's outputs, of the computed size of each output in `axes`.

        The plan has one more output for each computed size.

        Only instances that Python code makes need the positions of computed sizes. The native
        library itself knows the sizes for the models that it has loaded.
        """
        return {each.output: each.count for each in self._artifact.manifest.counted}

    def of_model(self, outputs: Sequence[Port]) -> list[Port]:
        """Return the outputs of the model: the plan's outputs without the computed sizes."""
        return list(outputs[: min(self._counts.values())]) if self.axes else list(outputs)

    def read(self, instance: PlanInstance, position: int) -> np.ndarray:
        """Return an output of the latest run, cut to its computed size.

        The next run may change the array.
        """
        array = instance.read(instance.outputs[position].value)
        if position not in self.axes:
            return array
        axis = self.axes[position]
        return array[(slice(None),) * axis + (slice(0, self._size(instance, position)),)]

    def _size(self, instance: PlanInstance, position: int) -> int:
        if isinstance(instance, NativeInstance):
            return instance.size_of(position)
        count = instance.read(instance.outputs[self._counts[position]].value)
        most = instance.outputs[position].shape[self.axes[position]]
        return min(max(int(count[0]), 0), most)

    def open_shape(self, port: Port, position: int) -> tuple[int | str, ...]:
        """Return the shape of an output, with a name in place of a size that the model computes."""
        shape: list[int | str] = list(port.shape)
        if position in self.axes:
            shape[self.axes[position]] = f"{port.name}_count"
        return tuple(shape)

    def refuse(self, port: Port, position: int, what: str) -> None:
        """Refuse a use that needs the size of an output before the run computes it.

        Raises
        ------
        InputError
            The size of the output depends on values that the model computes.
        """
        if position in self.axes:
            raise InputError(
                f"the size of output `{port.name}` depends on computed values, so the output "
                f"cannot {what}: take it with `get_output` after the run"
            )
