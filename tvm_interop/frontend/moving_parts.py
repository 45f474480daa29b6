"""Converts a `Slice` of fixed size whose start is computed when the model runs.

JAX exports `lax.dynamic_slice`, and TensorFlow exports `tf.slice`, as a `Slice` whose ends are its
starts plus constants. If a slice does not lie within the tensor, ONNX returns a smaller slice. A
schedule is made for fixed shapes, so the result cannot be smaller here. It is NaN instead, which
nobody mistakes for an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..lowering.static_shape import static_shape
from .computed_parts import from_the_first
from .constants import constant_array, number_like

_LOG = logging.getLogger("tvm_interop")


def moving_part(bb: relax.BlockBuilder, inputs: Sequence[Any], node: str) -> Any:
    """Return the result of a `Slice` of floats with computed starts and a fixed size.

    Return None if the size is not known, the slice has steps, or the tensor holds no floats.

    Parameters
    ----------
    node: a description of the node, for the warning.
    """
    x, starts, ends, axes, steps = (*inputs, None, None, None)[:5]
    shape, sizes = static_shape(getattr(x, "ty", None)), _sizes(bb, starts, ends)
    if shape is None or sizes is None or "float" not in str(x.ty.dtype):
        return None
    order = np.arange(len(sizes)) if axes is None else constant_array(axes)
    jumps = np.ones(1) if steps is None else constant_array(steps)
    if order is None or jumps is None or (jumps != 1).any():
        return None
    along = [int(axis) % len(shape) for axis in order]
    if not all(0 < size <= shape[axis] for axis, size in zip(along, sizes, strict=True)):
        return None
    _LOG.warning(
        "node %s takes a part of a tensor that begins at a computed position: whenever the part "
        "does not lie within the tensor, the results are NaN",
        node,
    )
    fits: Any = relax.const(True, "bool")
    for i, (axis, size) in enumerate(zip(along, sizes, strict=True)):
        position = relax.const(i, "int64")
        low, high = (
            from_the_first(
                bb, bb.emit(relax.op.take(bounds, position, 0, mode="clip")), shape[axis]
            )
            for bounds in (starts, ends)
        )
        last = number_like(low, shape[axis] - size)
        first = bb.emit(relax.op.minimum(bb.emit(relax.op.maximum(low, number_like(low, 0))), last))
        # ONNX would shorten a slice that begins before the first element or ends after the last
        # one.
        is_whole = bb.emit(
            relax.op.equal(high, bb.emit(relax.op.add(first, number_like(low, size))))
        )
        is_there = bb.emit(relax.op.logical_and(bb.emit(relax.op.equal(low, first)), is_whole))
        fits = bb.emit(relax.op.logical_and(fits, is_there))
        places = bb.emit(relax.op.add(first, relax.const(np.arange(size), "int64")))
        x = bb.emit(relax.op.take(x, places, axis, mode="clip"))
    return relax.op.where(fits, x, number_like(x, np.nan))


def _sizes(bb: relax.BlockBuilder, starts: Any, ends: Any) -> list[int] | None:
    """Return the sizes of a slice, if its ends are its starts plus constant sizes; else None."""
    call = bb.lookup_binding(ends) if isinstance(ends, relax.Var) else None
    if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.add":
        return None
    others = [arg for arg in call.args if not arg.same_as(starts)]
    sizes = constant_array(others[0]) if len(others) == 1 else None
    if sizes is None or static_shape(starts.ty) != sizes.shape or sizes.ndim != 1:
        return None
    return [int(size) for size in sizes]
