"""Tests ranges of small networks. Some passes change these networks only at the large sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.masked_nets import theirs
from tests.nets import Net
from tvm_interop.errors import InputError
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


def _pairs(*, with_batch: bool) -> onnx.ModelProto:
    """Adds up neighbouring rows of an input that has two rows for each row of the batch."""
    net = Net()
    x = net.input("x", ["2*batch", 4])
    parts = net.op("Reshape", [x, net.constant(np.array([-1, 2, 4]))], "parts")
    net.op("ReduceSum", [parts, net.constant(np.array([1]))], "sum", keepdims=0)
    if with_batch:
        net.op("Mul", ["sum", net.input("factor", ["batch", 4])], "y")
    return net.model("y" if with_batch else "sum", check=False)


@pytest.mark.parametrize("with_batch", [True, False])
def test_an_input_may_have_a_multiple_of_the_dimension(with_batch: bool, tmp_path: Path) -> None:
    model, path = _pairs(with_batch=with_batch), tmp_path / "pairs.tar"
    options: dict[str, Any] = {"scheduler": "sequential", "time_budget": 0, "out": path}
    artifact = tvm_interop.compile(model, shapes={"batch": (1, 9)}, most_sizes=3, **options)
    assert artifact.manifest.batch_sizes == ()
    rng = np.random.default_rng(0)
    for module in (GraphModule(artifact), GraphModule(path)):
        for batch in (9, 1, 2, 5, 3):
            feed = {"x": rng.standard_normal((2 * batch, 4)).astype(np.float32)}
            if with_batch:
                feed["factor"] = rng.standard_normal((batch, 4)).astype(np.float32)
            (wanted,) = theirs(model, feed)
            np.testing.assert_allclose(module(feed)[0], wanted, rtol=1e-4, atol=1e-5)
        with pytest.raises(InputError, match="for"):
            module(feed | {"x": np.zeros((5, 4), np.float32)})


def test_a_sum_with_the_dimension_is_refused() -> None:
    net = Net()
    net.op("Relu", [net.input("x", ["batch + 1", 4])], "y")
    with pytest.raises(InputError, match=r"input `x` has shape \(batch \+ 1, 4\).*within a sum"):
        tvm_interop.compile(net.model("y"), shapes={"batch": (1, 9)})


def test_bound_inputs_may_have_any_size_of_a_range() -> None:
    """Inputs are bound one after the other, so their sizes disagree in between."""
    net = Net()
    net.op("Mul", [net.input("x", ["batch", 4]), net.input("factor", ["batch", 4])], "y")
    model, options = net.model("y"), {"scheduler": "sequential", "time_budget": 0}
    artifact = tvm_interop.compile(model, shapes={"batch": (1, 9)}, most_sizes=3, **options)
    rng = np.random.default_rng(0)
    with tvm_interop.Session(artifact) as session:
        binding = session.io_binding()
        for batch in (5, 9, 1):
            feed = {
                name: rng.standard_normal((batch, 4)).astype(np.float32) for name in ("x", "factor")
            }
            made = np.zeros((batch, 4), np.float32)
            for name, array in feed.items():
                binding.bind_cpu_input(name, array)
            binding.bind_output("y", made)
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(made, feed["x"] * feed["factor"])
            np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], made)
        assert sum(session.runs_by_size.values()) == 3
