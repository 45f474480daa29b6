"""Compares results of a GPU with onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx

from tests.networks import feeds
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop import GraphModule


def assert_like_onnxruntime(module: GraphModule, model: onnx.ModelProto) -> None:
    """Check runs of `module` on two inputs in turn against onnxruntime. `model` is in float32."""
    for seed in (1, 2, 1):  # A CUDA graph must not return an earlier answer.
        inputs = feeds(model, seed)
        module.run(**inputs)
        for i, expected in enumerate(run_onnxruntime(model, inputs).values()):
            got = module.get_output(i).numpy()
            scale = float(np.abs(expected).max())
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4 + 1e-4 * scale)
