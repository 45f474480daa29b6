"""Rewrites quantised operators as float operators between `DequantizeLinear` and `QuantizeLinear`.

Quantised models have one of two forms with the same meaning. The first form uses integer operators:
`QLinearConv`, `QLinearMatMul`, `ConvInteger`, `MatMulInteger`, and onnxruntime's own operators,
such as `QLinearAdd` and `QGemm`. The second form, called QDQ, has float operators between
`DequantizeLinear` and `QuantizeLinear`. This module turns the first form into the second. Later,
`lowering.quantised` turns the second form into integer kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .rewriter import MICROSOFT, Rule, Rules, Writer, as_onnx_has_it, input_of


def _qlinear_conv(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    x, x_step, x_zero, weight, w_step, w_zero, y_step, y_zero = node.input[:8]
    inputs = [w.floats(x, x_step, x_zero), w.floats(weight, w_step, w_zero, axis=0)]
    if input_of(node, 8):
        inputs.append(w.bias(node.input[8], [x_step, w_step]))
    w.rounded(w.op("Conv", inputs, **attrs), y_step, y_zero, node.output[0])


def _conv_of_last_channels(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    """Rewrite onnxruntime's `QLinearConv`. With the attribute `channels_last`, the last axis of the
    image holds the channels. The weights have the axes of ONNX's operator.
    """
    if not attrs.pop("channels_last", 0):
        _qlinear_conv(w, node, attrs)
        return
    rank = len(w.shapes[node.input[3]]) if node.input[3] in w.shapes else 4
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    changed.input[0] = w.op("Transpose", [node.input[0]], perm=[0, rank - 1, *range(1, rank - 1)])
    changed.output[0] = f"{node.output[0]}/channels_first"
    _qlinear_conv(w, changed, attrs)
    w.op("Transpose", [changed.output[0]], node.output[0], perm=[0, *range(2, rank), 1])


def _qlinear_matmul(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    a, a_step, a_zero, b, b_step, b_zero, y_step, y_zero = node.input
    # A vector of scales has one for each row of `a`, or for each column of `b`.
    of_rows = None if w.shapes.get(a_step, ()) in ((), (1,)) else -2
    inputs = [w.floats(a, a_step, a_zero, of_rows), w.floats(b, b_step, b_zero, axis=1)]
    w.rounded(w.op("MatMul", inputs), y_step, y_zero, node.output[0])


def _q_gemm(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    a, a_step, a_zero, b, b_step, b_zero = node.input[:6]
    axis = 0 if attrs.get("transB", 0) else 1
    inputs = [w.floats(a, a_step, a_zero), w.floats(b, b_step, b_zero, axis=axis)]
    alpha = attrs.pop("alpha", 1.0)
    if input_of(node, 6):
        scaled = [a_step, b_step]
        if alpha != 1.0:
            scaled[0] = w.op("Mul", [a_step, w.constant(np.float32(alpha))])
        inputs.append(w.bias(node.input[6], scaled))
    is_rounded = bool(input_of(node, 7))
    y = w.op("Gemm", inputs, None if is_rounded else node.output[0], alpha=alpha, **attrs)
    if is_rounded:
        w.rounded(y, node.input[7], input_of(node, 8), node.output[0])


def _binary(kind: str) -> Rule:
    def rule(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
        a, a_step, a_zero, b, b_step, b_zero, y_step = node.input[:7]
        inputs = [w.floats(a, a_step, a_zero), w.floats(b, b_step, b_zero)]
        w.rounded(w.op(kind, inputs), y_step, input_of(node, 7), node.output[0])

    return rule


def _unary(kind: str) -> Rule:
    def rule(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
        y = w.op(kind, [w.floats(*node.input[:3])], **attrs)
        w.rounded(y, node.input[3], input_of(node, 4), node.output[0])

    return rule


def _where(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    inputs = [node.input[0], w.floats(*node.input[1:4]), w.floats(*node.input[4:7])]
    w.rounded(w.op("Where", inputs), node.input[7], input_of(node, 8), node.output[0])


def _average_pool(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    _pool(w, node, attrs, "AveragePool")


def _global_average_pool(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    _pool(w, node, attrs, "GlobalAveragePool")


def _pool(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any], kind: str) -> None:
    """Rewrite a pooling. With the attribute `channels_last`, the last axis holds the channels."""
    is_last = attrs.pop("channels_last", 0)
    x = w.floats(*node.input[:3])
    x = w.op("Transpose", [x], perm=[0, 3, 1, 2]) if is_last else x
    y = w.op(kind, [x], **attrs)
    made = f"{node.output[0]}/channels_first" if is_last else node.output[0]
    w.rounded(y, node.input[3], input_of(node, 4), made)
    if is_last:
        w.op("Transpose", [made], node.output[0], perm=[0, 2, 3, 1])


def _concat(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    y_step, y_zero, *parts = node.input
    inputs = [w.floats(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    w.rounded(w.op("Concat", inputs, **attrs), y_step, y_zero, node.output[0])


def _softmax(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    """Rewrite a softmax. Before opset 13, a softmax treats all axes from `axis` on as one axis."""
    if attrs.pop("opset", 0) >= _SOFTMAX_OF_ONE_AXIS:
        _unary("Softmax")(w, node, attrs)
        return
    x = w.floats(*node.input[:3])
    flat = w.op("Flatten", [x], axis=attrs.get("axis", 1))
    # Axis 1 is the last axis of `flat`. A softmax over the last axis is the same in all opsets.
    y = w.op("Reshape", [w.op("Softmax", [flat], axis=1), w.op("Shape", [x])])
    w.rounded(y, node.input[3], input_of(node, 4), node.output[0])


_SOFTMAX_OF_ONE_AXIS = 13
"""The first opset in which a softmax works along a single axis."""


def _attention(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    """Rewrite `QAttention` as onnxruntime's `Attention` of floats."""
    x, weight, bias, x_step, w_step = node.input[:5]
    mask, x_zero, w_zero, past = (input_of(node, i) for i in range(5, 9))
    factors = [w.floats(x, x_step, x_zero), w.floats(weight, w_step, w_zero, axis=-1)]
    inputs = [*factors, bias, mask, past]
    while not inputs[-1]:
        inputs.pop()
    w.nodes.append(
        helper.make_node(
            "Attention", inputs, node.output, node.name or node.output[0], domain=MICROSOFT, **attrs
        )
    )


