"""Tests the results of PyTorch in the GPU benchmark, as far as this is possible without a GPU."""

from __future__ import annotations

import gc
import importlib.util
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks import torch_gpu
from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime


@pytest.mark.parametrize(
    "way", [torch_gpu.eager, pytest.param(torch_gpu.compiled, marks=pytest.mark.slow)]
)
def test_numbers_with_inputs_that_change(way: Callable[..., torch_gpu.Call]) -> None:
    pytest.importorskip("torch")
    model = nets.inception_like()
    feed = nets.feeds(model)
    runner = torch_gpu.TorchRunner(model, way, list(feed.values()), device="cpu")
    for factor in (1, -2, 1):
        scaled = {name: np.float32(factor) * array for name, array in feed.items()}
        runner.write(list(scaled.values()))
        expected = run_onnxruntime(model, scaled).values()
        for got, want in zip(runner.run(), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())


def test_why_it_cannot_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "built with CUDA 13.0, finds no GPU" in torch_gpu.why_not()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "is built without CUDA" in torch_gpu.why_not()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert torch_gpu.why_not() == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torch_gpu.why_not() == "the package `torch` is not installed"


def test_weights_outlive_the_capture() -> None:
    """A CUDA graph holds the addresses of weights, so the weights must live as long as the
    graph."""
    pytest.importorskip("torch")
    seen: list[weakref.ref[Any]] = []

    def way(twin: Any, inputs: Any) -> torch_gpu.Call:
        seen.extend(weakref.ref(buffer) for buffer in twin.buffers())
        return list

    model = nets.inception_like()
    runner = torch_gpu.TorchRunner(model, way, list(nets.feeds(model).values()), device="cpu")
    gc.collect()
    assert seen
    assert all(buffer() is not None for buffer in seen)
    del runner
    gc.collect()
    assert all(buffer() is None for buffer in seen)
