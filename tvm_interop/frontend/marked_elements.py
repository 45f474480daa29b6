"""Reads and writes the elements of a tensor at the positions where a mask is true.

PyTorch exports `x[mask] = y` and `x[mask].sum()` with a `NonZero`, whose result has the positions
where the mask is true. The number of these positions depends on the mask, but a schedule is made
for fixed shapes. The final results do have fixed shapes. The first is `Where(mask, y, x)`. The
second is a sum over the whole tensor with 0 in place of the elements where the mask is false.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .computed_parts import ComputedParts, Part, StandIn
from .constants import number_like
from .cumulative_sum import import_cumulative_sum

_LOG = logging.getLogger("tvm_interop")
_ELEMENTWISE = {
    *("Abs", "Add", "Cast", "Ceil", "Clip", "Cos", "Div", "Erf", "Exp", "Floor", "Log", "Max"),
    *("Min", "Mul", "Neg", "Pow", "Reciprocal", "Relu", "Sigmoid", "Sin", "Softplus", "Sqrt"),
    *("Sub", "Tanh"),
}
_WRITTEN: Mapping[str, Callable[[Any, Any], Any]] = {
    "none": lambda _, new: new,
    "add": relax.op.add,
    "mul": relax.op.multiply,
}
"""The functions by which `ScatterND` combines the old and the new value of an element, by the value
of its attribute `reduction`.
"""


@dataclass(frozen=True)
class _Places(StandIn):
    """The positions at which a mask is true.

    Attributes
    ----------
    given: the mask that is the input of `NonZero`.
    mask: the mask `given` without its last dimensions, if its values do not vary along them.
    is_turned: whether each position is a row of the tensor, as `GatherND` needs it. In the result
        of `NonZero`, each position is a column.
    """

    given: relax.Var
    mask: relax.Var
    is_turned: bool = False


@dataclass(frozen=True)
class _Repeated(StandIn):
    """A tensor that is repeated. The model computes the number of repetitions when it runs."""

    one: relax.Expr


class MarkedElements(ComputedParts):
    """The tensors of a model whose size depends on a mask or on a computed number of
    repetitions.
    """

    def places(self, bb: relax.BlockBuilder, inputs: Sequence[Any], error: Exception) -> Any:
        """Return a variable that represents the result of a `NonZero`; None if it is not supported.

        Parameters
        ----------
        error: the error for a node that needs the positions as a tensor.
        """
        x = inputs[0]
        shape = static_shape(getattr(x, "ty", None))
        if not shape or not isinstance(x, relax.Var):
            return None
        mask = x
        if str(x.ty.dtype) != "bool":
            mask = bb.emit(relax.op.not_equal(x, number_like(x, 0)))
        return self._standing(bb, _Places(_refusal(error), mask, _rows(bb, mask)), mask)

    def repeated(self, bb: relax.BlockBuilder, inputs: Sequence[Any], error: Exception) -> Any:
        """Return a variable that represents the result of an `Expand` to a computed shape."""
        x = inputs[0]
        if static_shape(getattr(x, "ty", None)) is None:
            return None
        return self._standing(bb, _Repeated(_refusal(error), x), x)

    def result(
        self,
        bb: relax.BlockBuilder,
        op_type: str,
        inputs: Any,
        attrs: Mapping[str, Any],
        compute: Callable[[Any], Any],
    ) -> Any:
        """Return the result of a node that reads a tensor of computed size; None for other nodes.

        Parameters
        ----------
        compute: a function that computes the node for the inputs that it is given.

        Raises
        ------
        UnsupportedModelError
            The result cannot be computed. The error names the node that made the tensor.
        """
        found = [self._parts[value] if value in self else None for value in inputs]
        first: Any = next((each for each in found if each is not None), None)
        if first is None or op_type == "Identity":
            return self.converted(bb, op_type, inputs, attrs)
        if op_type == "GatherND":
            return self._taken(bb, inputs, found, attrs)
        if op_type == "ScatterND":
            return self._written(bb, inputs, found, attrs)
        if isinstance(first, _Places):
            return self._of_places(bb, op_type, inputs[0], first, attrs)
        if op_type in ("Expand", "Reshape") and found[0] is first:
            # The size that the node gives the tensor is not checked here. If the elements do not
            # fit the positions of the `ScatterND` that writes them, this `ScatterND` fails.
            if isinstance(first, Part) and first.mask is not None:
                flat = Part(first.why_not, first.whole, -1, first.inside, first.mask)
                return self._standing(bb, flat, inputs[0])
            if isinstance(first, _Repeated):
                return inputs[0]
        if op_type in _ELEMENTWISE and isinstance(first, Part):
            return self._elementwise(bb, inputs, found, first, compute)
        if isinstance(first, _Repeated) or first.axis < 0:
            raise first.why_not
        return self.converted(bb, op_type, inputs, attrs)

    def _standing(self, bb: relax.BlockBuilder, stand_in: StandIn, x: Any) -> Any:
        variable = bb.emit(x)
        self._parts[variable] = stand_in
        return variable

    def _of_places(
        self,
        bb: relax.BlockBuilder,
        op_type: str,
        x: Any,
        places: _Places,
        attrs: Mapping[str, Any],
    ) -> Any:
        """Return the result of a `Transpose` or `Shape` of the positions at which a mask is
        true.
        """
        if op_type == "Transpose" and list(attrs.get("perm", (1, 0))) == [1, 0]:
            turned = _Places(places.why_not, places.given, places.mask, not places.is_turned)
            return self._standing(bb, turned, x)
        if op_type == "Shape" and not attrs.get("start", 0) and attrs.get("end") is None:
            return bb.normalize(_shape_of(bb, places))
        raise places.why_not

    def _taken(
        self,
        bb: relax.BlockBuilder,
        inputs: Any,
        found: Sequence[Any],
        attrs: Mapping[str, Any],
    ) -> Any:
        """Return a variable that represents the elements at which a mask is true."""
        data, places = inputs[0], found[1]
        if not isinstance(places, _Places) or found[0] is not None or not places.is_turned:
            raise next(each for each in found if each is not None).why_not
        if int(attrs.get("batch_dims", 0)):
            raise places.why_not
        shape, rows = static_shape(getattr(data, "ty", None)), static_shape(places.mask.ty)
        if shape is None or rows is None or rows != shape[: int(places.given.ty.ndim)]:
            raise places.why_not
        count, rest = int(np.prod(rows)), shape[len(rows) :]
        whole = bb.emit(relax.op.reshape(data, (count, *rest)))
        inside = bb.emit(relax.op.reshape(places.mask, (count, *[1] * len(rest))))
        return self._standing(bb, Part(places.why_not, whole, 0, inside, places.mask), whole)

    def _elementwise(
        self,
        bb: relax.BlockBuilder,
        inputs: Any,
        found: Sequence[Any],
        first: Part,
        compute: Callable[[Any], Any],
    ) -> Any:
        """Compute an elementwise operator on whole tensors. The mask of the input's elements is
        also the mask of the result's elements.
        """
        shape = static_shape(first.whole.ty)
        for value, part in zip(inputs, found, strict=True):
            if isinstance(part, Part):
                fits = part.mask is first.mask and static_shape(part.whole.ty) == shape
                fits = fits and part.axis == first.axis
            else:
                own = () if value is None else static_shape(getattr(value, "ty", None))
                fits = own is not None and all(size == 1 for size in own)
                fits = fits and part is None and len(own or ()) <= len(shape or ())
            if not fits or first.mask is None:
                raise first.why_not
        whole = [
            value if part is None else part.whole for value, part in zip(inputs, found, strict=True)
        ]
        result = bb.emit(compute(type(inputs)(whole)))
        part = Part(first.why_not, result, first.axis, first.inside, first.mask)
        return self._standing(bb, part, result)

    def _written(
        self,
        bb: relax.BlockBuilder,
        inputs: Any,
        found: Sequence[Any],
        attrs: Mapping[str, Any],
    ) -> Any:
        """Return the result of a `ScatterND` to the positions at which a mask is true."""
        why_not = next(each for each in found if each is not None).why_not
        data, (old, places, updates) = inputs[0], found
        shape = static_shape(getattr(data, "ty", None))
        kind = attrs.get("reduction", "none")
        combined = _WRITTEN.get(kind.decode() if isinstance(kind, bytes) else kind)
        if old is not None or not isinstance(places, _Places) or not places.is_turned:
            raise why_not
        rows = static_shape(places.mask.ty)
        if shape is None or rows is None or rows != shape[: len(rows)] or combined is None:
            raise why_not
        new = _new_values(bb, places, updates, shape)
        if new is None:
            raise why_not
        mask = bb.emit(relax.op.reshape(places.mask, (*rows, *[1] * (len(shape) - len(rows)))))
        return bb.normalize(relax.op.where(mask, bb.emit(combined(data, new)), data))


def _new_values(
    bb: relax.BlockBuilder, places: _Places, updates: Any, shape: tuple[int, ...]
) -> Any:
    """Return the values that are written, as a tensor that broadcasts to `shape`; None if that
    fails.
    """
    if isinstance(updates, Part) and updates.mask is places.mask:
        own = static_shape(updates.whole.ty)
        if own is not None and np.prod(own) == np.prod(shape):
            return bb.emit(relax.op.reshape(updates.whole, shape))
    if isinstance(updates, Part) and updates.first is not None:
        return _one_after_another(bb, places, updates, shape)
    if isinstance(updates, _Repeated):
        own = static_shape(updates.one.ty) or ()
        own = own[next((i for i, size in enumerate(own) if size != 1), len(own)) :]
        # The repeated tensor must fill whole rows, and the mask must be the same for all elements
        # of a row.
        rows = static_shape(places.mask.ty) or ()
        if len(own) <= len(shape) - len(rows) and own == shape[len(shape) - len(own) :]:
            row = bb.emit(relax.op.reshape(updates.one, own))
            return bb.emit(relax.op.broadcast_to(row, shape))
    return None


def _one_after_another(
    bb: relax.BlockBuilder, places: _Places, part: Part, shape: tuple[int, ...]
) -> Any:
    """Return a tensor that has the elements of `part`, in order, at the positions where the mask is
    true.

    This function converts PyTorch's `masked_scatter`. If `part` has fewer elements than the mask
    has true values, NaN takes the place of the missing elements. Return None if the shapes do not
    fit, or if the elements are not floats.
    """
    size = static_shape(part.whole.ty) or ()
    if len(size) != 1 or static_shape(places.given.ty) != shape:
        return None
    if "float" not in str(part.whole.ty.dtype):
        return None
    _LOG.warning(
        "node %s gives one element for each position where a mask is true: if it has fewer "
        "elements than there are such positions, the missing results are NaN",
        part.why_not.node,
    )
    marks = bb.emit(relax.op.reshape(places.given, (int(np.prod(shape)),)))
    marks = bb.emit(relax.op.astype(marks, "int64"))
    counts = bb.emit(import_cumulative_sum(bb, [marks, relax.const(0, "int64")], {}))
    before = bb.emit(relax.op.subtract(counts, relax.const(1, "int64")))
    first = bb.emit(relax.op.maximum(part.first, number_like(part.first, 0)))
    index = bb.emit(relax.op.add(before, first))
    safe = bb.emit(relax.op.clip(index, 0, size[0] - 1))
    taken = bb.emit(relax.op.take(part.whole, safe, 0, mode="clip"))
    is_before_end = bb.emit(relax.op.less(index, relax.const(size[0], "int64")))
    is_inside = bb.emit(relax.op.take(part.inside, safe, 0, mode="clip"))
    is_there = bb.emit(relax.op.logical_and(is_before_end, is_inside))
    new = bb.emit(relax.op.where(is_there, taken, number_like(taken, np.nan)))
    return bb.emit(relax.op.reshape(new, shape))


def _shape_of(bb: relax.BlockBuilder, places: _Places) -> Any:
    marks = bb.emit(relax.op.astype(places.given, "int64"))
    count = bb.emit(relax.op.reshape(bb.emit(relax.op.sum(marks)), (1,)))
    rank = relax.const(np.array([int(places.given.ty.ndim)]), "int64")
    return relax.op.concat([count, rank] if places.is_turned else [rank, count], 0)


def _rows(bb: relax.BlockBuilder, mask: Any) -> Any:
    """Return a mask with one boolean for each row, if `mask` repeats each boolean for all elements
    of a row.

    Return `mask` itself if it does not repeat the booleans of rows.
    """
    shape = static_shape(mask.ty) or ()
    wide = bb.lookup_binding(mask)
    if not isinstance(wide, relax.Call) or getattr(wide.op, "name", "") != "relax.broadcast_to":
        return mask
    narrow = wide.args[0]
    sizes = static_shape(narrow.ty) or ()
    kept = len(sizes)
    while kept > 1 and sizes[kept - 1] == 1:
        kept -= 1
    is_of_rows = len(sizes) == len(shape) and sizes[:kept] == shape[:kept]
    if not is_of_rows or not isinstance(narrow, relax.Var):
        return mask
    before = bb.lookup_binding(narrow)
    is_same = isinstance(before, relax.Call) and getattr(before.op, "name", "") in (
        "relax.expand_dims",
        "relax.reshape",
    )
    if is_same and static_shape(before.args[0].ty) == shape[:kept]:
        return before.args[0]
    return bb.emit(relax.op.reshape(narrow, shape[:kept]))


def _refusal(error: Exception) -> UnsupportedModelError:
    return UnsupportedModelError(str(error), getattr(error, "node", ""))
