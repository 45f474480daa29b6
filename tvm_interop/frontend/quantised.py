"""Rewrites quantised operators as float operators between `DequantizeLinear` and `QuantizeLinear`.

Quantised models have one of two forms. The first form uses integer operators: `QLinearConv`,
`QLinearMatMul`, `ConvInteger`, `MatMulInteger`, and onnxruntime's own operators, such as
`QLinearAdd` and `QGemm`. The second form, called QDQ, has float operators between
`DequantizeLinear` and `QuantizeLinear`. Both forms mean the same. This module turns the first form
into the second. Later, `lowering.quantised` turns the second form into integer kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_MICROSOFT = "com.microsoft"


def spell_out_integers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with its integer operators in the form of QDQ, or `model` if it has none.

    The sums of `ConvInteger` and `MatMulInteger` are then computed in float32. Sums above 2**24 are
    rounded to 24 bits.
    """
    if not any(_key(node) in _RULES for node in model.graph.node):
        return model
    spelt = onnx.ModelProto()
    spelt.CopyFrom(model)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    shapes = {name: tuple(tensor.dims) for name, tensor in constants.items()}
    writer = _Writer(shapes, constants)
    for node in model.graph.node:
        rule = _RULES.get(_key(node))
        if rule is None:
            writer.nodes.append(node)
        else:
            writer.begin(node)
            rule(writer, node, {a.name: helper.get_attribute_value(a) for a in node.attribute})
    del spelt.graph.node[:]
    spelt.graph.node.extend(writer.nodes)
    spelt.graph.initializer.extend(writer.constants)
    return spelt


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type)


@dataclass
class _Writer:
    """Collects the nodes of the rewritten model.

    Attributes
    ----------
    shapes: the shapes of the model's constants and of new scales, by name.
    given: the model's constants, by name.
    nodes: the nodes of the rewritten model so far, in order.
    constants: the new constants of the rewritten model.
    """

    shapes: dict[str, tuple[int, ...]]
    given: dict[str, TensorProto]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    _name: str = ""
    _count: int = 0

    def begin(self, node: onnx.NodeProto) -> None:
        self._name = node.name or node.output[0]
        self._count = 0

    def op(self, kind: str, inputs: Sequence[str], output: str | None = None, **attrs: Any) -> str:
        """Add an operator and return the name of its result."""
        self._count += 1
        output = output or f"{self._name}/{kind}_{self._count}"
        name = self._name if kind in _NAMED else output
        self.nodes.append(helper.make_node(kind, inputs, [output], name=name, **attrs))
        return output

    def constant(self, array: np.ndarray) -> str:
        self._count += 1
        name = f"{self._name}/constant_{self._count}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def floats(self, x: str, scale: str, zero: str, axis: int | None = None) -> str:
        """Add a `DequantizeLinear` and return the name of its result.

        If `scale` is not a scalar, it has one entry for each index of `axis`.
        """
        attrs: dict[str, Any] = {} if axis is None or not self.shapes.get(scale) else {"axis": axis}
        return self.op("DequantizeLinear", [x, scale, *([zero] if zero else [])], **attrs)

    def rounded(self, x: str, scale: str, zero: str, output: str) -> None:
        self.op("QuantizeLinear", [x, scale, *([zero] if zero else [])], output)

    def bias(self, integers: str, scales: Sequence[str]) -> str:
        """Add the conversion of a bias to floats and return the name of its result.

        The scale of the bias is the product of `scales`, the scales of the operator's factors.
        """
        step = self.op("Mul", scales)
        self.shapes[step] = max((self.shapes.get(scale, ()) for scale in scales), key=len)
        attrs: dict[str, Any] = {"axis": 0} if self.shapes[step] else {}
        return self.op("DequantizeLinear", [integers, step], **attrs)


_NAMED = {
    *("Conv", "MatMul", "Gemm", "Add", "Mul", "Sigmoid", "LeakyRelu", "Concat", "Softmax"),
    *("GlobalAveragePool", "AveragePool"),
}
"""Operators that get the name of the integer operator that they replace."""

_Rule = Callable[[_Writer, onnx.NodeProto, dict[str, Any]], None]


def _input(node: onnx.NodeProto, i: int) -> str:
    return str(node.input[i]) if i < len(node.input) else ""


