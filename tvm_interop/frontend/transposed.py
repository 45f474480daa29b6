"""Converts transposed convolutions that have the attribute `output_shape`.

Source: the definition of `ConvTranspose` in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from ..lowering.static_shape import static_shape

_LAYOUTS = {1: ("NCW", "IOW"), 2: ("NCHW", "IOHW"), 3: ("NCDHW", "IODHW")}


def import_transposed_convolution(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the result of a `ConvTranspose` with the attribute `output_shape`, else None.

    If the result without padding is larger than `output_shape`, it is cut at both ends. If the
    number of elements to cut is odd, one side loses one more. This is the end for `auto_pad`
    `SAME_UPPER`, otherwise the beginning. If the result without padding is smaller, zeros are added
    at the end.

    Return None for a node without `output_shape` or of unknown shape, which TVM's converter
    handles.
    """
    if "output_shape" not in attrs:
        return None
    x, weight, bias = (*inputs, None)[:3]
    shape, kernel = static_shape(x.ty), static_shape(weight.ty)
    if shape is None or kernel is None or len(shape) - 2 not in _LAYOUTS:
        return None
    rank = len(shape) - 2
    strides = [int(stride) for stride in attrs.get("strides", [1] * rank)]
    dilations = [int(dilation) for dilation in attrs.get("dilations", [1] * rank)]
    extra = [int(size) for size in attrs.get("output_padding", [0] * rank)]
    wanted = [int(size) for size in attrs["output_shape"]][-rank:]
    before, after, missing = [], [], [0, 0, 0, 0]
    for axis in range(rank):
        extent = (kernel[2 + axis] - 1) * dilations[axis] + 1
        full = strides[axis] * (shape[2 + axis] - 1) + extent
        total = full + extra[axis] - wanted[axis]
        half = max(total, 0) // 2
        is_upper = attrs.get("auto_pad") == b"SAME_UPPER"
        before.append(half if is_upper else max(total, 0) - half)
        after.append(max(total, 0) - before[-1])
        missing += [0, max(-total, 0)]
    data_layout, kernel_layout = _LAYOUTS[rank]
    convolution = getattr(relax.op.nn, f"conv{rank}d_transpose")
    result = bb.emit(
        convolution(
            x,
            weight,
            strides=strides,
            padding=[*before, *after],
            output_padding=extra,
            dilation=dilations,
            groups=int(attrs.get("group", 1)),
            data_layout=data_layout,
            kernel_layout=kernel_layout,
        )
    )
    if any(missing):
        result = bb.emit(relax.op.nn.pad(result, missing, "constant", 0.0))
    if bias is not None:
        result = relax.op.add(result, bb.emit(relax.op.reshape(bias, (1, -1, *[1] * rank))))
    return result
