"""Computes nodes that depend only on sizes and constants, by ONNX's reference implementation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

UNSURE = frozenset(
    (
        "AveragePool", "Col2Im", "GridSample", "LpPool", "MaxPool", "MaxUnpool",
        "NonMaxSuppression", "Resize", "RoiAlign", "Unique", "Upsample",
    )
)  # fmt: skip
"""Operators for which ONNX's reference may give other results than the compiled model."""


def computed(
    node: onnx.NodeProto, evaluator: ReferenceEvaluator, given: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the results of a node by their names."""
    if node.op_type == "GatherElements":
        return {node.output[0]: _gathered(node, *(given[name] for name in node.input))}
    with np.errstate(all="ignore"):
        results = evaluator.run(None, {name: given[name] for name in node.input if name})
    return dict(zip(node.output, map(np.asarray, results), strict=False))


def _gathered(node: onnx.NodeProto, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The result of a `GatherElements`, whose indices may have a smaller shape than its data.

    ONNX's reference refuses such indices.
    """
    axis = next((int(each.i) for each in node.attribute if each.name == "axis"), 0) % data.ndim
    near = (slice(None) if a == axis else slice(size) for a, size in enumerate(indices.shape))
    return np.take_along_axis(data[tuple(near)], indices, axis)
