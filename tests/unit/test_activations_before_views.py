"""Tests that an activation behind a transposition is computed with the product before it."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import tvm_interop
from tests.nets import Net
from tvm_interop.frontend.load import load_model
from tvm_interop.lowering.extract import extract
from tvm_interop.lowering.lower import LowerToUnits

CHANNELS, SIDE = 32, 6


def mix_ffn(activation: str, *outputs: str, residual: bool = False) -> onnx.ModelProto:
    """A depthwise convolution as in SegFormer. Its result is reshaped from an image to a sequence,
    and then passes through `activation`."""
    net = Net()
    net.input("image", (1, CHANNELS, SIDE, SIDE))
    net.conv("image", "conv", (CHANNELS, CHANNELS), 3, group=CHANNELS)
    before = net.op("Add", ["conv", "image"], "sum") if residual else "conv"
    net.op("Reshape", [before, net.constant(np.array([1, CHANNELS, SIDE * SIDE]))], "flat")
    net.op("Transpose", ["flat"], "turned", perm=[0, 2, 1])
    if activation == "erf":
        root = net.constant(np.full((1, 1, 1), np.sqrt(2), np.float32))
        net.op("Div", ["turned", root], "scaled")
        net.op("Erf", ["scaled"], "erf")
        net.op("Add", ["erf", net.constant(np.full((1, 1, 1), 1, np.float32))], "plus")
        net.op("Mul", ["turned", "plus"], "product")
        half = net.constant(np.full((1, 1, 1), 0.5, np.float32))
        net.op("Mul", ["product", half], "active")
    else:
        net.op(activation, ["turned"], "active")
    net.op("MatMul", ["active", net.weight(CHANNELS, 48)], "y")
    return net.model("y", *outputs, opset=20)


MOVED = {
    "GELU": mix_ffn("Gelu"),
    "GELU of several operators": mix_ffn("erf"),
    "ReLU": mix_ffn("Relu"),
    "after a sum": mix_ffn("Gelu", residual=True),
}
KEPT = {
    "a transposed output": mix_ffn("Gelu", "turned"),
    "an image that is an output": mix_ffn("Gelu", "conv"),
    "an operator that is not an activation": mix_ffn("Softsign"),
}


@pytest.mark.parametrize("name", [*MOVED, *KEPT])
def test_the_activation_follows_the_convolution(name: str) -> None:
    model = (MOVED | KEPT)[name]
    operators = extract(LowerToUnits("llvm")(load_model(model))).operators
    (convolution,) = (op.kernel for op in operators if "conv2d" in op.kernel)
    assert any(word in convolution for word in ("gelu", "erf", "relu")) == (name in MOVED)


@pytest.mark.parametrize("providers", [None, ["tvm"]], ids=["libraries", "tvm"])
@pytest.mark.parametrize("name", [*MOVED, *KEPT])
def test_results_are_right(name: str, providers: list[str] | None) -> None:
    model = (MOVED | KEPT)[name]
    image = np.random.default_rng(0).standard_normal((1, CHANNELS, SIDE, SIDE)).astype(np.float32)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"image": image})
    module = tvm_interop.GraphModule(
        tvm_interop.compile(model, latency_db=":memory:", time_budget=0, providers=providers)
    )
    module.run(image=image)
    for i, array in enumerate(wanted):
        np.testing.assert_allclose(module.get_output(i).numpy(), array, rtol=1e-5, atol=1e-5)
