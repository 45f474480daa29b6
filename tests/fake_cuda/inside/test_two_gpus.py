"""Tests plans over several GPUs: copies between GPUs, and waits for events of other GPUs."""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.damage import change_operator
from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import DISPATCHES
from tests.fake_cuda.happens_before import Access, OpAccesses
from tests.fake_cuda.random_program import (
    SHAPE,
    effects_of,
    random_program,
    random_schedule,
    reference,
)
from tvm_interop import ArtifactError, DeviceError, ExecutionError, InputError, PlanError, Schedule
from tvm_interop._native import cuda as _cuda
from tvm_interop._native.operators import BoundOperator
from tvm_interop.execution.cuda import CudaInstance, make_cuda_streams, require_gpu
from tvm_interop.plan.check import check_plan
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.graph import OpGraph
from tvm_interop.program.program import Program


class Relay:
    """A plan: `double` on GPU 0, a copy, `increment` on GPU 1, a copy back, and `add` on GPU 0."""

    def __init__(self, dispatch: _cuda.Dispatch, drop_wait: bool = False) -> None:
        self.streams = _cuda.make_streams([0, 1])
        blocks = [_cuda.make_memory(0, 1024), _cuda.make_memory(1, 1024)]
        places = [("x", 0), ("doubled", 0), ("doubled@1", 1), ("incremented", 1)]
        places += [("incremented@0", 0), ("sum", 0)]
        self.names = [name for name, _ in places]
        self.values = [
            _cuda.tensor_within(blocks[device], 64 * i, (4,), "float32")
            for i, (_, device) in enumerate(places)
        ]
        kernels = fake_gpu.Kernels(
            {
                "double": lambda x, y: np.multiply(x, 2, out=y),
                "increment": lambda x, y: np.add(x, 1, out=y),
                "add": lambda a, b, y: np.add(a, b, out=y),
            }
        )
        self.executor = _cuda.make_executor(
            self.streams,
            self.values,
            [
                BoundOperator("double", kernels.get_function("double", True), (0, 1)),
                BoundOperator(
                    "to 1",
                    _cuda.peer_copy(self.values[1], self.values[2]),
                    (1, 2),
                    stream=1,
                    waits=() if drop_wait else (0,),
                ),
                BoundOperator("increment", kernels.get_function("increment", True), (2, 3), 1),
                BoundOperator(
                    "to 0", _cuda.peer_copy(self.values[3], self.values[4]), (3, 4), waits=(2,)
                ),
                BoundOperator("add", kernels.get_function("add", True), (1, 4, 5)),
            ],
            dispatch,
        )

    def accesses(self) -> dict[str, OpAccesses]:
        def at(v: int) -> Access:
            begin = fake_gpu.address_of(self.values[v])
            return Access(self.names[v], begin, begin + 16)

        return {
            "double": OpAccesses((at(0),), (at(1),)),
            "increment": OpAccesses((at(2),), (at(3),)),
            "add": OpAccesses((at(1), at(4)), (at(5),)),
        }


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_tensors_travel_between_gpus(
    dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    relay = Relay(dispatch)
    assert _cuda.dispatch_of(relay.executor) == dispatch
    for number in (1.0, 5.0):
        fake_gpu.array_at(relay.values[0])[...] = number
        _cuda.run(relay.executor)
        np.testing.assert_array_equal(fake_gpu.array_at(relay.values[5]), number * 4 + 1)
    accesses = relay.accesses()
    del relay
    assert check_log(accesses) == []


def test_a_copy_that_does_not_wait_is_found(check_log: Callable[..., list[str]]) -> None:
    relay = Relay("captured", drop_wait=True)
    _cuda.run(relay.executor)
    accesses = relay.accesses()
    del relay
    assert any("race on `doubled`" in fault for fault in check_log(accesses))


def test_access_is_enabled_both_ways_and_checked(tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    _cuda.make_streams([0, 1, 1])
    fake_gpu.stop_log()
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    enabled = [
        (entry["device"], entry["peer"])
        for entry in entries
        if entry["call"] == "cudaDeviceEnablePeerAccess"
    ]
    assert enabled == [(0, 1), (1, 0)]
    fake_gpu.fail_next("cudaDeviceEnablePeerAccess", 2)
    with pytest.raises(ExecutionError, match="cudaDeviceEnablePeerAccess"):
        _cuda.make_streams([0, 1])


def test_a_copy_between_tensors_of_different_sizes_is_refused() -> None:
    block = _cuda.make_memory(0, 64)
    small = _cuda.tensor_within(block, 0, (4,), "float32")
    large = _cuda.tensor_within(block, 0, (5,), "float32")
    with pytest.raises(InputError, match="16 bytes cannot be copied to or from a tensor of 20"):
        _cuda.peer_copy(small, large)


# Whole plans.


def make_instance(
    program: Program, plan: Plan, dispatch: _cuda.Dispatch
) -> tuple[CudaInstance, fake_gpu.Kernels]:
    kernels = fake_gpu.Kernels(effects_of(program))
    return CudaInstance(plan, kernels, program.weights, dispatch=dispatch), kernels


def over_gpus(seed: int) -> tuple[Program, Plan]:
    """A random program on up to six streams, which are spread over all GPUs."""
    program = random_program(seed, num_ops=20)
    gpus = range(_cuda.device_count())
    schedule = random_schedule(program, 2 + seed % 5, seed, gpus)
    return program, make_plan(program, schedule, device="cuda:0")


def results(instance: CudaInstance, x: np.ndarray) -> list[np.ndarray]:
    instance.write(instance.plan.inputs[0], x)
    instance.run()
    return [instance.read(v) for v in instance.plan.outputs]


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize("seed", range(12))
def test_random_plans_over_gpus_are_right_and_safe(
    seed: int, dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    program, plan = over_gpus(seed)
    instance, _ = make_instance(program, plan, dispatch)
    assert instance.dispatch == dispatch
    rng = np.random.default_rng(seed)
    for _ in range(3):  # The inputs change, because no run may see the inputs of an earlier run.
        x = rng.standard_normal(SHAPE).astype(np.float32)
        for got, expected in zip(results(instance, x), reference(program, x), strict=True):
            np.testing.assert_array_equal(got, expected)
    assert len(instance.profile()) == len(plan.operators)
    assert instance.time(2) > 0
    accesses = fake_gpu.accesses_of(instance)
    del instance
    assert check_log(accesses) == []


def test_the_random_plans_have_what_they_are_for() -> None:
    plans = [over_gpus(seed)[1] for seed in range(12)]
    assert {len(plan.devices) for plan in plans} >= {2, 3}
    assert sum(op.is_copy for plan in plans for op in plan.operators) > 50
    assert any(v.storage == "weight" and v.copy_of is not None for p in plans for v in p.values)
    assert any(v.storage == "input" and v.copy_of is not None for p in plans for v in p.values)


def to_and_fro() -> tuple[Program, Plan]:
    """Eleven operators on each of two GPUs, with many copies between them."""
    program = random_program(3, num_ops=22)
    names = tuple(op.name for op in program.operators)
    streams = [range(0, 22, 2), range(1, 22, 2)]
    schedule = Schedule("by hand", names, streams=streams, devices=[0, 1])
    return program, make_plan(program, schedule, device="cuda:0")


def test_the_same_order_in_every_way_of_dispatch(tmp_path: Path) -> None:
    program, plan = to_and_fro()
    copies = [op for op in plan.operators if op.is_copy]
    order = [op.name for op in plan.operators if not op.is_copy]
    for dispatch in DISPATCHES:
        log = tmp_path / f"{dispatch}.jsonl"
        fake_gpu.start_log(log)
        instance, kernels = make_instance(program, plan, dispatch)
        instance.run()
        fake_gpu.stop_log()
        # Each kernel is called to warm up, and then for the capture or the run.
        assert kernels.called == order * 2
        on = {
            entry["stream"]: entry["device"] for entry in fake_gpu.logged(log, "cudaStreamCreate")
        }
        launches = fake_gpu.logged(log, "launch")
        devices = {op.name: plan.streams[op.stream].device for op in plan.operators}
        assert {e["kernel"]: f"cuda:{on[e['stream']]}" for e in launches} == {
            name: devices[name] for name in order
        }
        sent = fake_gpu.logged(log, "cudaMemcpyPeerAsync")
        assert len(sent) == 2 * len(copies) > 10
        assert all(on[entry["stream"]] == entry["from_device"] for entry in sent)


def test_gpus_of_a_plan_get_access_to_each_other(tmp_path: Path) -> None:
    program, plan = to_and_fro()
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    make_instance(program, plan, "captured")
    fake_gpu.stop_log()
    enabled = fake_gpu.logged(log, "cudaDeviceEnablePeerAccess")
    assert [(entry["device"], entry["peer"]) for entry in enabled] == [(0, 1), (1, 0)]
    fake_gpu.fail_next("cudaDeviceEnablePeerAccess", 2)
    with pytest.raises(ExecutionError, match="cudaDeviceEnablePeerAccess"):
        make_instance(program, plan, "captured")


def test_gpus_that_cannot_reach_each_other_are_named(caplog: pytest.LogCaptureFixture) -> None:
    program, plan = to_and_fro()
    with fake_gpu.gpus_apart():
        instance, _ = make_instance(program, plan, "captured")
    assert "cuda:0 cannot reach the memory of cuda:1" in caplog.text
    assert "cuda:1 cannot reach the memory of cuda:0" in caplog.text
    instance.run()
    caplog.clear()
    make_instance(program, plan, "captured")
    assert not caplog.text


def test_a_copy_that_fails_is_named() -> None:
    program, plan = to_and_fro()
    instance, _ = make_instance(program, plan, "streams")
    first = next(op.name for op in plan.operators if op.is_copy)
    fake_gpu.fail_next("cudaMemcpyPeerAsync", 2)
    with pytest.raises(ExecutionError, match=f"operator `{first}` failed.*cudaMemcpyPeerAsync"):
        instance.run()
    x = np.ones(SHAPE, np.float32)
    for got, expected in zip(results(instance, x), reference(program, x), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_what_was_current_stays_current() -> None:
    program, plan = to_and_fro()
    instance, _ = make_instance(program, plan, "streams")
    runtime = fake_gpu.runtime()
    assert runtime.cudaSetDevice(1) == 0
    instance.run()
    assert fake_gpu.current_device() == 1
    runtime.cudaSetDevice(0)
    instance.run()
    assert fake_gpu.current_device() == 0


def test_a_weight_is_replaced_on_every_gpu() -> None:
    program, plan = next(
        (program, plan) for program, plan in map(over_gpus, range(12)) if 1 in plan.twins()
    )
    (weight,) = program.weights
    instance, _ = make_instance(program, plan, "captured")
    other = np.full(SHAPE, 7, np.float32)
    instance.replace(weight, other)
    for v in (weight, *plan.twins()[weight]):
        np.testing.assert_array_equal(instance.read(v), other)


def test_a_gpu_that_is_not_there() -> None:
    program = random_program(3)
    missing = _cuda.device_count()
    schedule = random_schedule(program, 2, 3, [missing])
    plan = make_plan(program, schedule, device="cuda:0")
    says = f"no device `cuda:{missing}`: this machine has {missing}, numbered from 0"
    with pytest.raises(DeviceError, match=says):
        require_gpu(plan)
    with pytest.raises(DeviceError, match=says):
        make_instance(program, plan, "captured")


def test_shared_streams_are_on_the_gpus_of_the_plan() -> None:
    program, plan = to_and_fro()
    kernels = fake_gpu.Kernels(effects_of(program))
    CudaInstance(plan, kernels, program.weights, streams=make_cuda_streams(plan))
    others = _cuda.make_streams([0] * len(plan.streams))
    with pytest.raises(InputError, match=r"is on cuda:0, and the plan's stream . is on cuda:1"):
        CudaInstance(plan, kernels, program.weights, streams=others)


# Planted bugs.


def faults_of(
    program: Program,
    plan: Plan,
    dispatch: _cuda.Dispatch,
    check_log: Callable[..., list[str]],
    times: int = 2,
) -> list[str]:
    instance, _ = make_instance(program, plan, dispatch)
    for _ in range(times):
        results(instance, np.ones(SHAPE, np.float32))
    accesses = fake_gpu.accesses_of(instance)
    del instance
    return check_log(accesses)


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize("side", ["the copy", "its reader"])
def test_a_dropped_wait(
    side: str, dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    program, plan = to_and_fro()
    i, copy = next((i, op) for i, op in enumerate(plan.operators) if op.is_copy)
    reader = next(op for op in plan.operators if i in op.waits)
    late = copy if side == "the copy" else reader
    value = plan.values[(copy.inputs if late is copy else copy.outputs)[0]].name
    broken = change_operator(plan, late.name, waits=())
    with pytest.raises(PlanError):
        check_plan(broken)  # The checker of plans finds the fault too.
    faults = faults_of(program, broken, dispatch, check_log)
    assert any(f"race on `{value}`" in fault for fault in faults)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_buffer_used_again_while_a_copy_still_reads_it(
    dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    program, plan = to_and_fro()
    copy, victim = _copied_and_later(plan)
    source = plan.values[copy.inputs[0]]
    values = tuple(
        msgspec.structs.replace(v, offset=source.offset) if i == victim else v
        for i, v in enumerate(plan.values)
    )
    broken = msgspec.structs.replace(plan, values=values)
    with pytest.raises(PlanError, match="nothing orders the two"):
        check_plan(broken)
    faults = faults_of(program, broken, dispatch, check_log)
    assert any("race on" in fault and f"`{copy.name}`" in fault for fault in faults)


def _copied_and_later(plan: Plan) -> tuple[Any, int]:
    """Plants this fault: a GPU writes a value again while a copy of the value to another GPU may
    still run."""
    order = OpGraph.from_edges(
        len(plan.operators),
        [(w, i) for i, op in enumerate(plan.operators) for w in op.waits]
        + [pair for ops in plan.stream_orders() for pair in itertools.pairwise(ops)],
    )
    for i, copy in enumerate(plan.operators):
        (source, *_) = copy.inputs
        if not copy.is_copy or plan.values[source].storage != "arena":
            continue
        for j, op in enumerate(plan.operators[i:], i):
            (written,) = op.outputs
            is_apart = not op.is_copy and source not in op.inputs and not order.reaches(i, j)
            is_there = plan.device_of(written) == plan.device_of(source)
            if is_apart and is_there and plan.values[written].storage == "arena":
                return copy, written
    raise AssertionError("no such plan")


def test_an_argument_on_another_gpu(check_log: Callable[..., list[str]]) -> None:
    program, plan = to_and_fro()
    copy = next(op for op in plan.operators if op.is_copy)
    reader = next(op for op in plan.operators if copy.outputs[0] in op.inputs)
    swapped = tuple(copy.inputs[0] if v == copy.outputs[0] else v for v in reader.inputs)
    broken = change_operator(plan, reader.name, inputs=swapped)
    with pytest.raises(ArtifactError, match=f"`{reader.name}` runs on"):
        check_plan(broken)
    faults = faults_of(program, broken, "streams", check_log)
    assert any(fault.startswith(f"`{reader.name}`, on GPU") for fault in faults)


def test_a_copy_without_access(check_log: Callable[..., list[str]]) -> None:
    runtime = fake_gpu.runtime()
    here, there = _cuda.make_memory(0, 64), _cuda.make_memory(1, 64)
    tensors = [_cuda.tensor_within(block, 0, (4,), "float32") for block in (here, there)]
    to, source = (ctypes.c_void_p(fake_gpu.address_of(tensor)) for tensor in tensors[::-1])
    nbytes = ctypes.c_size_t(16)
    assert runtime.cudaMemcpyPeerAsync(to, 1, source, 0, nbytes, None) == 0
    assert runtime.cudaMemcpyPeerAsync(to, 0, source, 1, nbytes, None) == 0
    faults = "\n".join(check_log())
    assert "a copy from GPU 0 to GPU 1, which have no access" in faults
    assert "a copy to GPU 0, where the memory named is not" in faults
