"""Refuses nodes that make numbers from sizes in ways that `size_values` does not follow.

Most models read the sizes of tensors by `Shape` and `Size`. The results of some other operators
depend on sizes too, and not on the elements of a tensor: the number of tensors in a sequence, a
state that counts the steps of a `Scan`, or the diagonal of an `EyeLike`. During import such results
become constants. A model may ask of such a constant whether the batch is 7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx

from .even_growth import Sizes
from .expand import inner_graphs, inner_nodes, nodes_of
from .onnx_importer import node_name

OF_SHAPE = ("Shape", "Size")
"""The operators whose results `size_values` follows."""
OF_SEQUENCES = ("SplitToSequence", "SequenceLength")
"""Operators that turn the size of a tensor into the number of tensors of a sequence, and this
number into a tensor."""

Shape: TypeAlias = "tuple[int, ...]"
Seen: TypeAlias = "Mapping[Sizes, Mapping[str, Shape]]"
"""The shapes of all tensors, by name, for each combination of sizes that the model was imported
for.
"""


class UnevenSizesError(Exception):
    """A number in a model does not grow evenly with the sizes of the inputs.

    The message names the node that uses the number.
    """


class HiddenSizes:
    """Looks for nodes that make numbers from sizes without `Shape` and `Size`."""

    def __init__(self, graph: onnx.GraphProto, seen: Seen) -> None:
        self._seen = seen
        # The sequences that may have more tensors for larger sizes.
        self._growing: set[str] = set()
        self._read = {name for node in nodes_of(graph) for name in node.input}
        self._read.update(value.name for value in graph.output)

    def check(self, node: onnx.NodeProto) -> None:
        """Refuse a node that makes a number from a size.

        Raises
        ------
        UnevenSizesError
            The message names the node.
        """
        grown = self._growing.intersection(node.input)
        if node.op_type == "Scan":
            number = int(_attribute(node, "num_scan_inputs", 0))
            axes = _attribute(node, "scan_input_axes", [0] * number)
            for name, axis in zip(node.input[-number:], axes, strict=True):
                if self._grows(name, int(axis)):
                    raise _refused(node, f"takes a step for each index of `{name}`")
        elif node.op_type == "SequenceLength" and grown:
            raise _refused(node, f"counts the tensors of `{node.input[0]}`")
        elif node.op_type == "SplitToSequence":
            if self._grows(node.input[0], int(_attribute(node, "axis", 0))):
                self._growing.update(node.output)
        elif self._is_of_shape_alone(node) and self._grows(node.input[0]):
            raise _refused(node, f"makes numbers from the shape of `{node.input[0]}`")
        elif grown and node.op_type not in ("ConcatFromSequence", "SequenceAt"):
            self._growing.update(node.output)

    def check_inside(self, node: onnx.NodeProto) -> None:
        """Refuse a node with a subgraph that makes a number from a size.

        Raises
        ------
        UnevenSizesError
            The message names the node of the subgraph.
        """
        for inner in inner_nodes(node):
            if inner.op_type in OF_SHAPE:
                raise UnevenSizesError(
                    f"node `{node_name(inner)}` uses a size within the `{node.op_type}` "
                    f"`{node_name(node)}`, where sizes are not followed"
                )
            self.check(inner)
        self.leave(node)

    def leave(self, node: onnx.NodeProto) -> None:
        """Note whether a result of a node with subgraphs may be a sequence that grows."""
        results = (value.name for graph in inner_graphs(node) for value in graph.output)
        if not self._growing.isdisjoint(results):
            self._growing.update(node.output)

    def _is_of_shape_alone(self, node: onnx.NodeProto) -> bool:
        """Whether a result of the node depends on the shape of its input, but not on elements."""
        if node.op_type == "IsInf":
            signs = ("positive", "negative")
            return all(_attribute(node, f"detect_{sign}", 1) == 0 for sign in signs)
        if node.op_type == "Dropout":
            # Its second output is true for each element of the input.
            return not self._read.isdisjoint(node.output[1:])
        if node.op_type.startswith("Reduce") or node.op_type in ("Gemm", "MatMul"):
            # A sum of no elements is 0, and a product of none is 1.
            return any(0 in known.get(node.input[0], ()) for known in self._seen.values())
        return str(node.op_type) == "EyeLike"

    def _grows(self, name: str, axis: int | None = None) -> bool:
        """Whether the shape of a tensor, or its size along an axis, may differ between sizes."""
        shapes = [known[name] for known in self._seen.values() if name in known]
        if not shapes:
            return True
        if axis is None:
            return len(set(shapes)) > 1
        return len({shape[axis] for shape in shapes if -len(shape) <= axis < len(shape)}) != 1


def of_shape(node: onnx.NodeProto, shape: Shape) -> np.ndarray:
    """The result of a `Shape` or `Size` node for a tensor of this shape."""
    if node.op_type == "Size":
        return np.array(math.prod(shape), np.int64)
    ends = {a.name: int(a.i) for a in node.attribute}
    return np.array(shape[ends.get("start", 0) : ends.get("end", len(shape))], np.int64)


def reads_sizes(graph: onnx.GraphProto, sized: set[str]) -> bool:
    """Whether a subgraph may compute numbers from sizes.

    Parameters
    ----------
    sized: the names of the values outside of the subgraph that are computed from sizes.
    """
    kinds = {*OF_SHAPE, "EyeLike", "Loop", "Scan", "SequenceLength"}
    return any(
        node.op_type in kinds or not sized.isdisjoint(node.input) for node in nodes_of(graph)
    )


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    found = next((each for each in node.attribute if each.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def _refused(node: onnx.NodeProto, what: str) -> UnevenSizesError:
    return UnevenSizesError(
        f"node `{node_name(node)}` {what}, so its results depend on the size of an input in a way "
        "that is not followed for all sizes"
    )
