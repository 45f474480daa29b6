"""Tests the results and the calls of the CUDA executor in each dispatch mode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import DISPATCHES
from tests.fake_cuda.random_program import (
    SHAPE,
    effects_of,
    random_program,
    random_schedule,
    reference,
)
from tvm_interop import ExecutionError, InputError, Schedule
from tvm_interop._native import cuda as _cuda
from tvm_interop.errors import DeviceError
from tvm_interop.execution.cuda import CudaInstance, make_cuda_streams
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.stream_priority import prefer_longest_chain
from tvm_interop.program.program import Program


def make_instance(
    program: Program, schedule: Schedule, dispatch: _cuda.Dispatch
) -> tuple[CudaInstance, fake_gpu.Kernels]:
    plan = make_plan(program, schedule, device="cuda:0")
    kernels = fake_gpu.Kernels(effects_of(program))
    return CudaInstance(plan, kernels, program.weights, dispatch=dispatch), kernels


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize("seed", range(8))
def test_random_plans_are_right_and_safe(
    seed: int, dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    program = random_program(seed)
    schedule = random_schedule(program, num_streams=1 + seed % 4, seed=seed)
    instance, _ = make_instance(program, schedule, dispatch)
    assert instance.dispatch == dispatch
    rng = np.random.default_rng(seed)
    for _ in range(3):  # The inputs change, because no run may see the inputs of an earlier run.
        x = rng.standard_normal(SHAPE).astype(np.float32)
        instance.write(0, x)
        instance.run()
        for v, expected in zip(program.outputs, reference(program, x), strict=True):
            np.testing.assert_array_equal(instance.read(v), expected)
    accesses = fake_gpu.accesses_of(instance)
    del instance
    assert check_log(accesses) == []


def test_a_graph_is_recorded_in_launch_order(check_log: Callable[..., list[str]]) -> None:
    program = random_program(3)
    schedule = random_schedule(program, 3, 3)
    instance, kernels = make_instance(program, schedule, "captured")
    order = [op.name for op in instance.plan.operators]
    assert kernels.called == order * 2  # Each kernel is called once to warm up and once to capture.
    instance.run()
    assert kernels.called == order * 2  # A replay of the graph calls no kernel.
    del instance
    assert check_log() == []


@pytest.mark.parametrize(
    ("call", "status"),
    [("cudaStreamBeginCapture", 900), ("cudaStreamEndCapture", 901), ("cudaGraphInstantiate", 2)],
)
def test_without_a_graph_operators_are_launched_one_by_one(
    call: str,
    status: int,
    check_log: Callable[..., list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    program = random_program(1)
    fake_gpu.fail_next(call, status)
    instance, _ = make_instance(program, random_schedule(program, 2, 1), "captured")
    assert instance.dispatch == "streams"
    assert call in _cuda.why_no_graph(instance.executor)
    assert call in caplog.text
    x = np.ones(SHAPE, np.float32)
    instance.write(0, x)
    instance.run()
    np.testing.assert_array_equal(instance.read(program.outputs[0]), reference(program, x)[0])
    accesses = fake_gpu.accesses_of(instance)
    del instance
    assert check_log(accesses) == []


def test_a_kernel_that_allocates_gets_no_graph(check_log: Callable[..., list[str]]) -> None:
    program = random_program(1, num_ops=3)
    kernels = fake_gpu.Kernels(effects_of(program))
    launch = kernels._launch

    def allocating(name: str, tensors: tuple[Any, ...]) -> None:
        _cuda.make_memory(0, 16)
        launch(name, tensors)

    kernels._launch = allocating  # type: ignore[method-assign]
    plan = make_plan(program, random_schedule(program, 1, 0), device="cuda:0")
    instance = CudaInstance(plan, kernels, program.weights)
    assert instance.dispatch == "streams"
    assert "operator `op0` failed" in _cuda.why_no_graph(instance.executor)
    del instance
    assert "`cudaMalloc` while a graph is captured" in check_log()


def test_a_failing_operator_is_named(check_log: Callable[..., list[str]]) -> None:
    program = random_program(2)
    instance, _ = make_instance(program, random_schedule(program, 3, 2), "streams")
    fake_gpu.fail_next("launch", 1)
    with pytest.raises(ExecutionError, match="operator `op0` failed"):
        instance.run()
    x = np.full(SHAPE, 3, np.float32)
    instance.write(0, x)
    instance.run()
    np.testing.assert_array_equal(instance.read(program.outputs[0]), reference(program, x)[0])
    accesses = fake_gpu.accesses_of(instance)
    del instance
    assert check_log(accesses) == []


def test_a_share_of_a_kernel_is_refused() -> None:
    program = random_program(2)
    plan = make_plan(program, random_schedule(program, 1, 0), device="cuda:0")
    shared = (structs.replace(plan.operators[0], share=(0, 2)), *plan.operators[1:])
    with pytest.raises(ExecutionError, match="operator `op0` is one share of a kernel"):
        CudaInstance(
            structs.replace(plan, operators=shared),
            fake_gpu.Kernels(effects_of(program)),
            program.weights,
        )


def test_every_call_that_can_fail_is_checked(tmp_path: Path) -> None:
    program = random_program(4)
    schedule = random_schedule(program, 3, 4)
    for call in ("cudaMalloc", "cudaStreamCreate", "cudaEventCreate", "cudaMemcpyAsync"):
        fake_gpu.fail_next(call, 2)
        with pytest.raises(ExecutionError, match="cudaErrorMemoryAllocation"):
            make_instance(program, schedule, "streams")
    instance, _ = make_instance(program, schedule, "streams")
    for call in ("cudaEventRecord", "cudaStreamWaitEvent", "cudaStreamSynchronize"):
        fake_gpu.fail_next(call, 2)
        with pytest.raises(ExecutionError, match=call):
            instance.run()
    instance, _ = make_instance(program, schedule, "captured")
    fake_gpu.fail_next("cudaGraphLaunch", 2)
    with pytest.raises(ExecutionError, match="cudaGraphLaunch"):
        instance.run()


def test_streams_take_turns_with_others_of_the_thread() -> None:
    program = random_program(5)
    before = fake_gpu.current_stream()
    instance, _ = make_instance(program, random_schedule(program, 2, 5), "streams")
    instance.run()
    assert fake_gpu.current_stream() == before


def test_a_stream_may_be_preferred(tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    streams = _cuda.make_streams([0, 0], urgent=[True, False])
    fake_gpu.stop_log()
    made = fake_gpu.logged(log, "cudaStreamCreate")
    assert [entry["priority"] for entry in made] == [-5, 0]
    assert {entry["flags"] for entry in made} == {1}
    assert _cuda.urgent_streams(streams) == [True, False]


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize("seed", range(4))
def test_the_longest_chain_runs_on_the_preferred_stream(
    seed: int, dispatch: _cuda.Dispatch, tmp_path: Path
) -> None:
    program = random_program(seed)
    plan = make_plan(program, random_schedule(program, 3, seed), device="cuda:0")
    slow = plan.operators[seed].name  # This operator takes longer than all others together.
    op_us = [100.0 if op.name == slow else 1.0 for op in plan.operators]
    preferring = prefer_longest_chain(plan, op_us)
    priorities: dict[bool, dict[str, int]] = {}
    for is_asked_for in (False, True):
        log = tmp_path / f"{is_asked_for}.jsonl"
        fake_gpu.start_log(log)
        kernels = fake_gpu.Kernels(effects_of(program))
        chosen = preferring if is_asked_for else plan
        instance = CudaInstance(chosen, kernels, program.weights, dispatch=dispatch)
        instance.run()
        fake_gpu.stop_log()
        of_stream = {e["stream"]: e["priority"] for e in fake_gpu.logged(log, "cudaStreamCreate")}
        launches = fake_gpu.logged(log, "launch")
        priorities[is_asked_for] = {e["kernel"]: of_stream[e["stream"]] for e in launches}
        # CUDA gives a graph's kernels the priorities of their streams only if the graph is made
        # with a flag for this.
        if dispatch != "streams":
            (instantiated,) = fake_gpu.logged(log, "cudaGraphInstantiate")
            assert instantiated["flags"] == (8 if is_asked_for else 0)
    urgent = plan.operators[seed].stream
    assert set(priorities[False].values()) == {0}
    assert priorities[True] == {op.name: -5 if op.stream == urgent else 0 for op in plan.operators}


def test_shared_streams_have_the_priorities_that_a_plan_wants() -> None:
    program = random_program(3)
    plan = make_plan(program, random_schedule(program, 3, 3), device="cuda:0")
    preferring = prefer_longest_chain(plan)
    kernels = fake_gpu.Kernels(effects_of(program))
    pool = make_cuda_streams(preferring)
    x = np.ones(SHAPE, np.float32)
    for _ in range(2):  # Both instances have the plan for which the pool of streams was made.
        instance = CudaInstance(preferring, kernels, program.weights, streams=pool)
        instance.write(0, x)
        instance.run()
        for v, expected in zip(program.outputs, reference(program, x), strict=True):
            np.testing.assert_array_equal(instance.read(v), expected)
    with pytest.raises(InputError, match=r"is urgent, and the plan's stream . is not urgent"):
        CudaInstance(plan, kernels, program.weights, streams=pool)
    with pytest.raises(InputError, match=r"is not urgent, and the plan's stream . is urgent"):
        CudaInstance(preferring, kernels, program.weights, streams=make_cuda_streams(plan))


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_profile_is_taken_as_the_operators_run(
    dispatch: _cuda.Dispatch, tmp_path: Path, check_log: Callable[..., list[str]]
) -> None:
    """A run with a CUDA graph does not launch operators one by one.

    So a profile must not launch them one by one either.
    """
    program = random_program(6)
    instance, kernels = make_instance(program, random_schedule(program, 3, 6), dispatch)
    with fake_gpu.noted("profile"):
        instance.profile()
    accesses = fake_gpu.accesses_of(instance)
    del instance, kernels
    assert check_log(accesses) == []
    log = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    calls = [entry["call"] for entry in log[log.index({"call": "note", "op": "profile"}) :]]
    assert calls.count("cudaGraphLaunch") == (0 if dispatch == "streams" else 1)


def test_profile_and_time_cover_every_operator() -> None:
    program = random_program(6)
    instance, _ = make_instance(program, random_schedule(program, 3, 6), "captured")
    rows = instance.profile()
    assert [row[0] for row in rows] == list(range(len(program.operators)))
    assert all(end > start >= 0 for _, _, start, end, *_ in rows)
    assert instance.time(3) > instance.time(1) > 0
    times = _cuda.measure_interleaved([instance.executor, instance.executor], 1, 4)
    assert [len(t) for t in times] == [4, 4]


def test_devices_that_are_not_there() -> None:
    assert _cuda.device_count() == 3
    assert _cuda.describe_device(1) == "Fake GPU 1 sm_90 driver 13000"
    with pytest.raises(DeviceError, match="no device `cuda:7`: this machine has 3"):
        _cuda.make_streams([0, 7])
    with pytest.raises(DeviceError, match="cuda:7"):
        _cuda.make_memory(7, 16)
