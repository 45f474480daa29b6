"""Chooses how to compute a tensor whose size depends on the numbers in other tensors.

There are two ways to compute a tensor of selected elements. `marked_elements` and `computed_parts`
keep the whole tensor and add a mask that marks the selected elements. This is cheap, but few
operators can read such a tensor. `counted` moves the selected elements to the front, which costs a
pass over the tensor. So the whole tensor and its mask are kept until an operator needs the selected
elements in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .counted import CountedTensors, ImportedNode, why_not
from .counted_rules import with_counts
from .counted_sizes import CountedSizes
from .marked_elements import MarkedElements


class CountedParts(MarkedElements):
    """The tensors of a model whose size is computed when the model runs.

    Attributes
    ----------
    counted: the tensors that have a count (see `counted.Counted`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.counted = CountedTensors()
        self._sizes = CountedSizes(self.counted)
        # For each tensor whose elements are selected by a mask, the node that computed the tensor.
        self._recipes: dict[relax.Var, ImportedNode] = {}
        self._moved: dict[relax.Var, Any] = {}

    def has_static_shape(self, value: Any) -> bool:
        """Whether the shape of a tensor is the same in each run."""
        return value not in self and value not in self.counted

    def check(self, values: Sequence[Any]) -> None:
        """Refuse tensors whose size depends on computed values."""
        super().check(values)
        self.counted.check(values)

    def made(self, bb: relax.BlockBuilder, op_type: str, inputs: Any, error: Exception) -> Any:
        """Return a variable for a result without a fixed shape; None if the node is not supported.

        Parameters
        ----------
        error: the error for a node that cannot read the result.
        """
        makers = {"Expand": self.repeated, "NonZero": self.places, "Slice": self.cut}
        maker = makers.get(op_type)
        return None if maker is None else maker(bb, inputs, error)

    def computed(self, bb: relax.BlockBuilder, node: ImportedNode) -> Any:
        """Return the result of a node.

        Raises
        ------
        UnsupportedModelError
            The node cannot read a tensor whose size depends on computed values.
        """
        given = node
        if any(value in self.counted for value in node.inputs):
            given = self._moved_inputs(bb, node)
        result = with_counts(self.counted, self._sizes, bb, given)
        if result is not None:
            return self._sizes.note(bb, given, result)
        try:
            result = self.result(bb, node.op_type, node.inputs, node.attrs, node.compute)
            if result is None:
                result = node.compute(node.inputs)
        except UnsupportedModelError:
            moved = self._counted_result(bb, node)
            if moved is None:
                raise
            return moved
        if result in self:
            self._recipes.setdefault(result, node)
            return result
        return self._sizes.note(bb, self._known_to_sizes(bb, node), result)

    def outputs(self, bb: relax.BlockBuilder, values: Sequence[Any]) -> list[Any]:
        """Return the outputs of the model. An output whose elements are selected by a mask is
        replaced by a counted tensor.

        Raises
        ------
        UnsupportedModelError
            An output is a slice with computed bounds.
        """
        return list(self._all_moved(bb, list(values)))

    def selected(self, bb: relax.BlockBuilder, condition: Any, then: Any, otherwise: Any) -> Any:
        """Return the result of an `If` whose branches give computed sizes; None if both are fixed.

        Parameters
        ----------
        then, otherwise: the results of the two branches. `otherwise` may be None.

        Raises
        ------
        UnsupportedModelError
            A result is a slice with computed bounds, or the shapes of the results differ in more
            than their counts.
        """
        pair = [then, otherwise]
        if all(value is None or self.has_static_shape(value) for value in pair):
            return None
        pair = self._all_moved(bb, pair)
        found = [self.counted.of(value) for value in pair]
        first: Any = next(each for each in found if each is not None)
        counts, wholes = [], []
        for value, each in zip(pair, found, strict=True):
            shape = static_shape(getattr(value, "ty", None))
            empty = (*first.shape[: first.axis], 0, *first.shape[first.axis + 1 :])
            if each is not None and (each.axis, each.shape) == (first.axis, first.shape):
                counts.append(each.count)
                wholes.append(each.whole)
            elif each is None and shape == empty and value.ty.dtype == first.whole.ty.dtype:
                counts.append(relax.const(np.zeros(1, np.int64), "int64"))
                wholes.append(first.whole)
            else:
                raise UnsupportedModelError(why_not(first))
        count = bb.emit(relax.op.where(condition, *counts))
        whole = wholes[0] if wholes[0].same_as(wholes[1]) else relax.op.where(condition, *wholes)
        return self.counted.standing(bb, whole, first.axis, count, first.origin)

    def _known_to_sizes(self, bb: relax.BlockBuilder, node: ImportedNode) -> ImportedNode:
        """Return a `Shape` node that reads a counted tensor in place of a tensor with a mask.

        Other nodes are returned unchanged.

        A count may turn out not to be needed. Lowering then removes the operators that compute it.
        """
        if node.op_type != "Shape" or not any(value in self for value in node.inputs):
            return node
        try:
            return self._moved_inputs(bb, node)
        except UnsupportedModelError:
            return node

    def _counted_result(self, bb: relax.BlockBuilder, node: ImportedNode) -> Any:
        """Replace each input that has a mask by a counted tensor, and then compute the node.

        Return None if the node cannot be computed in this way.
        """
        if not any(value in self for value in node.inputs):
            return None
        try:
            moved = self._moved_inputs(bb, node)
            result = with_counts(self.counted, self._sizes, bb, moved)
        except UnsupportedModelError:
            return None
        return None if result is None else self._sizes.note(bb, moved, result)

    def _moved_inputs(self, bb: relax.BlockBuilder, node: ImportedNode) -> ImportedNode:
        """Return the node, with each input that has a mask replaced by a counted tensor."""
        return node._replace(inputs=self._all_moved(bb, node.inputs))

    def _all_moved(self, bb: relax.BlockBuilder, values: Any) -> Any:
        moved = [self._with_count(bb, value) if value in self else value for value in values]
        return type(values)(moved)

    def _with_count(self, bb: relax.BlockBuilder, value: relax.Var) -> Any:
        """Return the counted tensor that has the elements selected by the mask of a tensor.

        Raises
        ------
        UnsupportedModelError
            The tensor is a slice with computed bounds, or was computed from one.
        """
        if value in self._moved:
            return self._moved[value]
        recipe = self._recipes.get(value)
        if recipe is None:
            raise self._parts[value].why_not
        if recipe.op_type == "NonZero":
            result = self.counted.places(bb, recipe.inputs[0], recipe.name)
        else:
            result = with_counts(self.counted, self._sizes, bb, self._moved_inputs(bb, recipe))
        if result not in self.counted:
            raise self._parts[value].why_not
        self._moved[value] = result
        return result
