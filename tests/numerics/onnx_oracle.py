"""Runs models in onnxruntime to get expected results."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnxruntime

import tvm_interop


def run_onnxruntime(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], *, rewrites: bool = True
) -> dict[str, np.ndarray]:
    """Outputs of `model` by name. If `rewrites` is false, onnxruntime must not change the
    operators."""
    return runner(model, rewrites=rewrites)(feeds)


def runner(
    model: onnx.ModelProto, *, rewrites: bool = True
) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """A function that gives the same results as `run_onnxruntime`, but loads the model only
    once."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not rewrites:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    return run


def assert_computed_alike(model: onnx.ModelProto) -> tvm_interop.Artifact:
    """Check TVM's kernels against onnxruntime on a random `x`, and return the artifact.

    `model` has one float input `x` and one output.
    """
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    (wanted,) = run_onnxruntime(model, {"x": x}).values()
    artifact = tvm_interop.compile(
        model, scheduler="sequential", latency_db=":memory:", providers=["tvm"]
    )
    module = tvm_interop.GraphModule(artifact)
    module.run(x=x)
    got = module.get_output(0).numpy()
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    return artifact
