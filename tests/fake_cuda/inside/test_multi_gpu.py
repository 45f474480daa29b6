"""Schedules programs over several GPUs with our schedulers, and runs them on the fake GPUs."""

from __future__ import annotations

import gc
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tvm_interop
from tests.fake_cuda import fake_gpu
from tests.fake_cuda.happens_before import check
from tests.fake_cuda.random_program import SHAPE, effects_of, random_program, reference
from tests.gpu_evaluator import makespan_of, streams_makespan_of
from tests.nets import inception_like
from tvm_interop import DeviceError, GraphModule, OpGraph
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.latency import LatencyTable, Link
from tvm_interop.plan.check import check_plan, read_plan
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.scheduling import Schedule, schedule
from tvm_interop.viz.record import record

SCHEDULERS = ("hios-lp", "hios-mr", "heft", "multi-gpu")


def ran_right_and_safe(seed: int, name: str, num_ops: int, log: Path) -> Plan:
    """Schedule a random program over several GPUs, run it, and return the plan.

    The function checks that the schedule is valid, and that its makespan is the makespan of an
    evaluator that shares no code with the scheduler. It checks that the plan passes its checker,
    and that the results are right. Real GPUs may do the work in any order that the calls allow. So
    the function also checks the log for orders that would give wrong results.
    """
    rng = random.Random(seed)
    program = random_program(seed, num_ops)
    graph = program.graph()
    latency = LatencyTable(
        [float(rng.randint(1, 20)) for _ in range(num_ops)],
        streams=2,
        transfers={edge: float(rng.randint(0, 9)) for edge in set(graph.edges)},
    )
    made = schedule(graph, name, latency, gpus=_cuda.device_count(), window=1 + seed % 3)
    made.validate(graph)
    assert made.makespan == predicted(graph, made, latency)
    plan = make_plan(program, made, device="cuda:0")
    check_plan(plan)
    fake_gpu.start_log(log)
    instance = CudaInstance(plan, fake_gpu.Kernels(effects_of(program)), program.weights)
    x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
    instance.write(plan.inputs[0], x)
    instance.run()
    for v, expected in zip(plan.outputs, reference(program, x), strict=True):
        np.testing.assert_array_equal(instance.read(v), expected)
    accesses = fake_gpu.accesses_of(instance)
    del instance
    gc.collect()
    fake_gpu.stop_log()
    assert check(log, accesses) == []
    return plan


def predicted(graph: OpGraph, made: Schedule, latency: LatencyTable) -> float:
    """The makespan of a schedule, computed by the tests' own evaluators.

    The schedule may have streams on one GPU, stages on one GPU, or stages on several GPUs.
    """
    if not made.is_staged:
        return streams_makespan_of(graph, made.streams, latency)
    if not made.devices:
        return sum(latency.stage(stage.groups) for stage in made.stages)
    return makespan_of(graph, made.gpu_stages, latency)


@pytest.fixture
def little_to_collect() -> Iterator[None]:
    """Make the garbage collector ignore all older objects, so that its many runs here are short."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("little_to_collect")
def test_2000_graphs_with_transfers(tmp_path: Path) -> None:
    spread = 0
    for seed in range(2000):
        name = SCHEDULERS[seed % len(SCHEDULERS)]
        plan = ran_right_and_safe(seed, name, 2 + seed % 11, tmp_path / "calls.jsonl")
        spread += any(op.is_copy for op in plan.operators)
    assert spread >= 1000


@pytest.mark.usefixtures("little_to_collect")
def test_40_graphs_with_transfers(tmp_path: Path) -> None:
    plans = [
        ran_right_and_safe(seed, name, 3 + seed, tmp_path / "calls.jsonl")
        for seed in range(10)
        for name in SCHEDULERS
    ]
    assert sum(any(op.is_copy for op in plan.operators) for plan in plans) >= 15


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
    """The random schedules must contain what the other tests need: several GPUs, copies, and stages
    of several operators."""
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
        providers=["tvm"],  # Nothing is measured, so the log has only the calls of the runs.
    )
    assert artifact.plan.devices == ("cuda:0", "cuda:1")
    module = GraphModule(artifact)
    module.run()
    assert "peer copy" in {row.kernel for row in module.profile()}
    del module
    seen = record(artifact, "net", runs=1)
    assert list(seen.lanes()) == ["cuda:0", "cuda:1"]
    assert seen.num_copies == sum(op.is_copy for op in artifact.plan.operators) > 0
    assert check_log() == []
    # The plan needs one GPU more than the machine has.
    missing = _cuda.device_count()
    plan = read_plan(artifact.plan.to_json().replace("cuda:1", f"cuda:{missing}"))
    says = f"no device `cuda:{missing}`: this machine has {missing}, numbered from 0"
    with pytest.raises(DeviceError, match=says):
        GraphModule(replace(artifact, plan=plan))
