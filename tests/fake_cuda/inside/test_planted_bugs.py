"""Tests the checker of logs: it finds every kind of planted fault, and none in a correct run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from tests.damage import change_operator
from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import DISPATCHES
from tvm_interop import ArtifactError, PlanError, Schedule
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.plan.check import check_plan
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.program import Operator, Program, Value


def diamond() -> tuple[Program, Plan]:
    """`left` and `right` read `a` on two streams. `join` reads both, and `tail` reads `join`."""
    names = ["x", "a", "left", "right", "join", "tail"]
    program = Program(
        values=[Value(name, (16,), "float32") for name in names],
        operators=[
            Operator("a", "a", (0,), (1,)),
            Operator("left", "left", (1,), (2,)),
            Operator("right", "right", (1,), (3,)),
            Operator("join", "join", (2, 3), (4,)),
            Operator("tail", "tail", (4,), (5,)),
        ],
        inputs=(0,),
        outputs=(5,),
    )
    schedule = Schedule("by hand", tuple(names[1:]), streams=[[0, 1, 3, 4], [2]])
    return program, make_plan(program, schedule, device="cuda:0")


def effects() -> dict[str, Callable[..., None]]:
    def copy(*arrays: np.ndarray) -> None:
        arrays[-1][...] = arrays[0]

    return dict.fromkeys(("a", "left", "right", "join", "tail"), copy)


def faults_of(
    plan: Plan, dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> list[str]:
    instance = CudaInstance(plan, fake_gpu.Kernels(effects()), {}, dispatch=dispatch)
    for _ in range(2):
        instance.write(0, np.ones(16, np.float32))
        instance.run()
        instance.read(5)
    accesses = fake_gpu.accesses_of(instance)
    del instance
    return check_log(accesses)


def place(plan: Plan, name: str, offset: int) -> Plan:
    values = tuple(
        msgspec.structs.replace(v, offset=offset) if v.name == name else v for v in plan.values
    )
    return msgspec.structs.replace(plan, values=values)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_the_plan_itself_is_fine(
    dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    _, plan = diamond()
    assert faults_of(plan, dispatch, check_log) == []


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize(("op", "value"), [("right", "a"), ("join", "right")])
def test_a_dropped_wait(
    op: str, value: str, dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    _, plan = diamond()
    broken = change_operator(plan, op, waits=())
    with pytest.raises(PlanError):
        check_plan(broken)  # The checker of plans finds the fault too.
    assert any(f"race on `{value}`" in fault for fault in faults_of(broken, dispatch, check_log))


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_buffer_used_again_while_another_stream_reads_it(
    dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    _, plan = diamond()
    offset_of = {v.name: v.offset for v in plan.values}
    assert offset_of["left"] != offset_of["a"]
    # `right` may still be reading `a` when `left` is written.
    broken = place(plan, "left", offset_of["a"] or 0)
    with pytest.raises(PlanError):
        check_plan(broken)
    faults = faults_of(broken, dispatch, check_log)
    assert any("`right`" in fault and "`left`" in fault and "race" in fault for fault in faults)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_buffer_used_again_before_it_is_read(
    dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    """All operators are on one stream, so there is no race, and yet the result is wrong."""
    program, _ = diamond()
    names = tuple(op.name for op in program.operators)
    schedule = Schedule("by hand", names, streams=[[0, 1, 2, 3, 4]])
    plan = make_plan(program, schedule, device="cuda:0")
    offset_of = {v.name: v.offset for v in plan.values}
    broken = place(plan, "right", offset_of["left"] or 0)
    faults = faults_of(broken, dispatch, check_log)
    assert "`join` reads `left` where `right` was written last" in faults


# In the tests from here on, several operators each write a part of one tensor.


def halves() -> tuple[Program, Plan]:
    """`left` and `right` write the halves of `both` side by side, and `tail` reads `both`."""
    program = Program(
        values=[
            Value("x", (16,), "float32"),
            Value("first", (16,), "float32", alias_of=3),
            Value("second", (16,), "float32", alias_of=3, offset=64),
            Value("both", (32,), "float32"),
            Value("y", (32,), "float32"),
        ],
        operators=[
            Operator("left", "left", (0,), (1,)),
            Operator("right", "right", (0,), (2,)),
            Operator("tail", "tail", (3,), (4,)),
        ],
        inputs=(0,),
        outputs=(4,),
    )
    schedule = Schedule("by hand", ("left", "right", "tail"), streams=[[0, 2], [1]])
    return program, make_plan(program, schedule, device="cuda:0")


def faults_of_halves(
    plan: Plan, dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> list[str]:
    instance = CudaInstance(plan, fake_gpu.Kernels(effects()), {}, dispatch=dispatch)
    for number in (1.0, 2.0):
        instance.write(0, np.full(16, number, np.float32))
        instance.run()
        np.testing.assert_array_equal(instance.read(4), np.full(32, number, np.float32))
    accesses = fake_gpu.accesses_of(instance)
    del instance
    return check_log(accesses)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_parts_may_be_written_side_by_side(
    dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    _, plan = halves()
    assert [op.waits for op in plan.operators] == [(), (), (1,)]
    assert faults_of_halves(plan, dispatch, check_log) == []


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_dropped_wait_for_one_of_the_parts(
    dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    _, plan = halves()
    broken = change_operator(plan, "tail", waits=())
    with pytest.raises(PlanError, match="`right` writes and `tail` reads"):
        check_plan(broken)
    faults = faults_of_halves(broken, dispatch, check_log)
    assert any("race on `both`" in fault and "`right`" in fault for fault in faults)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_parts_that_overlap(dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]) -> None:
    _, plan = halves()
    broken = place(plan, "second", 32)
    with pytest.raises(ArtifactError, match="`right` writes over bytes of `both` that another"):
        check_plan(broken)
    instance = CudaInstance(broken, fake_gpu.Kernels(effects()), {}, dispatch=dispatch)
    instance.run()
    accesses = fake_gpu.accesses_of(instance)
    del instance
    assert "race on `both`: `left` writes and `right` writes without an order" in check_log(
        accesses
    )


def test_things_that_are_not_given_back(check_log: Callable[..., list[str]]) -> None:
    runtime = fake_gpu.runtime()
    event, stream, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    runtime.cudaEventCreateWithFlags(ctypes.byref(event), 2)
    runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
    runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64))
    runtime.cudaStreamBeginCapture(stream, 1)
    graph, exec_ = ctypes.c_void_p(), ctypes.c_void_p()
    runtime.cudaStreamEndCapture(stream, ctypes.byref(graph))
    runtime.cudaGraphInstantiate(ctypes.byref(exec_), graph, ctypes.c_ulonglong(0))
    kinds = sorted(fault.split()[0] for fault in check_log() if "never given back" in fault)
    assert kinds == ["address", "event", "exec", "graph", "stream"]


def test_a_wait_before_the_record(check_log: Callable[..., list[str]]) -> None:
    runtime = fake_gpu.runtime()
    event, stream = ctypes.c_void_p(), ctypes.c_void_p()
    runtime.cudaEventCreateWithFlags(ctypes.byref(event), 2)
    runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
    runtime.cudaStreamWaitEvent(stream, event, 0)
    runtime.cudaEventRecord(event, stream)
    runtime.cudaEventDestroy(event)
    runtime.cudaStreamDestroy(stream)
    assert ["waited for before it is recorded" in fault for fault in check_log()] == [True]


def test_what_goes_wrong_in_a_capture(check_log: Callable[..., list[str]]) -> None:
    runtime = fake_gpu.runtime()
    streams = [ctypes.c_void_p() for _ in range(2)]
    events = [ctypes.c_void_p() for _ in range(2)]
    for stream, event in zip(streams, events, strict=True):
        runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
        runtime.cudaEventCreateWithFlags(ctypes.byref(event), 2)
    runtime.cudaEventRecord(events[1], streams[1])
    graph = ctypes.c_void_p()
    runtime.cudaStreamBeginCapture(streams[0], 1)
    runtime.cudaStreamWaitEvent(streams[0], events[1], 0)  # The event is older than the capture.
    assert runtime.cudaStreamEndCapture(streams[0], ctypes.byref(graph)) == 901
    runtime.cudaStreamBeginCapture(streams[0], 1)
    runtime.cudaEventRecord(events[0], streams[0])
    runtime.cudaStreamWaitEvent(streams[1], events[0], 0)  # `streams[1]` is never joined again.
    fake_gpu.launch("kernel", streams[1])
    assert runtime.cudaStreamEndCapture(streams[0], ctypes.byref(graph)) == 904
    runtime.cudaStreamBeginCapture(streams[0], 0)  # Calls of other threads would end this capture.
    assert runtime.cudaStreamSynchronize(streams[0]) == 900
    assert runtime.cudaStreamEndCapture(streams[0], ctypes.byref(graph)) == 901
    for stream, event in zip(streams, events, strict=True):
        runtime.cudaStreamDestroy(stream)
        runtime.cudaEventDestroy(event)
    faults = "\n".join(check_log())
    assert "from outside, is waited for in a capture" in faults
    assert "is not joined back" in faults
    assert "not in thread-local mode" in faults
    assert "`cudaStreamSynchronize` of a stream that is captured" in faults


def test_use_after_it_is_given_back(check_log: Callable[..., list[str]]) -> None:
    runtime = fake_gpu.runtime()
    stream = ctypes.c_void_p()
    runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
    runtime.cudaStreamDestroy(stream)
    assert runtime.cudaStreamSynchronize(stream) != 0
    assert any("which is not there (any more)" in fault for fault in check_log())
