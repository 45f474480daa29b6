"""Runs Opara's schedule of GoogLeNet on as many streams as it opens, on the asynchronous fake CUDA.

The graph, the launch order and the 28 streams are those of the compiled network, from
`benchmarks/results/kernel_demands.json`. The tensors are small, and the kernels are written in
Python, so that the results are known to the bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import kernel_demands
from tests.damage import change_operator
from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import DISPATCHES
from tests.fake_cuda.random_program import SHAPE, effects_of, program_on, reference
from tvm_interop import schedule
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.program import Program

RUNS, QUICK_RUNS = 1000, 8
NETWORK: dict[str, Any] = json.loads(kernel_demands.RESULT.read_text())["networks"]["googlenet"]


def planned(arch: str) -> tuple[Program, Plan]:
    graph = kernel_demands.graph_of(NETWORK)
    made = schedule(graph, "opara", traits=kernel_demands.traits_of(NETWORK, arch))
    program = program_on(graph)
    plan = make_plan(program, made, device="cuda:0")
    assert len(plan.streams) == 28
    return program, plan


def wrong_runs(program: Program, plan: Plan, dispatch: _cuda.Dispatch, runs: int) -> int:
    """The number of runs whose bits differ from the bits of a sequential run."""
    kernels = fake_gpu.Kernels(effects_of(program))
    instance = CudaInstance(plan, kernels, program.weights, dispatch=dispatch)
    assert instance.dispatch == dispatch
    rng = np.random.default_rng(1)
    wrong = 0
    for run in range(runs):
        fake_gpu.set_delays(run + 1)
        x = rng.standard_normal(SHAPE).astype(np.float32)
        instance.write(plan.inputs[0], x)
        instance.run()
        expected = reference(program, x)
        got = [instance.read(v) for v in plan.outputs]
        wrong += not all(map(np.array_equal, got, expected))
    return wrong


@pytest.mark.usefixtures("asynchronous")
@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_all_streams_give_the_bits_of_one(dispatch: _cuda.Dispatch) -> None:
    assert wrong_runs(*planned("sm_80"), dispatch, QUICK_RUNS) == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("asynchronous")
@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_thousand_runs(dispatch: _cuda.Dispatch) -> None:
    assert wrong_runs(*planned("sm_90"), dispatch, RUNS) == 0


@pytest.mark.usefixtures("asynchronous")
@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_streams_that_do_not_wait_give_other_bits(dispatch: _cuda.Dispatch) -> None:
    program, plan = planned("sm_90")
    for name in [op.name for op in plan.operators if op.waits]:
        plan = change_operator(plan, name, waits=())
    assert wrong_runs(program, plan, dispatch, QUICK_RUNS) > 0


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_operators_are_launched_in_oparas_order(
    dispatch: _cuda.Dispatch, tmp_path: Path, check_log: Callable[..., list[str]]
) -> None:
    """A CUDA graph gets the kernels in launch order. Each run is then one launch of the graph."""
    program, plan = planned("sm_80")
    made = NETWORK["opara"]["sm_80"]
    wanted = [NETWORK["operators"][op][0] for op in made["launch_order"]]
    assert wanted != [name for name, *_ in NETWORK["operators"]]
    kernels = fake_gpu.Kernels(effects_of(program))
    instance = CudaInstance(plan, kernels, program.weights, dispatch=dispatch)
    instance.run()
    instance.run()
    called = kernels.called
    assert len(called) % len(wanted) == 0
    assert called[-len(wanted) :] == wanted
    del instance, kernels
    assert check_log() == []
    launches = fake_gpu.logged(tmp_path / "calls.jsonl", "cudaGraphLaunch")
    assert len(launches) == (0 if dispatch == "streams" else 2)
