"""Tests that the memory of a process does not grow with the number of runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil

import tvm_interop
from tests.nets import Net
from tvm_interop import GraphModule

RUNS = 5000
MOST_BYTES = 2**21
"""The memory may grow by less than a page for every other run."""


def test_runs_of_a_tiny_model_take_turns_with_one_arena(tmp_path: Path) -> None:
    """The tensors between the model's operators take only a few bytes."""
    net = Net()
    x = net.input("x", [1, 2])
    hidden = net.op("MatMul", [x, net.weight(2, 2)], "h")
    net.op("MatMul", [net.op("Relu", [hidden], "r"), net.weight(2, 2)], "y")
    tvm_interop.compile(
        net.model("y"), scheduler="sequential", streams=1, providers=["tvm"],
        latency_db=":memory:", out=tmp_path / "model.tar",
    )  # fmt: skip
    module = GraphModule(tmp_path / "model.tar")
    assert 0 < module.plan.arena_bytes < 512
    module.run(x=np.ones((1, 2), np.float32))
    for _ in range(RUNS // 10):
        module.run()
    before = psutil.Process().memory_info().rss
    for _ in range(RUNS):
        module.run()
    assert psutil.Process().memory_info().rss - before < MOST_BYTES
