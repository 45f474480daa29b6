"""Tests that `TorchTwin` gives the results of onnxruntime, operator by operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests import nets
from tests.networks import SMALL
from tests.networks import feeds as network_feeds
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop import models
from tvm_interop.models import light

torch = pytest.importorskip("torch")

from benchmarks.torch_twin import TorchTwin  # noqa: E402


def check(model: onnx.ModelProto, feed: dict[str, np.ndarray], rtol: float = 1e-5) -> TorchTwin:
    """Check the results of the twin of `model`, and return the twin.

    The results must be near onnxruntime's results. `rtol` is the largest error, relative to the
    largest value.
    """
    twin = TorchTwin(model).eval()
    with torch.inference_mode():
        outputs = twin(*(torch.from_numpy(array) for array in feed.values()))
    for got, want in zip(outputs, run_onnxruntime(model, feed).values(), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=rtol * np.abs(want).max())
    return twin


def check_operator(kind: str, opset: int = 17, **attributes: Any) -> None:
    """Check the operator `kind` on an image."""
    net = nets.Net()
    net.op(kind, [net.input("x", [1, 3, 8, 7])], "y", **attributes)
    model = net.model("y", opset=opset)
    check(model, nets.feeds(model))


def test_batch_norm() -> None:
    net = nets.Net()
    x = net.input("x", [2, 3, 5, 5])
    scale, bias, mean, variance = net.positive(3), net.weight(3), net.weight(3), net.positive(3)
    net.op("BatchNormalization", [x, scale, bias, mean, variance], "y", epsilon=0.1)
    model = net.model("y")
    check(model, nets.feeds(model))


@pytest.mark.parametrize("counts_padding", [0, 1])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1], [1, 0, 0, 1]])
@pytest.mark.parametrize("stride", [1, 2])
def test_average_pooling(pads: list[int], counts_padding: int, stride: int) -> None:
    check_operator(
        "AveragePool",
        kernel_shape=[3, 3],
        strides=[stride] * 2,
        pads=pads,
        count_include_pad=counts_padding,
    )


@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [0, 0, 1, 1]])
def test_max_pooling(pads: list[int]) -> None:
    check_operator("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=pads)


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("attributes", [{}, {"axis": 1}, {"axis": 2}])
def test_softmax_of_each_version(opset: int, attributes: dict[str, int]) -> None:
    """Before version 13, Softmax normalises over `axis` and all later axes; the default is 1."""
    check_operator("Softmax", opset, **attributes)


def test_what_depends_on_constants_alone_is_computed_once() -> None:
    net = nets.Net()
    x = net.input("x", [1, 3, 4, 4])
    net.op("Unsqueeze", [net.positive(3)], "column", axes=[1, 2])
    net.op("Mul", [x, "column"], "y")
    model = net.model("y", opset=9)
    twin = check(model, nets.feeds(model))
    assert len(twin._steps) == 1


def test_an_unknown_operator_is_named() -> None:
    net = nets.Net()
    net.op("Hardmax", [net.input("x", [1, 3])], "y")
    with pytest.raises(ValueError, match=r"`y/Hardmax`.*`Hardmax`"):
        TorchTwin(net.model("y"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_networks(name: str) -> None:
    model = models.build(name, image_size=SMALL[name])
    check(model, network_feeds(model), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", light.names())
def test_light_models(name: str) -> None:
    model = light.build(name)
    check(model, nets.feeds(model), rtol=1e-4)
