"""Tests casts to bool and `Equal` of booleans. Exporters write them for divisions that round."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvm_interop
from tests.masked_nets import theirs
from tests.nets import Net
from tests.one_node import computed


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


@pytest.mark.parametrize("kind", ["Softmax", "Sigmoid", "Exp"])
def test_a_condition_that_casts_an_exponential(kind: str) -> None:
    net = Net()
    x = net.input("x", (3, 5))
    condition = net.op("Cast", [net.op(kind, [x], "large")], "condition", to=TensorProto.BOOL)
    net.op("Where", [condition, x, net.op("Neg", [x], "minus")], "y")
    made = net.model("y", check=False)
    numbers = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    numbers[0, :2] = -200, 200
    feed = {"x": numbers}
    np.testing.assert_array_equal(computed(made, feed)[0], theirs(made, feed)[0])
