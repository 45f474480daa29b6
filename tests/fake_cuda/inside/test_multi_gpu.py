"""Schedules over GPUs by our own schedulers, from prices to what the fake GPUs ran."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable

import numpy as np
import pytest

import tvm_interop
from tests.fake_cuda import fake_gpu
from tests.fake_cuda.random_program import SHAPE, effects_of, random_program, reference
from tests.nets import inception_like
from tvm_interop import GraphModule
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.latency import LatencyTable, Link
from tvm_interop.plan.check import check_plan
from tvm_interop.plan.make import make_plan
from tvm_interop.scheduling import schedule

SCHEDULERS = ("hios-lp", "hios-mr", "heft", "multi-gpu")


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_are_right_and_safe(
    seed: int, name: str, check_log: Callable[..., list[str]]
) -> None:
    program = random_program(seed, num_ops=24)
    graph = program.graph()
    rng = random.Random(seed)
    op_us = [float(rng.randint(1, 20)) for _ in range(graph.num_ops)]
    latency = LatencyTable(op_us, streams=2, transfers=Link(32.0, 1.0).transfers(graph))
    made = schedule(graph, name, latency, gpus=_cuda.device_count(), intra="windows")
    plan = make_plan(program, made, device="cuda:0")
    check_plan(plan)
    kernels = fake_gpu.Kernels(effects_of(program))
    instance = CudaInstance(plan, kernels, program.weights)
    draws = np.random.default_rng(seed)
    for _ in range(2):
        x = draws.standard_normal(SHAPE).astype(np.float32)
        instance.write(plan.inputs[0], x)
        instance.run()
        for v, expected in zip(plan.outputs, reference(program, x), strict=True):
            np.testing.assert_array_equal(instance.read(v), expected)
    accesses = fake_gpu.accesses_of(instance)
    del instance
    assert check_log(accesses) == []


def test_these_schedules_have_what_they_are_for() -> None:
    """Several GPUs, copies, and windows that other work of the GPU waits for."""
    plans = []
    for seed in range(6):
        program = random_program(seed, num_ops=24)
        graph = program.graph()
        latency = LatencyTable([5.0] * graph.num_ops, transfers=Link(32.0).transfers(graph))
        made = schedule(graph, "heft", latency, gpus=2)
        plans.append(make_plan(program, made, device="cuda:0"))
        assert any(len(ops) > 1 for gpu in made.gpu_stages for ops in gpu)
    assert {plan.devices for plan in plans} == {("cuda:0", "cuda:1")}
    assert all(any(op.is_copy for op in plan.operators) for plan in plans)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_a_model_compiled_for_two_gpus_runs_there(check_log: Callable[..., list[str]]) -> None:
    artifact = tvm_interop.compile(
        inception_like(),
        target="cuda",
        scheduler="multi-gpu",
        latency="a40",
        link=Link(1e9),
        gpus=2,
        intra="none",
        keep_slower=True,
        latency_db=":memory:",
    )
    assert artifact.plan.devices == ("cuda:0", "cuda:1")
    module = GraphModule(artifact)
    module.run()
    assert "peer copy" in {row.kernel for row in module.profile()}
    del module
    assert check_log() == []
