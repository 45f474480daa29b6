"""Compares the benchmark networks with onnxruntime, and schedules with each other bit for bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.networks import BATCH, SMALL, feeds
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.numerics.test_schedules import run
from tvm_interop import GraphModule, LatencyTable, models
from tvm_interop.compiler.api import Compilation, CompileOptions

_SCHEDULERS: dict[str, dict[str, int]] = {
    "sequential": {},
    "greedy": {},
    "lios": {},
    # For blocks as wide as the blocks of NASNet-A, IOS searches for minutes. With this limit of
    # transitions, it searches for seconds.
    "ios": {"max_group_ops": 1, "max_groups": 2, "max_transitions": 5_000},
}


_LONG = ("bert_base", "inception_v3", "nasnet_a", "randwire")
"""These networks take a quarter of a minute even at a small size.

Lighter networks of their kind are tested here.
"""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in _LONG else n for n in SMALL]
)
def test_small(name: str) -> None:
    check(models.build(name, BATCH.get(name, 1), SMALL[name]), ("greedy", "lios", "ios"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_full_size(name: str) -> None:
    check(models.build(name), ("ios",))


def check(model: onnx.ModelProto, schedulers: tuple[str, ...]) -> None:
    """Run `model` sequentially and with each scheduler, on made-up latencies."""
    compilation = Compilation(model, CompileOptions(streams=2, threads=1, latency_db=":memory:"))
    nodes = {node.name for node in model.graph.node}
    names = {op.whole or op.name for op in compilation.program.operators}
    # An operator has the name of its node, perhaps with a suffix that makes the name unique.
    assert all(n in nodes or n.rsplit("_", 1)[0] in nodes for n in names)
    rng = np.random.default_rng(1)
    latency = LatencyTable(rng.uniform(1, 100, compilation.graph.num_ops), streams=2)
    feed = feeds(model)
    results = {}
    for scheduler in ("sequential", *schedulers):
        schedule = compilation.schedule(scheduler, latency, **_SCHEDULERS[scheduler])
        results[scheduler] = run(GraphModule(compilation.artifact(schedule)), feed)
    for got, want in zip(results["sequential"], run_onnxruntime(model, feed).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())
    for scheduler, outputs in results.items():
        for got, want in zip(outputs, results["sequential"], strict=True):
            np.testing.assert_array_equal(got, want, err_msg=scheduler)
