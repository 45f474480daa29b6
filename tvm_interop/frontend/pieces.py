"""Converts ONNX's `Slice` and `Split`, including empty results and slices with negative steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import known_shape, static_shape
from .constants import constant_array
from .empty import empty_constant
from .misfit import MisfitError


def import_slice(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the result of a `Slice`.

    Starts, ends, axes and steps are constant inputs, or attributes in opset 1. Starts and ends
    outside of the tensor are limited as ONNX defines. For example, the end of `x[::-1]` may be any
    large negative number. Return None if the shape of the tensor is unknown or one of these inputs
    is not constant.

    Raises
    ------
    UnsupportedModelError
        A step is 0.
    """
    x = inputs[0]
    shape = static_shape(getattr(x, "ty", None))
    given = _slice_numbers(inputs, attrs)
    if shape is None or given is None:
        return None
    starts, ends, axes, steps = given
    known = constant_array(x)
    sizes = list(shape)
    begins, stops, jumps, along = [], [], [], []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise UnsupportedModelError("its step is 0: the slice would never end")
        axis = _axis(axis, len(shape))
        taken = _taken(start, end, step, shape[axis])
        sizes[axis] = len(taken)
        if known is not None:
            known = np.take(known, taken, axis)
        if len(taken) == shape[axis] and step == 1:
            continue
        begins.append(taken.start)
        # Here, an end of -1 means "before the first element". In TVM it would mean "the last
        # element", so it is replaced by a number below the negative size of the axis.
        stops.append(taken.stop if taken.stop >= 0 else -shape[axis] - 1)
        jumps.append(step)
        along.append(axis)
    # Fold a slice of a constant. The module `fold` cannot do it, because it uses ONNX's reference
    # implementation, which does not limit the starts of slices to the tensor.
    if known is not None:
        return relax.const(known, str(x.ty.dtype))
    if 0 in sizes:
        return empty_constant(sizes, str(x.ty.dtype))
    if not along:
        return x
    return relax.op.strided_slice(x, along, begins, stops, jumps)


def _axis(axis: int, rank: int) -> int:
    """Return `axis`, made positive if it is negative; refuse an axis out of range."""
    if not -rank <= axis < rank:
        raise MisfitError(f"the axis {axis} is out of range for a tensor of {rank} dimensions")
    return axis % rank


def _taken(start: int, end: int, step: int, size: int) -> range:
    """Return the positions of the elements that a slice selects from an axis of `size` elements.

    A start before the first element is replaced by the first element. Python does the same for a
    positive step, but selects no elements for a negative step.
    """
    start, end = (place + size if place < 0 else place for place in (start, end))
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def _slice_numbers(
    inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> tuple[list[int], list[int], list[int], list[int]] | None:
    if "starts" in attrs:
        starts, ends = ([int(i) for i in attrs[name]] for name in ("starts", "ends"))
        axes = [int(i) for i in attrs.get("axes", range(len(starts)))]
        return starts, ends, axes, [1] * len(starts)
    arrays = [None if value is None else constant_array(value) for value in inputs[1:5]]
    arrays += [None] * (4 - len(arrays))
    computed = [v is not None and a is None for v, a in zip(inputs[1:5], arrays, strict=False)]
    if any(computed) or arrays[0] is None or arrays[1] is None:
        return None
    starts, ends = arrays[0].ravel().tolist(), arrays[1].ravel().tolist()
    axes = list(range(len(starts))) if arrays[2] is None else arrays[2].ravel().tolist()
    steps = [1] * len(starts) if arrays[3] is None else arrays[3].ravel().tolist()
    return starts, ends, axes, steps


def import_split(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the parts of a `Split` if a part is empty or there are more than `_MOST_PARTS` parts.

    Return None for any other `Split`, which TVM's converter handles.

    Raises
    ------
    UnsupportedModelError
        The sizes of the parts do not add up to the size of the axis.
    """
    x = inputs[0]
    shape = static_shape(getattr(x, "ty", None))
    sizes = attrs.get("split")
    is_given = len(inputs) > 1 and inputs[1] is not None
    if is_given:
        sizes = constant_array(inputs[1])
    if shape is None or (is_given and sizes is None):
        return None
    axis = _axis(int(attrs.get("axis", 0)), len(shape))
    if sizes is None:
        sizes = _equal_parts(shape[axis], int(attrs["tvm_custom"]["num_outputs"]))
        if not sizes:
            return None
    lengths = [int(size) for size in np.asarray(sizes).ravel()]
    check_lengths(lengths, shape[axis], axis)
    if 0 not in lengths and len(lengths) <= _MOST_PARTS:
        return None
    return relax.Tuple(parts_of(bb, x, axis, lengths))


def check_lengths(lengths: Sequence[int], size: int, axis: int) -> None:
    """Refuse an empty list of parts, and lengths that do not add up to the size of the axis."""
    if min(lengths, default=-1) < 0 or sum(lengths) != size:
        raise MisfitError(
            f"its parts of sizes {lengths} do not add up to the {size} elements of axis {axis}"
        )


def parts_of(bb: relax.BlockBuilder, x: Any, axis: int, lengths: Sequence[int]) -> list[Any]:
    """Cut a tensor of known shape into parts of these lengths, which may be 0, along an axis."""
    shape = known_shape(x)
    parts, begin = [], 0
    for length in lengths:
        if length == 0:
            parts.append(empty_constant([*shape[:axis], 0, *shape[axis + 1 :]], str(x.ty.dtype)))
        elif length == shape[axis]:
            parts.append(x)
        else:
            parts.append(bb.emit(relax.op.strided_slice(x, [axis], [begin], [begin + length])))
        begin += length
    return parts


_MOST_PARTS = 64
"""The largest number of parts of a `Split` node that is left to TVM's converter.

TVM's converter makes one kernel for all parts. LLVM compiles a kernel with many outputs slowly: a
kernel with 500 outputs took a minute. If there are more parts than this, each part becomes a slice.
A slice has its own kernel, or is fused into the kernel that uses it.
"""


def _equal_parts(size: int, number: int) -> list[int]:
    """Return the sizes of `number` equal parts; the last part may be smaller.

    Return an empty list if the last part would have a negative size.
    """
    each = -(-size // number)
    last = size - each * (number - 1)
    return [each] * (number - 1) + [last] if last >= 0 else []
