"""Tests that convolutions with few output channels become 1x1 convolutions and sums of shifts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed, one_node
from tvm_interop.frontend import load_model
from tvm_interop.lowering.lower import LowerToUnits
from tvm_interop.lowering.names import bindings_of
from tvm_interop.lowering.taps_as_channels import TapsAsChannels
from tvm_interop.machine.kernel_libraries import why_missing

Shape = tuple[int, ...]


def convolution(
    image: Shape, weights: Shape, *, constant: bool = True, dtype: str = "float32", **slides: Any
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A convolution with a bias, and its inputs."""
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in (image, weights, weights[:1])]
    return one_node("Conv", arrays, {1, 2} if constant else {2}, **slides)


def windows(mod: tvm.IRModule) -> list[Shape]:
    """Height and width of the window of each convolution in `main`."""
    calls = [getattr(binding, "value", None) for binding in bindings_of(mod["main"])]
    return [
        tuple(int(size) for size in call.args[1].ty.shape)[2:]
        for call in calls
        if isinstance(call, relax.Call) and call.op == tvm.ir.Op.get("relax.nn.conv2d")
    ]


REPLACED: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "one channel": ((1, 16, 37, 41), (1, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    "no padding": ((1, 33, 30, 31), (1, 33, 5, 3), {}),
    "three channels": ((1, 64, 19, 23), (3, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
    "uneven padding": ((1, 20, 29, 40), (2, 20, 3, 3), {"pads": [2, 0, 1, 2]}),
    "dilated images": ((3, 24, 17, 25), (1, 24, 3, 3), {"pads": [2, 3, 2, 3], "dilations": [2, 3]}),
    "a window of one row": ((1, 32, 5, 700), (1, 32, 1, 7), {"pads": [0, 3, 0, 3]}),
    "a window larger than the image": ((2, 48, 2, 400), (1, 48, 5, 5), {"pads": [2] * 4}),
}


@pytest.mark.parametrize("case", REPLACED)
@pytest.mark.parametrize("providers", [["tvm"], ["tvm", "onednn"]], ids=["tvm", "onednn"])
def test_numbers(case: str, providers: list[str]) -> None:
    if "onednn" in providers and why_missing("onednn"):
        pytest.skip("needs oneDNN")
    image, weights, slides = REPLACED[case]
    model, feeds = convolution(image, weights, **slides)
    assert windows(TapsAsChannels()(load_model(model))) == [(1, 1)]
    (got,) = computed(model, feeds, providers=providers)
    (wanted,) = run_onnxruntime(model, feeds).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


STAY: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "stride": ((1, 16, 80, 80), (1, 16, 3, 3), {"strides": [2, 2]}),
    "groups": ((1, 32, 40, 40), (2, 16, 3, 3), {"group": 2}),
    "many channels": ((1, 64, 20, 20), (16, 64, 3, 3), {}),
    "more taps than channels": ((1, 16, 40, 40), (2, 16, 3, 3), {}),
    "a window of one pixel": ((1, 64, 99, 99), (1, 64, 1, 1), {}),
    "small": ((1, 16, 12, 12), (1, 16, 3, 3), {}),
    "weights that are computed": ((1, 16, 40, 40), (1, 16, 3, 3), {"constant": False}),
    "float16": ((1, 16, 40, 40), (1, 16, 3, 3), {"dtype": "float16"}),
}


@pytest.mark.parametrize("case", STAY)
def test_others_stay(case: str) -> None:
    image, weights, slides = STAY[case]
    model, _ = convolution(image, weights, **slides)
    assert windows(TapsAsChannels()(load_model(model))) == [weights[2:]]


def test_infinity_and_nan_reach_the_pixels_that_they_should() -> None:
    model, feeds = convolution((1, 16, 40, 41), (1, 16, 3, 3), pads=[1, 1, 1, 1])
    (image,) = feeds.values()
    image[0, 3, 0, 0], image[0, 5, 20, 40] = np.inf, np.nan
    (got,) = computed(model, feeds)
    (wanted,) = run_onnxruntime(model, feeds).values()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_both_operators_keep_the_name() -> None:
    model, _ = convolution((1, 64, 32, 32), (1, 64, 3, 3), pads=[1, 1, 1, 1])
    units = [b.var.name for b in bindings_of(LowerToUnits()(load_model(model))["main"])]
    assert [name.startswith("the_node") for name in units[:2]] == [True, True], units


def test_convolutions_for_a_gpu_stay() -> None:
    model, _ = convolution((1, 16, 40, 40), (1, 16, 3, 3))
    with tvm.target.Target({"kind": "cuda", "arch": "sm_90"}):
        assert windows(TapsAsChannels()(load_model(model))) == [(3, 3)]
