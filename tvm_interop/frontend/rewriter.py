"""Replaces operators of a model by other operators before the model is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .expand import nodes_of

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""


@dataclass
class Writer:
    """Collects the nodes of the rewritten model.

    Attributes
    ----------
    shapes: the shapes of the model's constants, and of scales that are added, by name.
    given: the model's constants, by name.
    nodes: the nodes of the rewritten model so far, in order.
    constants: the new constants of the rewritten model.
    """

    shapes: dict[str, tuple[int, ...]]
    given: dict[str, TensorProto]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    _name: str = ""
    _stem: str = ""
    _count: int = 0

    def begin(self, node: onnx.NodeProto) -> None:
        """Begin to replace `node`. New tensors are named after its output, which is unique."""
        self._stem = next(name for name in node.output if name)
        self._name = node.name or self._stem
        self._count = 0

    def op(self, kind: str, inputs: Sequence[str], output: str | None = None, **attrs: Any) -> str:
        """Add an operator and return the name of its result."""
        self._count += 1
        output = output or f"{self._stem}/{kind}_{self._count}"
        name = self._name if kind in _NAMED else f"{self._name}/{kind}_{self._count}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=name, **attrs))
        return output

    def parts(self, kind: str, inputs: Sequence[str], number: int) -> list[str]:
        """Add an operator with several results and return their names."""
        self._count += 1
        outputs = [f"{self._stem}/{kind}_{self._count}_{i}" for i in range(number)]
        name = f"{self._name}/{kind}_{self._count}"
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=name))
        return outputs

    def constant(self, array: np.ndarray) -> str:
        """Add a constant and return its name."""
        self._count += 1
        name = f"{self._stem}/constant_{self._count}"
        self.constants.append(numpy_helper.from_array(array, name))
        self.shapes[name] = array.shape
        return name

    def floats(self, x: str, scale: str, zero: str, axis: int | None = None) -> str:
        """Add a `DequantizeLinear` and return the name of its result.

        If `scale` is not a scalar, it has one entry for each index of `axis`. The shape of a scale
        that is not a constant is unknown here. A scalar is right with any axis.
        """
        attrs: dict[str, Any] = {}
        if len(self.shapes.get(scale, ())) > 1:
            return self._broadcast(x, scale, zero)
        if axis is not None and self.shapes.get(scale) != ():
            attrs["axis"] = axis
        return self.op("DequantizeLinear", [x, scale, *([zero] if zero else [])], **attrs)

    def _broadcast(self, x: str, scale: str, zero: str) -> str:
        """Convert numbers to floats by a scale that is broadcast, such as one for each column of
        each matrix of a batch. A `DequantizeLinear` takes no such scale.
        """
        wide = self.op("Cast", [x], to=TensorProto.FLOAT)
        if zero:
            wide = self.op("Sub", [wide, self.op("Cast", [zero], to=TensorProto.FLOAT)])
        return self.op("Mul", [wide, scale])

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
"""Kinds of operators that keep the name of the node that they replace, without a suffix."""

Rule = Callable[[Writer, onnx.NodeProto, dict[str, Any]], None]
"""A function that writes operators in place of a node. Its last argument is the node's attributes,
by name.
"""
Rules = Mapping[tuple[str, str], Rule]
"""The function that rewrites each operator, by the operator's domain and name."""


def rewritten(model: onnx.ModelProto, rules: Rules) -> onnx.ModelProto:
    """Return `model` with the operators of `rules` replaced, in subgraphs too.

    Return `model` itself if it has none of the operators in `rules`.
    """
    if not any(_key(node) in rules for node in nodes_of(model.graph)):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    _rewrite(changed.graph, rules, {}, {})
    known = {opset.domain for opset in changed.opset_import}
    for domain in sorted({node.domain for node in nodes_of(changed.graph)} - known):
        if domain:
            changed.opset_import.append(helper.make_opsetid(domain, 1))
    return changed


def _rewrite(
    graph: onnx.GraphProto,
    rules: Rules,
    shapes: Mapping[str, tuple[int, ...]],
    given: Mapping[str, TensorProto],
) -> None:
    """Rewrite `graph` in place.

    Parameters
    ----------
    shapes, given: the shapes and values of the constants of the graphs around `graph`.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    own = {name: tuple(tensor.dims) for name, tensor in constants.items()}
    writer = Writer({**shapes, **own}, {**given, **constants})
    for node in graph.node:
        for attribute in node.attribute:
            given_here = [attribute.g] if attribute.HasField("g") else []
            for inner in (*given_here, *attribute.graphs):
                _rewrite(inner, rules, writer.shapes, writer.given)
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    writer.given[node.output[0]] = attribute.t
                    writer.shapes[node.output[0]] = tuple(attribute.t.dims)
        rule = rules.get(_key(node))
        if rule is None:
            writer.nodes.append(node)
        else:
            writer.begin(node)
            rule(writer, node, {a.name: helper.get_attribute_value(a) for a in node.attribute})
    nodes = [*writer.nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(writer.constants)


def as_onnx_has_it(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    """Rewrite an operator of another domain as ONNX's operator of the same name."""
    w.op(node.op_type, node.input, node.output[0], **attrs)


def input_of(node: onnx.NodeProto, i: int) -> str:
    """The name of an input; empty if the node leaves it out."""
    return str(node.input[i]) if i < len(node.input) else ""


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
