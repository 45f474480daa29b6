"""The operators that can read a tensor whose size is computed when the model runs.

Such a tensor is called counted, and its size is its count (see `counted`). Each rule says which
count the result of an operator has. A rule must be right for every count from 0 to the largest
size, and for any numbers in the elements beyond the count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from tvm import relax

from ..errors import UnsupportedModelError
from .computed_parts import REDUCTIONS, Part, reduced_inside
from .constants import constant_array
from .counted import Counted, CountedTensors, ImportedNode, Node, shape_of, why_not
from .counted_joins import joined
from .counted_makers import MAKERS
from .counted_scatters import elements_scattered, rows_scattered
from .counted_sizes import CountedSizes, expanded, filled
from .reductions import reduced_axes
from .top_k import import_top_k

_ELEMENTWISE = frozenset(
    {
        "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp",
        "Floor", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN",
        "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or",
        "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Sub",
        "Sum", "Tanh", "Where", "Xor",
    }
)  # fmt: skip
"""Elementwise operators: an element of the result depends only on the same elements of the inputs.
"""


def with_counts(
    tensors: CountedTensors,
    sizes: CountedSizes,
    bb: relax.BlockBuilder,
    imported: ImportedNode,
) -> Any:
    """Return the result of a node that reads or makes a counted tensor; None for other nodes.

    Parameters
    ----------
    sizes: the tensors that hold sizes of counted tensors.

    Raises
    ------
    UnsupportedModelError
        The node cannot read a tensor with a count.
    """
    op_type = imported.op_type
    found = tuple(tensors.of(value) for value in imported.inputs)
    node = Node(*imported, found)
    makes = MAKERS.get(op_type)
    if makes is not None:
        return makes(tensors, bb, node)
    result = _of_sizes(tensors, sizes, bb, node)
    if result is not None or all(each is None for each in found):
        return result
    if op_type in _ELEMENTWISE:
        return _elementwise(tensors, bb, node)
    if op_type in REDUCTIONS or op_type in ("ArgMax", "ArgMin"):
        return _reduced(tensors, bb, node)
    rule = _RULES.get(op_type)
    if rule is None:
        raise node.refused()
    return rule(tensors, bb, node)


# Nodes that read a count as a number, such as a size for `Reshape`.


def _of_sizes(
    tensors: CountedTensors, sizes: CountedSizes, bb: relax.BlockBuilder, node: Node
) -> Any:
    """Return the result of a node that reads the sizes of a tensor, one of which is a count.

    Return None for a node that reads no such sizes.
    """
    if node.op_type == "ConstantOfShape":
        shape = sizes.of(node.inputs[0])
        given = node.attrs.get("value")
        value = np.zeros(1, np.float32) if given is None else onnx.numpy_helper.to_array(given)
        return None if shape is None else filled(tensors, bb, value, shape, node.name)
    if node.op_type not in ("Expand", "Reshape", "TopK") or len(node.inputs) < 2:
        return None
    numbers, first = sizes.of(node.inputs[1]), node.found[0]
    if numbers is None:
        return None
    if node.op_type == "Expand":
        if shape_of(node.inputs[0]) is None:
            return None
        origin = node.name if first is None else first.origin
        return expanded(tensors, bb, node.inputs[0], numbers, origin)
    if first is None:
        return None
    if node.op_type == "Reshape":
        counts = [each for each in numbers if isinstance(each, relax.Var)]
        if len(counts) != 1 or any(each == -1 for each in numbers if isinstance(each, int)):
            return None
        wanted = [-1 if isinstance(each, relax.Var) else int(each) for each in numbers]
        result = _reshaped(tensors, bb, node, wanted)
        made = tensors.of(result)
        if made is None or not made.count.same_as(counts[0]):
            raise node.refused()
        return result
    number = sizes.single(node.inputs[1])
    axis = int(node.attrs.get("axis", -1)) % len(first.shape)
    if number is None or axis != first.axis or not tensors.is_at_most(number, first.count):
        return None
    return _best(tensors, bb, node, number)


def _best(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node, number: relax.Var) -> Any:
    """Return the result of a `TopK` along the counted axis. Its `k` is at most the count."""
    x = node.only_first()
    dtype = str(x.whole.ty.dtype)
    is_largest = bool(node.attrs.get("largest", 1))
    if "float" in dtype:
        last: Any = -np.inf if is_largest else np.nan  # `TopK` sorts NaN as larger than any number.
    else:
        ends = np.iinfo(dtype)
        last = int(ends.min if is_largest else ends.max)
    # Elements beyond the count are replaced by the number that `TopK` sorts last. Among equal
    # elements, `TopK` sorts by index, so elements beyond the count come last.
    filled = bb.emit(relax.op.where(x.inside_whole(bb), x.whole, relax.const(last, dtype)))
    most = relax.const(np.array([tensors.most(number)]), "int64")
    both = import_top_k(bb, [filled, most], node.attrs)
    return _all_standing(tensors, bb, both.fields, x, number)


def _all_standing(
    tensors: CountedTensors, bb: relax.BlockBuilder, fields: Any, x: Counted, count: relax.Var
) -> Any:
    """Return variables for counted results, with the axis of `x` and the count `count`."""
    each = [tensors.standing(bb, field, x.axis, count, x.origin) for field in fields]
    return each[0] if len(each) == 1 else bb.normalize(relax.Tuple(each))


# Nodes that read counted tensors.


def _elementwise(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    """Compute an elementwise node whose counted inputs have the same count.

    Inputs without a count must have size 1 along the counted axis, or lack this axis.
    """
    first = node.first
    if "axis" in node.attrs or "broadcast" in node.attrs:
        raise node.refused()  # Old opsets align the axes of the inputs by other rules.
    from_last = len(first.shape) - first.axis
    rank = 0
    for value, each in zip(node.inputs, node.found, strict=True):
        if value is None:
            continue
        shape = shape_of(value)
        if shape is None:
            raise node.refused()
        rank = max(rank, len(shape))
        if each is None:
            fits = len(shape) < from_last or shape[-from_last] == 1
        else:
            fits = each.count.same_as(first.count) and each.most == first.most
            fits = fits and len(shape) - each.axis == from_last
        if not fits:
            raise node.refused()
    return tensors.standing(bb, node.whole(), rank - from_last, first.count, first.origin)


def _reduced(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    x = node.only_first()
    rank = len(x.shape)
    if node.op_type in ("ArgMax", "ArgMin"):
        axes = [int(node.attrs.get("axis", 0)) % rank]
        if x.axis in axes:
            raise node.refused()
    else:
        axes = [int(axis) % rank for axis in reduced_axes(node.inputs, node.attrs, rank)]
    if x.axis in axes:
        why = UnsupportedModelError(why_not(x))
        part = Part(why, x.whole, x.axis, x.inside_whole(bb))
        return reduced_inside(bb, node.op_type, node.inputs, node.attrs, part)
    kept = bool(node.attrs.get("keepdims", 1))
    axis = x.axis if kept else x.axis - sum(other < x.axis for other in axes)
    return tensors.standing(bb, node.whole(), axis, x.count, x.origin)


def _gather(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    data, indices = node.found
    shape, places = shape_of(node.inputs[0]), shape_of(node.inputs[1])
    if shape is None or places is None or 0 in shape:
        raise node.refused()
    axis = int(node.attrs.get("axis", 0)) % len(shape)
    if data is None:
        assert indices is not None, "one of the inputs is a counted tensor"
        made = axis + indices.axis
        return tensors.standing(bb, node.whole(), made, indices.count, indices.origin)
    if indices is None:
        if axis == data.axis:
            raise node.refused()  # The index may address a row beyond the count.
        made = data.axis if data.axis < axis else data.axis + len(places) - 1
        return tensors.standing(bb, node.whole(), made, data.count, data.origin)
    if axis != data.axis:
        raise node.refused()
    index = _within(bb, indices.whole, data)
    taken = relax.op.take(data.whole, index, axis, mode="clip")
    return tensors.standing(bb, taken, axis + indices.axis, indices.count, indices.origin)


def _within(bb: relax.BlockBuilder, indices: Any, data: Counted) -> Any:
    """Return indices of rows of `data`. Negative indices count from the end, and an index above the
    last valid row becomes that row.
    """
    wide = indices
    if str(wide.ty.dtype) != "int64":
        wide = bb.emit(relax.op.astype(wide, "int64"))
    zero = relax.const(0, "int64")
    from_end = bb.emit(relax.op.add(wide, data.count))
    index = bb.emit(relax.op.where(bb.emit(relax.op.less(wide, zero)), from_end, wide))
    last = bb.emit(relax.op.subtract(data.count, relax.const(1, "int64")))
    index = bb.emit(relax.op.minimum(index, last))
    return bb.emit(relax.op.maximum(index, zero))


def _gather_nd(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    data, indices = node.found
    shape = shape_of(node.inputs[0])
    if int(node.attrs.get("batch_dims", 0)) or indices is None:
        raise node.refused()
    if data is not None:
        # The rows of the data are counted, so each index must have a single component, which
        # addresses a row.
        if data.axis != 0 or indices.shape[-1] != 1 or indices.axis == len(indices.shape) - 1:
            raise node.refused()
        places = bb.emit(relax.op.reshape(indices.whole, indices.shape[:-1]))
        taken = relax.op.take(data.whole, _within(bb, places, data), 0, mode="clip")
        return tensors.standing(bb, taken, indices.axis, indices.count, indices.origin)
    if shape is None or 0 in shape or indices.axis == len(indices.shape) - 1:
        raise node.refused()
    return tensors.standing(bb, node.whole(), indices.axis, indices.count, indices.origin)


def _slice(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    x = node.only_first()
    bounds = _bounds(node, len(x.shape))
    if bounds is None:
        raise node.refused()
    start, end, step = bounds.get(x.axis, (0, x.most, 1))
    if step != 1 or not 0 <= start < min(end, x.most) or (start and end < x.most):
        raise node.refused()
    count = x.count
    if end < x.most:
        count = tensors.at_most(bb, count, end)
    if start:
        rest = tensors.derived(bb, "without", relax.op.subtract, count, start)
        count = tensors.derived(bb, "at least", relax.op.maximum, rest, 0)
    return tensors.standing(bb, node.whole(), x.axis, count, x.origin)


def _bounds(node: Node, rank: int) -> dict[int, tuple[int, int, int]] | None:
    """The constant starts, ends and steps of a `Slice`, by axis; None if one is computed."""
    if len(node.inputs) > 1:
        given = [None if v is None else constant_array(v) for v in node.inputs[1:]]
        is_late = [v is not None and k is None for v, k in zip(node.inputs[1:], given, strict=True)]
        if any(is_late):
            return None
    else:
        given = [
            None if node.attrs.get(key) is None else np.array(node.attrs[key])
            for key in ("starts", "ends", "axes")
        ]
    starts, ends, axes, steps = (*given, None, None)[:4]
    if starts is None or ends is None:
        return None
    order = range(len(starts)) if axes is None else axes.tolist()
    jumps = [1] * len(starts) if steps is None else steps.tolist()
    bounds = zip(starts.tolist(), ends.tolist(), jumps, strict=True)
    return {int(axis) % rank: each for axis, each in zip(order, bounds, strict=True)}


def _axes(node: Node, rank: int) -> list[int] | None:
    """The axes of a `Squeeze` or `Unsqueeze`; None if they are missing or computed."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        known = constant_array(node.inputs[1])
        axes = None if known is None else known.tolist()
    else:
        axes = node.attrs.get("axes")
    return None if axes is None else [int(axis) % rank for axis in axes]


