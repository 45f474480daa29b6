"""Computes all iterations of a `Scan` at once, if none of them depends on another.

skl2onnx writes the distances between rows as such a `Scan`, for nearest neighbours, Gaussian
processes and kernels. Each iteration is for one row of the training data. If the iterations were
unrolled, thousands of rows would give too many operators.

The states of such a scan do not change. Each operator of the body computes each element alone,
or reduces axes. The element of an iteration gets a new first axis, which counts the iterations.

Source: the definitions of `Scan` and of the operators in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tvm import relax

from ..lowering.static_shape import static_shape

Body = Callable[[onnx.GraphProto, Mapping[str, Any]], list[Any]]

_OF_ELEMENTS = {
    "Abs", "Add", "Cast", "Div", "Exp", "Identity", "Log", "Max", "Min", "Mul", "Neg", "Pow",
    "Reciprocal", "Sqrt", "Sub", "Tanh",
}  # fmt: skip
"""Operators that compute each element alone, after their inputs were broadcast."""
_REDUCTIONS = {
    "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare",
}  # fmt: skip


class _Value(NamedTuple):
    """A tensor of the body.

    Attributes
    ----------
    rank: the number of its axes in one iteration.
    width: the number of axes that it has after the axis of the iterations, of which the first ones
        have size 1. None for a tensor that is the same in all iterations.
    """

    rank: int
    width: int | None = None


def all_turns_at_once(
    bb: relax.BlockBuilder,
    graph: onnx.GraphProto,
    states: Sequence[Any],
    sequences: Sequence[Any],
    axes: Sequence[int],
    body: Body,
) -> list[Any] | None:
    """Return the tensors that a `Scan` collects, with the iterations along their first axes.

    Return None if an iteration may depend on another, or an operator is not supported here.

    Parameters
    ----------
    graph: the body.
    states, sequences: the inputs of the node.
    axes: for each sequence, the axis along which it is read.
    body: a function that imports the body.
    """
    shapes = [static_shape(value.ty) for value in (*states, *sequences)]
    if any(shape is None or 0 in shape for shape in shapes) or not _keeps(graph, len(states)):
        return None
    ranks = [len(shape or ()) for shape in shapes]
    width = max([*ranks[: len(states)], *(rank - 1 for rank in ranks[len(states) :])])
    ports = [port.name for port in graph.input]
    values = {name: _Value(rank) for name, rank in zip(ports, ranks, strict=True)}
    for name, rank in zip(ports[len(states) :], ranks[len(states) :], strict=True):
        values[name] = _Value(rank - 1, width)
    changed = _changed(graph, values)
    outputs = [values.get(port.name, _Value(0)) for port in graph.output[len(states) :]]
    # An output that is the same in all iterations has no width.
    if changed is None or any(value.width is None for value in outputs):
        return None
    spread = [
        _spread(bb, value, int(axis) % int(value.ty.ndim), width)
        for value, axis in zip(sequences, axes, strict=True)
    ]
    given = dict(zip(ports, [*states, *spread], strict=True))
    results = body(changed, given)[len(states) :]
    found = []
    for result, value in zip(results, outputs, strict=True):
        shape = static_shape(result.ty) or ()
        own = (shape[0], *shape[len(shape) - value.rank :])
        found.append(result if own == shape else bb.emit(relax.op.reshape(result, own)))
    return found


def _keeps(graph: onnx.GraphProto, number: int) -> bool:
    """Whether each of the states, which come first, leaves the body as it entered it."""
    came_from = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Identity"}
    for before, after in zip(graph.input[:number], graph.output[:number], strict=True):
        name = after.name
        while name != before.name and name in came_from:
            name = came_from[name]
        if name != before.name:
            return False
    return True


def _spread(bb: relax.BlockBuilder, value: Any, axis: int, width: int) -> Any:
    """Make `axis` of a sequence its first axis, followed by `width` axes."""
    shape = static_shape(value.ty) or ()
    others = [i for i in range(len(shape)) if i != axis]
    if axis:
        value = bb.emit(relax.op.permute_dims(value, [axis, *others]))
    wide = (shape[axis], *[1] * (width - len(others)), *(shape[i] for i in others))
    return bb.emit(relax.op.reshape(value, wide))


def _changed(graph: onnx.GraphProto, values: dict[str, _Value]) -> onnx.GraphProto | None:
    """Return the body for all iterations; None if it has an operator that is not supported.

    Axes count from the last axis, because the new axes are the first ones.

    Parameters
    ----------
    values: the inputs by name, to which the other tensors of the body are added.
    """
    changed = onnx.GraphProto()
    changed.CopyFrom(graph)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    values.update((name, _Value(array.ndim)) for name, array in arrays.items())
    for node in changed.node:
        if node.op_type == "Constant" and [a.name for a in node.attribute] == ["value"]:
            arrays[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
            values[node.output[0]] = _Value(arrays[node.output[0]].ndim)
            continue
        # A tensor of the graph around the body is not among the values.
        if node.domain or any(name not in values for name in node.input if name):
            return None
        read = [values[name] for name in node.input if name]
        if node.op_type in _OF_ELEMENTS:
            result = _joined(read)
        elif node.op_type in _REDUCTIONS:
            result = _reduced(node, read[0], arrays, changed)
        else:
            result = None
        if result is None:
            return None
        values[node.output[0]] = result
    return changed


def _joined(read: Sequence[_Value]) -> _Value | None:
    """Return the result of an operator that broadcasts these tensors; None if the axes of the
    iterations would not be aligned.
    """
    widths = {value.width for value in read if value.width is not None}
    rank = max(value.rank for value in read)
    if not widths:
        return _Value(rank)
    width = widths.pop()
    return None if widths or rank > width else _Value(rank, width)


def _reduced(
    node: onnx.NodeProto,
    x: _Value,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    graph: onnx.GraphProto,
) -> _Value | None:
    """Return the result of a reduction, whose axes are changed in place to count from the last."""
    named = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    given = node.input[1] if len(node.input) > 1 else ""
    if given and given not in arrays:
        return None
    axes = arrays[given].tolist() if given else list(named.get("axes", ()))
    if not axes:
        return None
    last = [axis if axis < 0 else axis - x.rank for axis in axes]
    if given:
        name = f"{node.output[0]}/axes"
        graph.initializer.append(numpy_helper.from_array(np.array(last), name))
        node.input[1] = name
    else:
        kept = [each for each in node.attribute if each.name != "axes"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("axes", last)])
    gone = 0 if named.get("keepdims", 1) else len(axes)
    return _Value(x.rank - gone, None if x.width is None else x.width - gone)
