"""Tests ONNX's `Equal` of booleans, which exporters write for rounding divisions of integers."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

import tvm_interop


def test_numbers() -> None:
    x, y, z = (
        helper.make_tensor_value_info(name, TensorProto.BOOL, shape)
        for name, shape in (("x", [2, 1]), ("y", [2]), ("z", [2, 2]))
    )
    graph = helper.make_graph([helper.make_node("Equal", ["x", "y"], ["z"])], "net", [x, y], [z])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    artifact = tvm_interop.compile(model, scheduler="sequential", latency_db=":memory:")
    module = tvm_interop.GraphModule(artifact)
    module.run(x=np.array([[True], [False]]), y=np.array([True, False]))
    np.testing.assert_array_equal(module.get_output(0).numpy(), [[True, False], [False, True]])