def _squeeze(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    x = node.only_first()
    axes = _axes(node, len(x.shape))
    if axes is None or x.axis in axes:
        raise node.refused()  # The node would remove the counted axis if the count were 1.
    axis = x.axis - sum(other < x.axis for other in axes)
    return tensors.standing(bb, node.whole(), axis, x.count, x.origin)


def _unsqueeze(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    x = node.only_first()
    added = len(node.attrs.get("axes", ()))
    if len(node.inputs) > 1:
        added = prod(shape_of(node.inputs[1]) or (0,))
    rank = len(x.shape) + added
    axes = _axes(node, rank)
    if axes is None:
        raise node.refused()
    axis = [place for place in range(rank) if place not in axes][x.axis]
    return tensors.standing(bb, node.whole(), axis, x.count, x.origin)


def _transpose(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    x = node.only_first()
    order = list(node.attrs.get("perm") or reversed(range(len(x.shape))))
    return tensors.standing(bb, node.whole(), order.index(x.axis), x.count, x.origin)


def _flatten(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    x = node.only_first()
    at = int(node.attrs.get("axis", 1))
    at = at + len(x.shape) if at < 0 else at
    if x.axis != 0 or at != 1:
        raise node.refused()
    return tensors.standing(bb, node.whole(), 0, x.count, x.origin)


def _split(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    x = node.only_first()
    if int(node.attrs.get("axis", 0)) % len(x.shape) == x.axis:
        raise node.refused()
    parts = bb.normalize(node.whole())
    fields = (
        list(parts.fields)
        if isinstance(parts, relax.Tuple)
        else [relax.TupleGetItem(parts, i) for i in range(len(parts.ty.fields))]
        if isinstance(parts.ty, relax.TupleType)
        else [parts]
    )
    return _all_standing(tensors, bb, fields, x, x.count)


def _top_k(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    x = node.only_first()
    if int(node.attrs.get("axis", -1)) % len(x.shape) == x.axis:
        raise node.refused()
    both = bb.normalize(node.whole())
    return _all_standing(tensors, bb, both.fields, x, x.count)


def _softmax(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    x = node.only_first()
    # Before opset 13, the sum is over all dimensions from the axis on.
    axis = int(node.attrs.get("axis", -1)) % len(x.shape)
    if "axis" not in node.attrs or axis <= x.axis:
        raise node.refused()
    return tensors.standing(bb, node.whole(), x.axis, x.count, x.origin)


def _product(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    """Convert a product of counted rows and a matrix without a count."""
    x = node.only_first()
    matrix = shape_of(node.inputs[1])
    others = [shape_of(value) for value in node.inputs[2:] if value is not None]
    if matrix is None or len(matrix) != 2 or x.axis == len(x.shape) - 1:
        raise node.refused()
    if node.attrs.get("transA") or any(shape is None for shape in others):
        raise node.refused()
    if any(len(shape or ()) > 1 and (shape or ())[0] != 1 for shape in others):
        raise node.refused()
    return tensors.standing(bb, node.whole(), x.axis, x.count, x.origin)


def _reshape(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    wanted = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
    if wanted is None:
        raise node.refused()
    return _reshaped(tensors, bb, node, [int(size) for size in wanted])


def _reshaped(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node, sizes: list[int]) -> Any:
    x = node.only_first()
    if not node.attrs.get("allowzero", 0):
        # A size of 0 means that the size of this dimension is copied from the input. For the
        # counted axis it is replaced by -1.
        for i, size in enumerate(sizes):
            if size == 0 and i < len(x.shape):
                sizes[i] = -1 if i == x.axis else x.shape[i]
    if sizes.count(-1) != 1 or 0 in sizes:
        raise node.refused()
    axis = sizes.index(-1)
    before, after = prod(sizes[:axis]), prod(sizes[axis + 1 :])
    rows = prod(x.shape[x.axis + 1 :])
    if before != prod(x.shape[: x.axis]) or rows % after:
        raise node.refused()
    factor, count = rows // after, x.count
    if factor != 1:
        count = tensors.derived(bb, "times", relax.op.multiply, count, factor)
    sizes[axis] = x.most * factor
    return tensors.standing(bb, relax.op.reshape(x.whole, sizes), axis, count, x.origin)


def _shape(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    x = node.only_first()
    rank = len(x.shape)
    start, end, _ = slice(node.attrs.get("start"), node.attrs.get("end")).indices(rank)
    if not start <= x.axis < end:
        return relax.const(np.array(x.shape[start:end]), "int64")
    parts = [
        relax.const(np.array(sizes), "int64") if len(sizes) else None
        for sizes in (x.shape[start : x.axis], x.shape[x.axis + 1 : end])
    ]
    each = [part for part in (parts[0], x.count, parts[1]) if part is not None]
    return bb.normalize(relax.op.concat(each, 0)) if len(each) > 1 else x.count


def _size(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    x = node.only_first()
    others = prod(size for axis, size in enumerate(x.shape) if axis != x.axis)
    total = bb.emit(relax.op.multiply(x.count, relax.const(others, "int64")))
    return bb.normalize(relax.op.reshape(total, ()))


def _identity(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    return node.inputs[0]


def _non_zero(tensors: CountedTensors, bb: relax.BlockBuilder, node: Node) -> Any:
    return tensors.places(bb, node.inputs[0], node.first.origin)


_RULES: Mapping[str, Callable[[CountedTensors, relax.BlockBuilder, Node], Any]] = {
    "Concat": joined,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _product,
    "Identity": _identity,
    "LogSoftmax": _softmax,
    "MatMul": _product,
    "NonZero": _non_zero,
    "Reshape": _reshape,
    "ScatterElements": elements_scattered,
    "ScatterND": rows_scattered,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "TopK": _top_k,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
