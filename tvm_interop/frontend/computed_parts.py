"""Reduces a part of a tensor, such as a slice, whose bounds are computed when the model runs.

A schedule is made for fixed shapes, so a slice of unknown size cannot be stored. But the sum of its
elements has a fixed shape. It equals the sum over the whole tensor with 0 in place of the elements
outside of the slice. PyTorch exports an `EmbeddingBag` with offsets as sums over such slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .constants import constant_array, number_like
from .indices import bounded
from .reductions import import_reduction, reduced_axes

REDUCTIONS = {
    "ReduceL1": 0.0,
    "ReduceL2": 0.0,
    "ReduceLogSum": 0.0,
    "ReduceLogSumExp": -np.inf,
    "ReduceMax": -np.inf,
    "ReduceMean": 0.0,
    "ReduceMin": np.inf,
    "ReduceProd": 1.0,
    "ReduceSum": 0.0,
    "ReduceSumSquare": 0.0,
}
"""For each reduction, a number that does not change its result. It replaces elements outside of the
part.

For an integer type, the smallest or largest number of this type is used in place of infinity.
"""


@dataclass(frozen=True)
class StandIn:
    """Describes a tensor of the model that is not stored, because its size is computed in each run.

    Attributes
    ----------
    why_not: the error for a node that cannot use the tensor.
    """

    why_not: UnsupportedModelError


@dataclass(frozen=True)
class Part(StandIn):
    """A part of a tensor, such as a slice: some of its elements along an axis.

    Attributes
    ----------
    whole: the tensor from which the elements of the part are selected.
    axis: the axis along which elements are selected, or -1 for a part that was reshaped.
    inside: a tensor of booleans, which says for each index of the axis whether it is in the part.
        It has as many axes as `whole`.
    mask: the mask that selects the elements of the part; None if the part lies between two bounds.
    first: the index of the first element of a part that lies between two bounds; None if unknown.
    """

    whole: relax.Var
    axis: int
    inside: relax.Var
    mask: relax.Var | None = None
    first: relax.Var | None = None


class ComputedParts:
    """The tensors of an imported model that are slices with computed bounds."""

    def __init__(self) -> None:
        self._parts: dict[relax.Var, Any] = {}

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, relax.Var) and value in self._parts

    def check(self, values: Sequence[Any]) -> None:
        """Refuse tensors that are slices with computed bounds."""
        for value in values:
            if value in self:
                raise self._parts[value].why_not

    def cut(self, bb: relax.BlockBuilder, inputs: Sequence[Any], error: Exception) -> Any:
        """Return a variable that represents the result of a `Slice` with computed bounds.

        Return None for a slice along several axes, with a step, or with a constant start and end.

        Parameters
        ----------
        error: the error for a node that needs the elements of the part in order.
        """
        x, start, end, axes, step = (*inputs, None, None, None)[:5]
        shape = static_shape(getattr(x, "ty", None))
        places = [axes, step]
        known = [None if value is None else constant_array(value) for value in places]
        late = any(v is not None and k is None for v, k in zip(places, known, strict=True))
        bounds = [static_shape(getattr(value, "ty", None)) for value in (start, end)]
        if late or shape is None or bounds != [(1,), (1,)] or not isinstance(x, relax.Var):
            return None
        if known[1] is not None and known[1].tolist() != [1]:
            return None
        axis = 0 if known[0] is None else int(known[0].item()) % len(shape)
        low, high = (from_the_first(bb, value, shape[axis]) for value in (start, end))
        index = relax.const(np.arange(shape[axis]), "int64")
        after = bb.emit(relax.op.greater_equal(index, low))
        inside = bb.emit(relax.op.logical_and(after, bb.emit(relax.op.less(index, high))))
        sizes = [1] * len(shape)
        sizes[axis] = shape[axis]
        inside = bb.emit(relax.op.reshape(inside, sizes))
        part = bb.emit(x)
        why_not = UnsupportedModelError(str(error), getattr(error, "node", ""))
        self._parts[part] = Part(why_not, x, axis, inside, first=low)
        return part

    def converted(
        self, bb: relax.BlockBuilder, op_type: str, inputs: Any, attrs: Mapping[str, Any]
    ) -> Any:
        """Return the result of a node that reads a slice with computed bounds, or None for other
        nodes.

        Raises
        ------
        UnsupportedModelError
            The node is not a reduction along the axis of the part. The error names the `Slice`.
        """
        if op_type == "Gather" and inputs[1] in self and inputs[0] not in self:
            return self._gathered(bb, inputs[0], self._parts[inputs[1]], attrs)
        part = self._parts[inputs[0]] if len(inputs) and inputs[0] in self else None
        if part is not None and op_type == "Identity":
            return inputs[0]
        if part is None or op_type not in REDUCTIONS:
            self.check(inputs)
            return None
        self.check(inputs[1:])
        return reduced_inside(bb, op_type, inputs, attrs, part)

    def _gathered(
        self, bb: relax.BlockBuilder, x: Any, part: Part, attrs: Mapping[str, Any]
    ) -> Any:
        """Return a variable for the slices of `x` that a `Gather` takes, if its indices are a part
        with computed bounds.
        """
        shape = static_shape(getattr(x, "ty", None))
        if shape is None:
            raise part.why_not
        axis = int(attrs.get("axis", 0)) % len(shape)
        places = bounded(bb, part.whole, np.array(shape[axis]))
        whole = bb.emit(relax.op.take(x, places, axis, mode="clip"))
        sizes = [1] * int(whole.ty.ndim)
        sizes[axis + part.axis] = int(part.whole.ty.shape[part.axis])
        inside = bb.emit(relax.op.reshape(part.inside, sizes))
        taken = bb.emit(whole)
        self._parts[taken] = Part(part.why_not, whole, axis + part.axis, inside)
        return taken


def reduced_inside(
    bb: relax.BlockBuilder, op_type: str, inputs: Any, attrs: Mapping[str, Any], part: Part
) -> Any:
    """Return the result of a reduction whose first input is a slice with computed bounds.

    Raises
    ------
    UnsupportedModelError
        The reduction is not along the axis of the part, or does not support the part's dtype.
    """
    dtype = str(part.whole.ty.dtype)
    axes = reduced_axes(inputs, attrs, int(part.whole.ty.ndim))
    is_mean = op_type == "ReduceMean"
    if part.axis not in axes or dtype == "bool" or (is_mean and "float" not in dtype):
        raise part.why_not
    outside = relax.const(_limited(REDUCTIONS[op_type], dtype), dtype)
    filled = bb.emit(relax.op.where(part.inside, part.whole, outside))
    given = type(inputs)([filled, *inputs[1:]])
    if not is_mean:
        return bb.normalize(import_reduction(bb, op_type, given, attrs))
    total = bb.emit(import_reduction(bb, "ReduceSum", given, attrs))
    others = [int(part.whole.ty.shape[axis]) for axis in axes if axis != part.axis]
    # The mean of no elements is 0 in onnxruntime. So the sum, which is 0 then, is divided by 1 and
    # not by 0. The elements are counted in float32, which is exact up to 2**24. In float16, counts
    # would be exact only up to 2**11.
    count = bb.emit(relax.op.sum(bb.emit(relax.op.astype(part.inside, "float32"))))
    number = bb.emit(relax.op.multiply(count, number_like(count, float(np.prod(others)))))
    number = bb.emit(relax.op.maximum(number, number_like(number, 1.0)))
    if dtype == "float16":
        wide = bb.emit(relax.op.divide(bb.emit(relax.op.astype(total, "float32")), number))
        return bb.normalize(relax.op.astype(wide, dtype))
    return bb.normalize(relax.op.divide(total, bb.emit(relax.op.astype(number, dtype))))


def from_the_first(bb: relax.BlockBuilder, place: Any, size: int) -> Any:
    """Return `place` counted from the start. Negative positions count from the end."""
    wide = place if str(place.ty.dtype) == "int64" else bb.emit(relax.op.astype(place, "int64"))
    is_negative = bb.emit(relax.op.less(wide, relax.const(0, "int64")))
    from_end = bb.emit(relax.op.add(wide, relax.const(size, "int64")))
    return bb.emit(relax.op.where(is_negative, from_end, wide))


def _limited(value: float, dtype: str) -> float | int:
    if "float" in dtype:
        return value
    ends = np.iinfo(dtype)
    return int(ends.min if value == -np.inf else ends.max if value == np.inf else value)