def _embeddings(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    """Rewrite `QEmbedLayerNormalization` as onnxruntime's `EmbedLayerNormalization` of floats."""
    tables = [
        w.floats(node.input[i], node.input[i + 6], input_of(node, i + 11)) if node.input[i] else ""
        for i in range(2, 7)
    ]
    inputs = [*node.input[:2], *tables, input_of(node, 7)]
    w.nodes.append(
        helper.make_node(
            "EmbedLayerNormalization",
            inputs if inputs[-1] else inputs[:-1],
            node.output,
            node.name or node.output[0],
            domain=MICROSOFT,
            **attrs,
        )
    )


def _lstm(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    """Rewrite a `DynamicQuantizeLSTM` as an LSTM of floats.

    The weights become floats. They have the shape (directions, inputs, gates). There is one scale
    for each direction, or one for each gate. The inputs and the states are not quantised here,
    which makes the results more exact than in onnxruntime.
    """
    factors = []
    for i, (at_scale, at_zero) in ((1, (8, 9)), (2, (10, 11))):
        shape = w.shapes.get(node.input[at_scale], (1,))
        wide = w.constant(np.array([shape[0], 1, -1 if len(shape) > 1 else 1]))
        parts = [w.op("Cast", [node.input[i]], to=TensorProto.FLOAT)]
        for name in (node.input[at_zero], node.input[at_scale]):
            number = w.op("Cast", [name], to=TensorProto.FLOAT)
            parts.append(w.op("Reshape", [number, wide]))
        steps = w.op("Mul", [w.op("Sub", parts[:2]), parts[2]])
        factors.append(w.op("Transpose", [steps], perm=[0, 2, 1]))
    inputs = [node.input[0], *factors, *node.input[3:8]]
    while not inputs[-1]:
        inputs.pop()
    name = node.name or node.output[0]
    w.nodes.append(helper.make_node("LSTM", inputs, node.output, name, **attrs))


def _sums_of_weights(w: Writer, node: onnx.NodeProto, axis: int) -> np.ndarray | None:
    """Return the sums of the weights that belong to each index of `axis`, as float32.

    Return None if the zero point of the data is a constant or left out, because kernels on integers
    then know it. Return None also if the weights are not constants.
    """
    zero, of_weight = input_of(node, 2), input_of(node, 3)
    given = w.given.get(node.input[1])
    if not zero or zero in w.given or given is None or (of_weight and of_weight not in w.given):
        return None
    weight = numpy_helper.to_array(given).astype(np.int64)
    if of_weight:
        zeros = numpy_helper.to_array(w.given[of_weight]).astype(np.int64)
        wide = [1] * weight.ndim
        wide[axis] = zeros.size
        weight = weight - zeros.reshape(wide)
    others = tuple(a for a in range(weight.ndim) if a != axis)
    sums: np.ndarray = weight.sum(axis=others).astype(np.float32)
    return sums


def _integer_matmul(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    rank = len(w.shapes.get(node.input[1], ()))
    sums = _sums_of_weights(w, node, axis=1) if rank == _RANK_OF_MATRIX else None
    _integer(w, node, "MatMul", node.input[0], 1, sums, attrs)


_RANK_OF_MATRIX = 2


def _integer_conv(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    """Rewrite a `ConvInteger`.

    A convolution pads its data with the zero point. If the zero point is known only at run time,
    the data is padded with it first, and the convolution itself pads nothing. Then the correction
    by the zero point is the same for all places of an image.
    """
    sums = _sums_of_weights(w, node, axis=0)
    pads = _widths(attrs, w.shapes.get(node.input[1], ()))
    if sums is None or pads is None:
        _integer(w, node, "Conv", node.input[0], 0, None, attrs)
        return
    x = node.input[0]
    if any(pads):
        half = len(pads) // 2
        widths = [0, 0, *pads[:half], 0, 0, *pads[half:]]
        x = w.op("Pad", [x, w.constant(np.array(widths)), node.input[2]])
    kept = {name: value for name, value in attrs.items() if name not in ("auto_pad", "pads")}
    _integer(w, node, "Conv", x, 0, sums.reshape([-1, *[1] * (len(pads) // 2)]), kept)


def _widths(attrs: dict[str, Any], weight: tuple[int, ...]) -> list[int] | None:
    """Return the widths of a convolution's padding: those at the starts of the axes, then those at
    the ends.

    Return None if they depend on the size of the image.

    Parameters
    ----------
    weight: the shape of the weights.
    """
    axes = len(weight) - 2
    kind = attrs.get("auto_pad", b"NOTSET")
    if kind == b"NOTSET":
        return list(attrs.get("pads", [0] * 2 * axes))
    if kind == b"VALID":
        return [0] * 2 * axes
    if any(stride != 1 for stride in attrs.get("strides", ())):
        return None
    dilations = attrs.get("dilations", [1] * axes)
    totals = [step * (size - 1) for step, size in zip(dilations, weight[2:], strict=True)]
    fewer, more = [total // 2 for total in totals], [-(-total // 2) for total in totals]
    return [*fewer, *more] if kind == b"SAME_UPPER" else [*more, *fewer]


def _integer(
    w: Writer,
    node: onnx.NodeProto,
    kind: str,
    x: str,
    axis: int,
    sums: np.ndarray | None,
    attrs: dict[str, Any],
) -> None:
    """Rewrite `ConvInteger` or `MatMulInteger`, whose results are int32 sums without a scale.

    The zero point of dynamic quantisation is known only at run time, and kernels on integers need a
    constant one. They compute the sums as if it were 0. The zero point times the sum of the weights
    is subtracted afterwards.

    Parameters
    ----------
    kind: the operator of floats that computes the sums.
    x: the data.
    axis: the axis of the weights along which their zero points may differ.
    sums: the sums of the weights, in a shape that broadcasts to the result. None if the zero point
        of the data is a constant, or the sums of the weights are not known.
    """
    one = w.constant(np.float32(1))
    data = w.floats(x, one, "" if sums is not None else input_of(node, 2))
    zero = input_of(node, 3)
    steps = one
    if w.shapes.get(zero):
        steps = w.constant(np.ones(w.shapes[zero], np.float32))
        w.shapes[steps] = w.shapes[zero]
    weight = w.floats(node.input[1], steps, zero, axis)
    total = w.op(kind, [data, weight], **attrs)
    if sums is not None:
        point = w.op("Cast", [node.input[2]], to=TensorProto.FLOAT)
        total = w.op("Sub", [total, w.op("Mul", [point, w.constant(sums)])])
    w.op("Cast", [total], node.output[0], to=TensorProto.INT32)


def _dynamic_matmul(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    a, b, b_step = node.input[:3]
    words, a_step, a_zero = w.parts("DynamicQuantizeLinear", [a], 3)
    left = w.floats(words, a_step, a_zero)
    _with_bias(w, node, [left, w.floats(b, b_step, input_of(node, 3), axis=-1)], input_of(node, 4))


def _matmul_to_float(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    a, b, a_step, b_step = node.input[:4]
    left = w.floats(a, a_step, input_of(node, 4))
    right = w.floats(b, b_step, input_of(node, 5), axis=-1)
    _with_bias(w, node, [left, right], input_of(node, 6))


def _with_bias(w: Writer, node: onnx.NodeProto, factors: Sequence[str], bias: str) -> None:
    product = w.op("MatMul", factors, None if bias else node.output[0])
    if bias:
        w.op("Add", [product, bias], node.output[0])


RULES: Rules = {
    ("", "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    ("", "ConvInteger"): _integer_conv,
    ("", "MatMulInteger"): _integer_matmul,
    (MICROSOFT, "DequantizeLinear"): as_onnx_has_it,
    (MICROSOFT, "DynamicQuantizeLSTM"): _lstm,
    (MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_matmul,
    (MICROSOFT, "MatMulIntegerToFloat"): _matmul_to_float,
    (MICROSOFT, "QAttention"): _attention,
    (MICROSOFT, "QEmbedLayerNormalization"): _embeddings,
    (MICROSOFT, "QGemm"): _q_gemm,
    (MICROSOFT, "QuantizeLinear"): as_onnx_has_it,
    (MICROSOFT, "QLinearAdd"): _binary("Add"),
    (MICROSOFT, "QLinearMul"): _binary("Mul"),
    (MICROSOFT, "QLinearSigmoid"): _unary("Sigmoid"),
    (MICROSOFT, "QLinearLeakyRelu"): _unary("LeakyRelu"),
    (MICROSOFT, "QLinearSoftmax"): _softmax,
    (MICROSOFT, "QLinearConcat"): _concat,
    (MICROSOFT, "QLinearConv"): _conv_of_last_channels,
    (MICROSOFT, "QLinearAveragePool"): _average_pool,
    (MICROSOFT, "QLinearGlobalAveragePool"): _global_average_pool,
    (MICROSOFT, "QLinearWhere"): _where,
}
"""Maps the domain and name of an integer operator to the function that rewrites it."""
