"""Tests ranges of small networks. Some passes change these networks only at the large sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.masked_nets import theirs
from tests.nets import Net
from tvm_interop.execution.graph_module import GraphModule


def _first_position() -> onnx.ModelProto:
    """Two layers of nine positions, of which the first is read."""
    net = Net()
    hidden = net.op("MatMul", [net.input("x", ["batch", 9, 16]), net.weight(16, 32)], "hidden")
    made = net.op("MatMul", [net.op("Tanh", [hidden], "tanh"), net.weight(32, 16)], "made")
    net.op("Gather", [made, net.constant(np.array(0))], "y", axis=1)
    return net.model("y")


def _few_channels() -> onnx.ModelProto:
    """A convolution with a single output channel."""
    net = Net()
    net.conv(net.input("x", ["batch", 16, 8, 8]), "y", (16, 1), 3)
    return net.model("y")


@pytest.mark.parametrize("make", [_first_position, _few_channels])
def test_a_pass_may_change_some_sizes_only(make: Callable[[], onnx.ModelProto]) -> None:
    model = make()
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    options: dict[str, Any] = {"scheduler": "sequential", "time_budget": 0}
    artifact = tvm_interop.compile(model, shapes={"batch": (1, 16)}, most_sizes=3, **options)
    module, rng = GraphModule(artifact), np.random.default_rng(0)
    for batch in (1, 2, 5, 9, 16):
        x = rng.standard_normal((batch, *shape[1:])).astype(np.float32)
        (wanted,) = theirs(model, {"x": x})
        np.testing.assert_allclose(module(x)[0], wanted, rtol=1e-4, atol=1e-5)
