"""Operators of an ONNX model, grouped so that two runtimes which fuse differently can be compared.

A group is one operator that does work, a convolution say, and the elementwise ones behind it: each
runtime fuses more or fewer of those into it, and the sum over the group is the same work for both.
"""

from __future__ import annotations

import re

import onnx

_ELEMENTWISE = {
    "Add", "BatchNormalization", "Cast", "Clip", "Div", "Dropout", "Erf", "Flatten", "Identity",
    "Mul", "Pow", "Relu", "Reshape", "Sigmoid", "Sqrt", "Sub", "Sum", "Tanh", "Unsqueeze",
}  # fmt: skip
_KINDS = {
    "convolution": ("Conv", "FusedConv", "conv2d"),
    "pooling": ("AveragePool", "GlobalAveragePool", "MaxPool", "avg_pool2d", "max_pool2d"),
    "matrix product": ("FusedGemm", "FusedMatMul", "Gemm", "MatMul", "matmul"),
    "concatenation": ("Concat", "concat"),
    "normalisation": ("LRN", "LayerNormalization", "SkipLayerNormalization", "Softmax", "lrn"),
    "elementwise": (*sorted(_ELEMENTWISE), "Gelu"),
    "transposition": ("Transpose",),
    "reorder": ("ReorderInput", "ReorderOutput", "reorder"),
}
_KIND_OF = {op: kind for kind, ops in _KINDS.items() for op in ops}
_AFFIXES = re.compile(r"^fused |_nchwc|/\w+Fusion/?$|_token_\d+$|_\d+$|\[\d+/\d+\]$")
"""What runtimes add to the names they take over: onnxruntime, and we for equal names and parts."""


def kind_of(operator: str) -> str:
    """The kind of an operator, given ONNX's, onnxruntime's or a kernel library's word for it."""
    return _KIND_OF.get(operator, "other")


class OperatorGroups:
    """The groups of a model, each named after the ONNX node at its head.

    An elementwise operator joins the group of its producer, the latest where it has several (the
    sum at the end of a residual block). Where only one runtime fuses across groups, or sums into
    another producer than the latest, its time appears in the row of one of them.

    Attributes
    ----------
    kinds: of each group, by name, in the model's order.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.kinds: dict[str, str] = {}
        self._by_node: dict[str, str] = {}
        self._by_output: dict[str, str] = {}
        weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
        constants = set(weights)
        order: dict[str, int] = {}
        for node in model.graph.node:
            if constants.issuperset(filter(None, node.input)):
                constants.update(node.output)  # Both sides compute it once, before they run.
                continue
            producers = [self._by_output[v] for v in node.input if v in self._by_output]
            if node.op_type in _ELEMENTWISE and producers:
                group = max(producers, key=order.__getitem__)
            else:
                group = node.name or node.output[0]
                order[group] = len(order)
                self.kinds[group] = _kind_of_node(node, weights)
            self._by_node[node.name] = group
            self._by_output.update(dict.fromkeys(node.output, group))

    def of(self, name: str) -> str | None:
        """The group of the operator that a runtime calls `name`; None if that is no ONNX node's.

        The name is a node's, or that of its output, with what runtimes add to it.
        """
        while name:
            for names in (self._by_node, self._by_output):
                if name in names:
                    return names[name]
            shorter = _AFFIXES.sub("", name, count=1)
            if shorter == name:
                return None
            name = shorter
        return None


def _kind_of_node(node: onnx.NodeProto, weights: dict[str, tuple[int, ...]]) -> str:
    groups = next((a.i for a in node.attribute if a.name == "group"), 1)
    if groups == 1:
        return kind_of(node.op_type)
    channels_of_each = weights.get(node.input[1], (0, 0))[1]
    return "depthwise convolution" if channels_of_each == 1 else "grouped convolution"