def _qlinear_conv(w: _Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    x, x_step, x_zero, weight, w_step, w_zero, y_step, y_zero = node.input[:8]
    inputs = [w.floats(x, x_step, x_zero), w.floats(weight, w_step, w_zero, axis=0)]
    if _input(node, 8):
        inputs.append(w.bias(node.input[8], [x_step, w_step]))
    w.rounded(w.op("Conv", inputs, **attrs), y_step, y_zero, node.output[0])


def _qlinear_matmul(w: _Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    a, a_step, a_zero, b, b_step, b_zero, y_step, y_zero = node.input
    inputs = [w.floats(a, a_step, a_zero), w.floats(b, b_step, b_zero, axis=1)]
    w.rounded(w.op("MatMul", inputs), y_step, y_zero, node.output[0])


def _q_gemm(w: _Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    a, a_step, a_zero, b, b_step, b_zero = node.input[:6]
    axis = 0 if attrs.get("transB", 0) else 1
    inputs = [w.floats(a, a_step, a_zero), w.floats(b, b_step, b_zero, axis=axis)]
    alpha = attrs.pop("alpha", 1.0)
    if _input(node, 6):
        scaled = [a_step, b_step]
        if alpha != 1.0:
            scaled[0] = w.op("Mul", [a_step, w.constant(np.float32(alpha))])
        inputs.append(w.bias(node.input[6], scaled))
    is_rounded = bool(_input(node, 7))
    y = w.op("Gemm", inputs, None if is_rounded else node.output[0], alpha=alpha, **attrs)
    if is_rounded:
        w.rounded(y, node.input[7], _input(node, 8), node.output[0])


def _binary(kind: str) -> _Rule:
    def rule(w: _Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
        a, a_step, a_zero, b, b_step, b_zero, y_step = node.input[:7]
        inputs = [w.floats(a, a_step, a_zero), w.floats(b, b_step, b_zero)]
        w.rounded(w.op(kind, inputs), y_step, _input(node, 7), node.output[0])

    return rule


def _unary(kind: str, drop: Sequence[str] = ()) -> _Rule:
    def rule(w: _Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
        kept = {name: value for name, value in attrs.items() if name not in drop}
        y = w.op(kind, [w.floats(*node.input[:3])], **kept)
        w.rounded(y, node.input[3], _input(node, 4), node.output[0])

    return rule


def _average_pool(w: _Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    _pool(w, node, attrs, "AveragePool")


def _global_average_pool(w: _Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    _pool(w, node, attrs, "GlobalAveragePool")


def _pool(w: _Writer, node: onnx.NodeProto, attrs: dict[str, Any], kind: str) -> None:
    """Rewrite a pooling. With the attribute `channels_last`, the last axis holds the channels."""
    is_last = attrs.pop("channels_last", 0)
    x = w.floats(*node.input[:3])
    x = w.op("Transpose", [x], perm=[0, 3, 1, 2]) if is_last else x
    y = w.op(kind, [x], **attrs)
    made = f"{node.output[0]}/channels_first" if is_last else node.output[0]
    w.rounded(y, node.input[3], _input(node, 4), made)
    if is_last:
        w.op("Transpose", [made], node.output[0], perm=[0, 2, 3, 1])


def _concat(w: _Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    y_step, y_zero, *parts = node.input
    inputs = [w.floats(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    w.rounded(w.op("Concat", inputs, **attrs), y_step, y_zero, node.output[0])


def _products_of_zero(w: _Writer, node: onnx.NodeProto) -> str | None:
    """Add the term by which a dynamic zero point changes a matrix product, and return its name.

    The zero point of dynamic quantisation is known only at run time. The caller computes the
    product as if the zero point were 0, and subtracts this term. The term is the zero point times
    the sum of each column of the right factor. Return None if the zero point is a constant, or if
    the right factor is not a constant matrix.
    """
    zero = _input(node, 2)
    right, of_right = (w.given.get(_input(node, i)) for i in (1, 3))
    if not zero or zero in w.given or right is None or len(right.dims) != 2:
        return None
    if _input(node, 3) and of_right is None:
        return None
    columns = numpy_helper.to_array(right).astype(np.int64)
    if of_right is not None:
        columns = columns - numpy_helper.to_array(of_right).astype(np.int64)
    sums = w.constant(columns.sum(axis=0).astype(np.float32))
    return w.op("Mul", [w.op("Cast", [zero], to=TensorProto.FLOAT), sums])


def _integer(kind: str, axis: int) -> _Rule:
    """Return the function that rewrites `ConvInteger` or `MatMulInteger`.

    Such an operator gives int32 sums of products, without a scale.
    """

    def rule(w: _Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
        one = w.constant(np.float32(1))
        of_zero = _products_of_zero(w, node) if kind == "MatMul" else None
        x = w.floats(node.input[0], one, "" if of_zero else _input(node, 2))
        zero = _input(node, 3)
        steps = one
        if w.shapes.get(zero):
            steps = w.constant(np.ones(w.shapes[zero], np.float32))
            w.shapes[steps] = w.shapes[zero]
        weight = w.floats(node.input[1], steps, zero, axis)
        total = w.op(kind, [x, weight], **attrs)
        total = w.op("Sub", [total, of_zero]) if of_zero else total
        w.op("Cast", [total], node.output[0], to=TensorProto.INT32)

    return rule


_RULES: dict[tuple[str, str], _Rule] = {
    ("", "QLinearConv"): _qlinear_conv,
    ("", "QLinearMatMul"): _qlinear_matmul,
    ("", "ConvInteger"): _integer("Conv", 0),
    ("", "MatMulInteger"): _integer("MatMul", 1),
    (_MICROSOFT, "QGemm"): _q_gemm,
    (_MICROSOFT, "QLinearAdd"): _binary("Add"),
    (_MICROSOFT, "QLinearMul"): _binary("Mul"),
    (_MICROSOFT, "QLinearSigmoid"): _unary("Sigmoid"),
    (_MICROSOFT, "QLinearLeakyRelu"): _unary("LeakyRelu"),
    (_MICROSOFT, "QLinearSoftmax"): _unary("Softmax", drop=["opset"]),
    (_MICROSOFT, "QLinearConcat"): _concat,
    (_MICROSOFT, "QLinearAveragePool"): _average_pool,
    (_MICROSOFT, "QLinearGlobalAveragePool"): _global_average_pool,
}
"""Maps the domain and name of an integer operator to the function that rewrites it."""
