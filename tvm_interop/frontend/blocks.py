"""Converts `DequantizeLinear` nodes whose numbers are quantised in blocks along an axis.

Each block has its own scale. TVM's `dequantize` cannot express that: it takes one scale for the
whole tensor or one for each index of an axis.

Source: the definition of `DequantizeLinear` in the ONNX specification, opset 21.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from ..lowering.static_shape import static_shape


def import_dequantize(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the floats of a node with `block_size`.

    Return None for a node without `block_size` or of unknown shape. TVM's converter handles such
    nodes.
    """
    block = int(attrs.get("block_size", 0))
    x, scale, zero = (*inputs, None)[:3]
    shape = static_shape(x.ty)
    if not block or shape is None:
        return None
    axis = int(attrs.get("axis", 1)) % len(shape)

    def of_elements(values: Any) -> Any:
        repeated = bb.emit(relax.op.repeat(values, block, axis))
        # The last block may have fewer than `block` elements, so the surplus is cut off.
        return bb.emit(relax.op.strided_slice(repeated, [axis], [0], [shape[axis]]))

    dtype = str(scale.ty.dtype)
    result = bb.emit(relax.op.astype(x, dtype))
    if zero is not None:
        shift = of_elements(bb.emit(relax.op.astype(zero, dtype)))
        result = bb.emit(relax.op.subtract(result, shift))
    return relax.op.multiply(result, of_elements(scale))
