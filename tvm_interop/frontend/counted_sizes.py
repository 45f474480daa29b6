"""Tracks which of a model's numbers are sizes of counted tensors, or are computed from such sizes.

In models that PyTorch exports, `Shape` reads the size of a tensor. This size, perhaps limited by a
constant, becomes an input of `Expand`, `Reshape` or `TopK`. To convert these operators, the
importer must know which count the size is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from .constants import constant_array
from .counted import CountedTensors, ImportedNode

Numbers = np.ndarray[Any, Any]
"""An array of sizes. A size that is a count is a variable, and any other size is an integer."""


class CountedSizes:
    """The tensors of a model that hold sizes of counted tensors."""

    def __init__(self, tensors: CountedTensors) -> None:
        self._tensors = tensors
        self._known: dict[relax.Var, Numbers] = {}
        self._marks: dict[relax.Var, relax.Var] = {}

    def of(self, value: Any) -> Numbers | None:
        """Return the numbers of a tensor of sizes or of a constant; None for other tensors."""
        if isinstance(value, relax.Var):
            return self._known.get(value)
        known = None if value is None else constant_array(value)
        return None if known is None or known.size > 64 else known.astype(object)

    def single(self, value: Any) -> relax.Var | None:
        """Return the count that is the only element of a tensor of sizes, or None."""
        numbers = self.of(value)
        if numbers is None or numbers.size != 1:
            return None
        found = numbers.ravel()[0]
        return found if isinstance(found, relax.Var) else None

    def note(self, bb: relax.BlockBuilder, node: ImportedNode, result: Any) -> Any:
        """Remember the numbers in `result`, if they can be derived from the numbers of the inputs.

        Returns
        -------
        `result`, if its numbers are unknown. Otherwise a constant, if none of the numbers is a
        count, or else a variable for `result`.
        """
        numbers = self._numbers(bb, node)
        if numbers is None:
            return self._marked(bb, node, result)
        result = bb.normalize(result)
        if not any(isinstance(each, relax.Var) for each in numbers.ravel()):
            dtype = str(result.ty.dtype)
            return relax.const(numbers.astype(dtype), dtype)
        variable = bb.emit(result)
        self._known[variable] = numbers
        return variable

    def _marked(self, bb: relax.BlockBuilder, node: ImportedNode, result: Any) -> Any:
        """Remember that `result` is a cast or reshaped mask, if the model has the mask's `NonZero`.

        PyTorch exports the number of true elements of a mask as a `ReduceSum` of the cast mask.
        This number is the count of the `NonZero` of the mask.
        """
        mask = self._mask_of(node.inputs[0]) if node.op_type in ("Cast", "Reshape") else None
        if mask is None:
            return result
        variable = result if isinstance(result, relax.Var) else bb.emit(bb.normalize(result))
        self._marks[variable] = mask
        return variable

    def _mask_of(self, value: Any) -> relax.Var | None:
        if not isinstance(value, relax.Var):
            return None
        mask = self._marks.get(value, value)
        return mask if self._tensors.true_count(mask) is not None else None

    def _numbers(self, bb: relax.BlockBuilder, node: ImportedNode) -> Numbers | None:
        op_type, inputs, attrs = node.op_type, node.inputs, node.attrs
        if op_type == "Shape":
            counted = self._tensors.of(inputs[0])
            if counted is None:
                return None
            sizes = np.array([*counted.shape, None], object)[:-1]
            sizes[counted.axis] = counted.count
            return sizes[slice(attrs.get("start"), attrs.get("end"))]
        if op_type == "ReduceSum" and len(inputs) == 1 and "axes" not in attrs:
            return self._true_count(inputs[0], attrs)
        rule = _RULES.get(op_type)
        if rule is None or not any(value in self._known for value in inputs if _is_var(value)):
            return None
        given = [self.of(value) for value in inputs]
        if any(n is None and value is not None for n, value in zip(given, inputs, strict=True)):
            return None
        if op_type in ("Min", "ReduceMin"):
            return self._least(bb, op_type, given, attrs)
        return self._total(bb, given) if op_type == "Add" else rule(given, attrs)

    def _true_count(self, value: Any, attrs: Mapping[str, Any]) -> Numbers | None:
        mask = self._mask_of(value)
        if mask is None or "int" not in str(value.ty.dtype) or attrs.get("noop_with_empty_axes"):
            return None
        made = np.empty((1,) * int(value.ty.ndim) if attrs.get("keepdims", 1) else (), object)
        made.fill(self._tensors.true_count(mask))
        return made

    def _total(self, bb: relax.BlockBuilder, given: Any) -> Numbers | None:
        """The sum of counts and constants."""
        if any(numbers.size != 1 for numbers in given):
            return None
        made = np.empty(max((numbers.shape for numbers in given), key=len), object)
        made.fill(self._tensors.total(bb, *(numbers.item() for numbers in given)))
        return made

    def _least(
        self, bb: relax.BlockBuilder, op_type: str, given: Any, attrs: Mapping[str, Any]
    ) -> Numbers | None:
        """The minimum of a count and a constant."""
        values = given if op_type == "Min" else given[:1]
        every = [each for numbers in values for each in numbers.ravel()]
        counts = [each for each in every if isinstance(each, relax.Var)]
        others = [int(each) for each in every if not isinstance(each, relax.Var)]
        if len(counts) != 1 or not others or min(others) < 1:
            return None
        ranks = {numbers.ndim for numbers in values}
        if op_type == "Min" and any(numbers.size != 1 for numbers in values):
            return None
        least = self._tensors.at_most(bb, counts[0], min(others))
        kept = (op_type == "Min" and max(ranks)) or (op_type != "Min" and attrs.get("keepdims", 1))
        made = np.empty(1, object)
        made[0] = least
        return made if kept else made.reshape(())


def _is_var(value: Any) -> bool:
    return isinstance(value, relax.Var)


def _gathered(given: Any, attrs: Mapping[str, Any]) -> Numbers | None:
    data, index = given
    if data.ndim != 1 or any(isinstance(each, relax.Var) for each in index.ravel()):
        return None
    return np.asarray(data[index.astype(np.int64)], object)


def _sliced(given: Any, attrs: Mapping[str, Any]) -> Numbers | None:
    if len(given) < 3 or given[0].ndim != 1 or (len(given) > 4 and given[4] is not None):
        return None
    start, end = (int(each.item()) for each in given[1:3])
    made: Numbers = given[0][start : min(end, len(given[0]))]
    return made


def _joined(given: Any, attrs: Mapping[str, Any]) -> Numbers | None:
    return np.concatenate(given) if all(each.ndim == 1 for each in given) else None


def _reshaped(given: Any, attrs: Mapping[str, Any]) -> Numbers | None:
    is_flat = given[0].size == 1 and given[1].tolist() in ([1], [-1])
    return given[0].reshape(1) if is_flat else None


def _unsqueezed(given: Any, attrs: Mapping[str, Any]) -> Numbers | None:
    return given[0].reshape(1) if given[0].ndim == 0 and given[0].size == 1 else None


def _without_dimensions(given: Any, attrs: Mapping[str, Any]) -> Numbers | None:
    return given[0].reshape(()) if given[0].shape == (1,) else None


def _same(given: Any, attrs: Mapping[str, Any]) -> Numbers | None:
    return given[0] if len(given) == 1 else None


_RULES: Mapping[str, Callable[[Any, Mapping[str, Any]], Numbers | None]] = {
    "Add": _same,
    "Cast": _same,
    "Concat": _joined,
    "Gather": _gathered,
    "Identity": _same,
    "Max": _same,
    "Min": _same,
    "ReduceMin": _same,
    "Reshape": _reshaped,
    "Slice": _sliced,
    "Squeeze": _without_dimensions,
    "Unsqueeze": _unsqueezed,
}


def filled(
    tensors: CountedTensors, bb: relax.BlockBuilder, value: Any, sizes: Numbers, origin: str
) -> Any:
    """Return the result of a `ConstantOfShape` if exactly one of `sizes` is a count, else None.

    Parameters
    ----------
    value: the constant that fills the result, as an array with one element.
    """
    one = relax.const(value.reshape(()), str(value.dtype))
    return expanded(tensors, bb, one, sizes, origin)


def expanded(
    tensors: CountedTensors, bb: relax.BlockBuilder, x: Any, sizes: Numbers, origin: str
) -> Any:
    """Return the result of an `Expand` if exactly one of `sizes` is a count, else None."""
    counted = tensors.of(x)
    whole = x if counted is None else counted.whole
    shape = tuple(int(size) for size in whole.ty.shape)
    rank = max(len(shape), len(sizes))
    own = [1] * (rank - len(shape)) + list(shape)
    wanted = [1] * (rank - len(sizes)) + list(sizes)
    axes = [i for i, size in enumerate(wanted) if isinstance(size, relax.Var)]
    if len(axes) != 1:
        return None
    axis, count = axes[0], wanted[axes[0]]
    wanted[axis] = tensors.most(count)
    if counted is not None:
        at = counted.axis + rank - len(shape)
        if at != axis or not counted.count.same_as(count):
            return None
    elif own[axis] != 1:
        return None
    made = [size if size != 1 else had for size, had in zip(wanted, own, strict=True)]
    if prod(made) == 0:
        return None
    wide = bb.emit(relax.op.broadcast_to(bb.emit(relax.op.reshape(whole, own)), made))
    return tensors.standing(bb, wide, axis, count, origin)
