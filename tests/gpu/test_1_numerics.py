"""First tests on a GPU: results for changing inputs are compared with onnxruntime's results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.gpu.agreement import assert_like_onnxruntime
from tests.merging import Eager
from tests.nets import attention, branches, in_float16, inception_like, norms, split
from tests.networks import SMALL, feeds
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop import GraphModule, models
from tvm_interop.compiler.api import Compilation, CompileOptions

NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "inception_like": inception_like,
    "branches": branches,
    "norms": norms,
    "split": split,
    "attention": attention,
}
NETWORKS = ("squeezenet", "nasnet_a", "inception_v3", "randwire")
"""The networks in the order of the tests. NASNet-A comes early, because only NASNet-A has depthwise
convolutions."""


def check(model: onnx.ModelProto) -> None:
    artifact = tvm_interop.compile(model, target="cuda", scheduler="nimble", keep_slower=True)
    module = GraphModule(artifact)
    assert module._instance.dispatch == "captured"
    assert_like_onnxruntime(module, model)


@pytest.mark.parametrize("name", NETS)
def test_small_nets(name: str) -> None:
    check(NETS[name]())


@pytest.mark.parametrize("name", ["inception_like", "branches", "norms"])
def test_small_nets_in_float16(name: str) -> None:
    """The results are compared with onnxruntime in float32."""
    model = NETS[name]()
    artifact = tvm_interop.compile(
        in_float16(model), target="cuda", scheduler="nimble", keep_slower=True
    )
    module = GraphModule(artifact)
    for seed in (1, 2, 1):
        inputs = feeds(model, seed)
        module.run(**{key: array.astype(np.float16) for key, array in inputs.items()})
        for i, expected in enumerate(run_onnxruntime(model, inputs).values()):
            got = module.get_output(i).numpy()
            assert got.dtype == np.float16
            scale = float(np.abs(expected).max())
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-2 * scale)


@pytest.mark.parametrize("name", ["inception_like", "attention"])
def test_merged_operators(name: str) -> None:
    model = NETS[name]()
    made = Compilation(model, CompileOptions("cuda", latency_db=":memory:"))
    artifact = made.artifact(made.schedule("ios-merge", Eager(made)))
    check = artifact.manifest.merge_check
    assert check is not None
    assert check.largest is not None
    assert_like_onnxruntime(GraphModule(artifact), model)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    check(models.build(name, image_size=SMALL[name]))
