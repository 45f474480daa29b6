"""Models of operators of classical machine learning, which are compared with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.masked_nets import theirs
from tests.one_node import computed

DOMAIN = "ai.onnx.ml"
RNG = np.random.default_rng(3)
X = np.vstack([RNG.standard_normal((9, 4)), np.zeros((1, 4)), np.full((1, 4), -7)]).astype(
    "float32"
)
"""Rows of four features. One number is NaN."""
X[2, 1] = np.nan


def model_of(
    nodes: list[tuple[str, dict[str, Any]]], x: np.ndarray, outputs: int = 1, version: int = 3
) -> Any:
    """A model of independent nodes, all of which read `x`."""
    made, results = [], []
    for i, (op, attributes) in enumerate(nodes):
        names = [f"y{i}_{k}" for k in range(outputs)]
        results += [onnx.ValueInfoProto(name=name) for name in names]
        made.append(helper.make_node(op, ["x"], names, f"{op}_{i}", domain=DOMAIN, **attributes))
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        made, "g", [helper.make_tensor_value_info("x", kind, x.shape)], results
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(
    nodes: list[tuple[str, dict[str, Any]]],
    x: np.ndarray,
    outputs: int = 1,
    version: int = 3,
    tolerance: float = 1e-5,
) -> None:
    """Compare the nodes with onnxruntime: labels exactly, numbers within `tolerance`."""
    model = model_of(nodes, x, outputs, version)
    feed = {"x": x}
    wanted = theirs(model, feed)
    for i, (ours, other) in enumerate(zip(computed(model, feed), wanted, strict=True)):
        assert (ours.shape, ours.dtype) == (other.shape, other.dtype)
        if other.dtype == object:
            assert ours.tolist() == other.tolist(), f"output {i}"
            continue
        np.testing.assert_allclose(ours, other, tolerance, tolerance / 10, err_msg=f"output {i}")
