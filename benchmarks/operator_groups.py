"""Groups the operators of an ONNX model, to compare runtimes that fuse operators differently.

A group is one main operator, such as a convolution, and the elementwise operators after it.
Runtimes differ in how many of the elementwise operators they fuse into the main operator. The
operators of one group together do the same work in all runtimes, so times are compared by group.
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
"""Text that runtimes add to the names of ONNX nodes. We add numbers to equal names and to parts of
divided operators. All other patterns are of onnxruntime."""


def kind_of(operator: str) -> str:
    """The kind of an operator, such as "convolution"; "other" if it is unknown.

    Parameters
    ----------
    operator: type of the operator as ONNX, onnxruntime or a kernel library names it.
    """
    return _KIND_OF.get(operator, "other")


class OperatorGroups:
    """The groups of operators of a model. A group has the name of its first ONNX node.

    An elementwise operator joins the group of its producer. If it has several producers, as the sum
    at the end of a residual block has, it joins the latest group. A runtime may fuse operators of
    two groups, or may fuse a sum with another producer than the latest. In both cases, the time of
    the fused operator appears in the row of only one group.

    Attributes
    ----------
    kinds: the kind of each group, by name, in the model's order.
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
                # Runtimes compute constants before all runs, so constants belong to no group.
                constants.update(node.output)
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
        """The group of an operator that a runtime has run; None if it matches no ONNX node.

        Parameters
        ----------
        name: name of the operator in the runtime. It is the name of an ONNX node or of an output of
            the node, and may have additions by the runtime.
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
