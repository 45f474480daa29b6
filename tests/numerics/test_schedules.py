"""Tests that every schedule of real architectures gives the bits of sequential execution."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import tvm_interop
from tvm_interop import GraphModule, LatencyTable
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.models import light

QUICK = ("squeezenet",)

# Some tests compile for more streams than this machine may have cores. The streams then take turns.
pytestmark = pytest.mark.filterwarnings("ignore:the model was compiled for")


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in light.names()],
)
def test_schedules_agree(name: str) -> None:
    model = light.build(name)
    compilation = Compilation(model, CompileOptions(streams=3, threads=1, latency_db=":memory:"))
    modules = {
        scheduler: GraphModule(compilation.artifact(schedule))
        for scheduler, schedule in schedules(compilation).items()
    }
    rng = np.random.default_rng(0)
    shapes, dtypes = modules["sequential"].get_input_info()
    feed = {n: rng.standard_normal(s).astype(dtypes[n]) for n, s in shapes.items()}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, feed)
    results = {scheduler: run(module, feed) for scheduler, module in modules.items()}
    for got, want in zip(results["sequential"], expected, strict=True):
        scale = np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * scale)
    for scheduler, outputs in results.items():
        for got, want in zip(outputs, results["sequential"], strict=True):
            np.testing.assert_array_equal(got, want, err_msg=scheduler)


def schedules(compilation: Compilation) -> dict[str, tvm_interop.Schedule]:
    """Schedules of all schedulers, for invented latencies.

    The values of the latencies do not matter here.
    """
    rng = np.random.default_rng(1)
    latency = LatencyTable(rng.uniform(1, 100, compilation.graph.num_ops), streams=3)
    return {
        scheduler: compilation.schedule(scheduler, latency)
        for scheduler in ("sequential", "greedy", "lios", "ios")
    }


def run(module: GraphModule, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    module.run(**feed)
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]
