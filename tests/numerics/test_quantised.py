"""Quantised models: their roundings are kept, and that they gain no speed is told."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest

import tvm_interop
from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop.frontend import load_model

STEP = 0.005


def quantised() -> onnx.ModelProto:
    """A convolution and a product of integers, as onnxruntime's quantiser writes them (QDQ)."""
    net = nets.Net()
    rng = np.random.default_rng(0)

    def rounded(x: str, step: float, name: str) -> str:
        given = [net.constant(np.float32(step)), net.constant(np.uint8(128))]
        words = net.op("QuantizeLinear", [x, *given], f"{name}_q")
        return net.op("DequantizeLinear", [words, *given], f"{name}_dq")

    def weight(*shape: int) -> str:
        words = net.constant(rng.integers(-127, 128, shape).astype(np.int8))
        steps = net.constant(rng.uniform(0.001, 0.002, shape[0]).astype(np.float32))
        zeros = net.constant(np.zeros(shape[0], np.int8))
        return net.op("DequantizeLinear", [words, steps, zeros], f"weight_{len(shape)}", axis=0)

    x = rounded(net.input("x", (1, 8, 9, 9)), 1 / 127, "x")
    conv = net.op("Conv", [x, weight(16, 8, 3, 3)], "conv", kernel_shape=[3, 3], pads=[1] * 4)
    conv = rounded(net.op("Relu", [conv], "relu"), 0.02, "conv")
    flat = net.op("Flatten", [net.op("GlobalAveragePool", [conv], "mean")], "flat")
    product = net.op("Gemm", [rounded(flat, 0.01, "mean"), weight(16, 10)], "product")
    return net.model(rounded(product, STEP, "y"))


def test_a_quantised_model_is_within_a_step(caplog: pytest.LogCaptureFixture) -> None:
    model = quantised()
    with caplog.at_level(logging.WARNING, "tvm_interop"):
        artifact = tvm_interop.compile(model, scheduler="sequential")
    assert "is quantised: between its 10 QuantizeLinear and DequantizeLinear" in caplog.text
    module = tvm_interop.GraphModule(artifact)
    x = np.random.default_rng(1).uniform(-1, 1, (1, 8, 9, 9)).astype(np.float32)
    module.run(x=x)
    (wanted,) = run_onnxruntime(model, {"x": x}).values()
    got = module.get_output(0).numpy()
    assert np.abs(wanted).max() > 3 * STEP
    assert np.abs(got - wanted).max() <= STEP * 1.001
    np.testing.assert_allclose(got / STEP, np.round(got / STEP), atol=1e-4)


def test_other_models_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    load_model(nets.chain())
    assert "quantised" not in caplog.text
