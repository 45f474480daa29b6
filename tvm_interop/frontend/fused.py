"""Rewrites onnxruntime's fused operators, such as a convolution with an activation, as ONNX
operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from .rewriter import MICROSOFT, Rules, Writer, as_onnx_has_it, input_of

_PARAMETERS = {
    **dict.fromkeys(("Elu", "LeakyRelu", "ThresholdedRelu"), ("alpha",)),
    **{"HardSigmoid": ("alpha", "beta"), "Selu": ("alpha", "gamma")},
}
"""The names of the attributes of each activation, in the order in which `FusedConv` lists their
values.
"""


def _conv(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    activation = attrs.pop("activation", b"").decode()
    numbers = attrs.pop("activation_params", ())
    addend = input_of(node, 3)
    inputs = [node.input[0], node.input[1], *([input_of(node, 2)] if input_of(node, 2) else [])]
    y = w.op("Conv", inputs, None if activation or addend else node.output[0], **attrs)
    if addend:
        y = w.op("Add", [y, addend], None if activation else node.output[0])
    if activation == "Clip":
        bounds = [w.constant(np.float32(number)) for number in numbers]
        w.op("Clip", [y, *bounds], node.output[0])
    elif activation:
        named = dict(zip(_PARAMETERS.get(activation, ()), numbers, strict=False))
        w.op(activation, [y], node.output[0], **named)


def _gemm(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    activation = attrs.pop("activation", b"").decode()
    given = {name: attrs.pop(f"activation_{name}", None) for name in ("alpha", "beta", "gamma")}
    # The node may also have parameters that its activation does not use. They are ignored.
    taken = _PARAMETERS.get(activation, ())
    named = {name: given[name] for name in taken if given[name] is not None}
    y = w.op("Gemm", node.input, None if activation else node.output[0], **attrs)
    if activation:
        w.op(activation, [y], node.output[0], **named)


def _transposed_product(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    """Rewrite a `TransposeMatMul`, which is the older name of `FusedMatMul`."""
    w.op("FusedMatMul", node.input, node.output[0], domain=MICROSOFT, **attrs)


def _max_pool(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    """Rewrite a max pooling of tensors whose last axis holds the channels."""
    x = w.op("Transpose", node.input, perm=[0, 3, 1, 2])
    w.op("Transpose", [w.op("MaxPool", [x], **attrs)], node.output[0], perm=[0, 2, 3, 1])


FUSED: Rules = {
    (MICROSOFT, "FusedConv"): _conv,
    (MICROSOFT, "FusedGemm"): _gemm,
    (MICROSOFT, "NhwcMaxPool"): _max_pool,
    (MICROSOFT, "TransposeMatMul"): _transposed_product,
    (MICROSOFT, "Trilu"): as_onnx_has_it,
}
"""Maps the domain and name of a fused operator to the function that rewrites it."""
