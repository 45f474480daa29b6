"""Tests operators that cuDNN and cuBLASLt run: their calls, and the workspaces that they share."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import DISPATCHES
from tests.fake_cuda.happens_before import check
from tests.library_cases import CASES, conv2d, library_of, matmul, numbers, plan_of, reference
from tvm_interop import ExecutionError, Schedule
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance, make_cuda_streams
from tvm_interop.machine.kernel_libraries import library_version
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.library_op import LibraryOp
from tvm_interop.program.program import Operator, Program, Value


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    for library in ("cudnn", "cublaslt"):
        assert library_version(library) is not None


@pytest.mark.parametrize("case", CASES)
def test_libraries_are_told_what_to_compute(case: str, check_log: Callable[..., list[str]]) -> None:
    op = CASES[case]
    arrays = numbers(op)
    instance = CudaInstance(plan_of(op), None, {})
    assert instance.dispatch == "captured"
    for v, array in enumerate(arrays):
        instance.write(v, array)
    instance.run()
    tolerance = 1e-5 if op.dtype == "float32" else 2e-2
    got = instance.read(len(arrays))
    np.testing.assert_allclose(got, reference(op, arrays), rtol=tolerance, atol=tolerance)
    del instance
    assert check_log() == []


@pytest.mark.parametrize("make", [
    lambda i: conv2d((1, 5, 6, 7 + i), (9, 5, 3, 3), (1, 9, 6, 7 + i)),
    lambda i: matmul((11, 7), (7, 13 + i)),
])  # fmt: skip
def test_kernels_are_chosen_on_the_gpus_that_run_them(
    make: Callable[[int], LibraryOp], check_log: Callable[..., list[str]]
) -> None:
    """The process remembers the algorithm that was chosen for a shape.

    So this test uses shapes that occur in no other test.
    """
    ops = [make(i) for i in range(2)]
    program = Program(
        values=[
            Value(f"v{i}", shape, "float32")
            for i, shape in enumerate(shape for op in ops for shape in op.shapes)
        ],
        operators=[
            Operator(f"op{i}", "", (3 * i, 3 * i + 1), (3 * i + 2,), op, library_of(op))
            for i, op in enumerate(ops)
        ],
        inputs=(0, 1, 3, 4),
        outputs=(2, 5),
    )
    schedule = Schedule("by hand", ("op0", "op1"), streams=[[0], [1]], devices=[0, 1])
    instance = CudaInstance(make_plan(program, schedule, device="cuda:0"), None, {})
    arrays = [numbers(op) for op in ops]
    for i in range(2):
        for v, array in enumerate(arrays[i]):
            instance.write(3 * i + v, array)
    instance.run()
    for i, op in enumerate(ops):
        got = instance.read(3 * i + 2)
        np.testing.assert_allclose(got, reference(op, arrays[i]), 1e-5, 1e-5)
    del instance
    assert check_log() == []


def diamond(op: LibraryOp) -> tuple[Program, Plan]:
    """A plan with three operators `op`. The first two run on two streams.

    The third operator adds the output of one of the first two operators to its own output.
    """
    joined = conv2d(*op.shapes[:2], op.shapes[-1], has_sum=True)
    shapes = [op.shapes[0], op.shapes[1], *[op.shapes[-1]] * 3]
    program = Program(
        values=[Value(f"v{i}", shape, "float32") for i, shape in enumerate(shapes)],
        operators=[
            Operator("left", "", (0, 1), (2,), op, "cudnn"),
            Operator("right", "", (0, 1), (3,), op, "cudnn"),
            Operator("join", "", (2, 1, 3), (4,), joined, "cudnn"),
        ],
        inputs=(0, 1),
        outputs=(4,),
    )
    schedule = Schedule("by hand", ("left", "right", "join"), streams=[[0, 2], [1]])
    return program, make_plan(program, schedule, device="cuda:0")


SQUARE = conv2d((1, 4, 6, 5), (4, 4, 3, 3), (1, 4, 6, 5))


def run_diamond(dispatch: _cuda.Dispatch) -> tuple[np.ndarray, np.ndarray]:
    """The outputs of two runs on different inputs, and the expected outputs."""
    _, plan = diamond(SQUARE)
    instance = CudaInstance(plan, None, {}, dispatch=dispatch)
    assert instance.dispatch == dispatch
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        x, w = (rng.standard_normal(shape).astype(np.float32) for shape in SQUARE.shapes[:2])
        instance.write(0, x)
        instance.write(1, w)
        instance.run()
    branch = reference(SQUARE, [x, w])
    return instance.read(4), reference(SQUARE, [branch, w]) + branch


@pytest.fixture(scope="module")
def chosen() -> None:
    """Choose all algorithms of the diamond, so that later logs have only the diamond's kernels."""
    run_diamond("streams")


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_streams_do_not_share_a_workspace(
    dispatch: _cuda.Dispatch, chosen: None, tmp_path: Path, check_log: Callable[..., list[str]]
) -> None:
    got, expected = run_diamond(dispatch)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    assert check_log() == []
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    spaces: dict[int, set[str]] = {}
    for line in lines:
        if line.get("workspace"):
            spaces.setdefault(line["stream"], set()).add(line["workspace"])
    first, second = spaces.values()
    assert len(first) == len(second) == 1
    assert first != second
    assert sum(line["call"] == "cudnnCreate" for line in lines) == 2


def two_convolutions(widths: Sequence[int]) -> Plan:
    """Convolutions on one stream. `widths` has the width of each convolution, in order."""
    ops = [new_conv(width) for width in widths]
    shapes = [shape for op in ops for shape in op.shapes]
    numbered = [f"op{i}" for i in range(len(ops))]
    program = Program(
        values=[Value(f"v{i}", shape, "float32") for i, shape in enumerate(shapes)],
        operators=[
            Operator(name, "", (3 * i, 3 * i + 1), (3 * i + 2,), op, "cudnn")
            for i, (name, op) in enumerate(zip(numbered, ops, strict=True))
        ],
        inputs=tuple(3 * i + k for i in range(len(ops)) for k in (0, 1)),
        outputs=tuple(3 * i + 2 for i in range(len(ops))),
    )
    schedule = Schedule("by hand", tuple(numbered), streams=[list(range(len(ops)))])
    return make_plan(program, schedule, device="cuda:0")


def choose(width: int, slow: Sequence[int]) -> None:
    """Choose an algorithm for `new_conv(width)` while the algorithms in `slow` take longer."""
    with fake_gpu.algorithm_times(dict.fromkeys(slow, 1.0)):
        prepared(new_conv(width), _cuda.make_streams([0]))


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_stream_has_one_workspace_while_an_instance_needs_it(
    dispatch: _cuda.Dispatch, tmp_path: Path
) -> None:
    choose(15, slow=[0, 7])  # Algorithm 1 needs 1 MiB.
    choose(16, slow=[0, 1])  # Algorithm 7 needs 2 MiB.
    small, large = two_convolutions([15]), two_convolutions([15, 16])
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    streams = make_cuda_streams(small)
    first = CudaInstance(small, None, {}, streams=streams, dispatch=dispatch)
    second = CudaInstance(large, None, {}, streams=streams, dispatch=dispatch)
    third = CudaInstance(small, None, {}, streams=streams, dispatch=dispatch)
    for instance in (first, second, third, first):
        instance.run()
    del second, instance
    first.run()
    third.run()
    del first, third
    gc.collect()
    fake_gpu.stop_log()  # The streams still exist, and with them their workspaces.
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    spaces = {
        call["address"]: call["nbytes"]
        for call in calls
        if call["call"] == "cudaMalloc" and call["nbytes"] >= 1 << 20
    }
    assert sorted(spaces.values()) == [1 << 20, 2 << 20]
    freed = [call["address"] for call in calls if call["call"] == "cudaFree"]
    assert spaces.keys() <= set(freed)
    used = {int(call["workspace"].split(":")[0]) for call in calls if call.get("workspace")}
    assert used == spaces.keys()
    assert check(log, ignore_leaks_of=["cudaStreamCreate", "cudnnCreate", "cudaEventCreate"]) == []


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_one_workspace_for_two_streams_is_a_race(
    dispatch: _cuda.Dispatch, chosen: None, tmp_path: Path, check_log: Callable[..., list[str]]
) -> None:
    """The log is changed as if both streams used the workspace of the first stream."""
    run_diamond(dispatch)
    check_log()
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    shared = next(line["workspace"] for line in lines if line.get("workspace"))
    planted = [{**line, "workspace": shared} if line.get("workspace") else line for line in lines]
    log = tmp_path / "planted.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in planted))
    faults = check(log)
    assert any(fault.startswith("race on `workspace`") for fault in faults)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_dropped_wait_between_kernels_of_libraries(
    dispatch: _cuda.Dispatch, chosen: None, check_log: Callable[..., list[str]]
) -> None:
    _, plan = diamond(SQUARE)
    operators = tuple(msgspec.structs.replace(op, waits=()) for op in plan.operators)
    broken = msgspec.structs.replace(plan, operators=operators)
    instance = CudaInstance(broken, None, {}, dispatch=dispatch)
    instance.run()
    del instance
    assert any("without an order" in fault for fault in check_log())


def prepared(op: LibraryOp, streams: _cuda.CudaStreams) -> str:
    """The name of the algorithm that is chosen for `op`."""
    memory = _cuda.make_memory(0, 1 << 20)
    offsets = range(0, 1 << 20, 1 << 16)
    tensors = [
        _cuda.tensor_within(memory, offset, shape, op.dtype)
        for offset, shape in zip(offsets, op.shapes, strict=False)
    ]
    kernel = _cuda.prepare_kernel(library_of(op), op.fields(), streams, 0, tensors)
    return _cuda.implementation(kernel)


def new_conv(width: int, **fields: Any) -> LibraryOp:
    """A convolution for which no other test has chosen an algorithm."""
    return conv2d((1, 2, 3, width), (2, 2, 3, 3), (1, 2, 3, width), **fields)


@pytest.mark.parametrize(
    ("ms", "fields", "choice"),
    [
        # All kernels are equally fast. So the first algorithm that needs only one kernel is chosen.
        ({}, {"has_bias": True, "activation": "relu"}, "algorithm 1, fused"),
        ({1: 1.0}, {"has_bias": True, "activation": "relu"}, "algorithm 0, fused"),
        ({1: 1.0, 0: 1.0}, {"has_bias": True, "activation": "relu"}, "algorithm 7, fused"),
        # Without an activation, cuDNN can fuse a bias into only one of the algorithms.
        ({}, {"has_bias": True}, "algorithm 1, fused"),
        ({1: 1.0}, {"has_bias": True}, "algorithm 0"),
        ({}, {}, "algorithm 1"),
        # Some algorithms are never chosen: 4 needs too much memory, 5 gives other bits in each run,
        # and 3 is refused.
        ({0: 1.0, 1: 1.0, 7: 1.0, 4: -1.0, 5: -1.0, 3: -1.0}, {}, "algorithm 1"),
        # A library may list an algorithm again with another kind of arithmetic, which needs another
        # size of workspace.
        ({1: 1.0, 7: 1.0}, {"dtype": "float16"}, "algorithm 0, math type 0"),
        ({0: 1.0, 7: 1.0}, {"dtype": "float16"}, "algorithm 1"),
    ],
)
def test_the_fastest_algorithm_is_chosen(
    ms: Mapping[int, float], fields: dict[str, Any], choice: str, request: pytest.FixtureRequest
) -> None:
    width = 20 + sum(map(ord, request.node.name)) % 1000
    with fake_gpu.algorithm_times(ms):
        assert prepared(new_conv(width, **fields), _cuda.make_streams([0])) == choice


def test_the_time_of_the_host_does_not_decide() -> None:
    """In a CUDA graph, two short kernels are faster than one long kernel, although the host calls
    the library twice."""
    op = new_conv(17, has_bias=True)
    with fake_gpu.algorithm_times({1: 3e-3, 7: 1.0}), fake_gpu.launch_time(10.0):
        assert prepared(op, _cuda.make_streams([0])) == "algorithm 0"


def test_an_algorithm_that_is_far_slower_is_run_only_twice(
    tmp_path: Path, check_log: Callable[..., list[str]]
) -> None:
    """One run of an algorithm that is far slower may take milliseconds, so the usual number of runs
    would take long."""
    with fake_gpu.algorithm_times({1: 0.2, 7: 0.09}):
        assert prepared(new_conv(18), _cuda.make_streams([0])) == "algorithm 0"
    assert check_log() == []
    launches = fake_gpu.logged(tmp_path / "calls.jsonl", "launch")
    # An algorithm first runs twice. If it is fast enough, a graph then launches it eight times.
    assert Counter(line["algorithm"] for line in launches) == {0: 2 + 8, 1: 2, 7: 2 + 8}


def test_a_choice_is_remembered() -> None:
    op, other = (new_conv(width, has_bias=True, activation="relu") for width in (10, 11))
    with fake_gpu.algorithm_times({1: 1.0}):
        assert prepared(op, _cuda.make_streams([0])) == "algorithm 0, fused"
    with fake_gpu.algorithm_times({0: 1.0}):
        assert prepared(op, _cuda.make_streams([0])) == "algorithm 0, fused"
        assert prepared(other, _cuda.make_streams([0])) == "algorithm 1, fused"


def test_what_is_remembered_is_not_measured_again(
    chosen: None, tmp_path: Path, check_log: Callable[..., list[str]]
) -> None:
    instance = CudaInstance(diamond(SQUARE)[1], None, {}, dispatch="streams")
    del instance
    check_log()
    # Each kernel is launched once, to test whether it runs. Two of the four kernels compute the
    # sum.
    assert (tmp_path / "calls.jsonl").read_text().count('"call":"launch"') == 4


def test_an_algorithm_that_fails_is_left_out() -> None:
    op = new_conv(12, has_bias=True, activation="relu")
    fake_gpu.fail_next("cudnnConvolutionBiasActivationForward", 3000)
    assert prepared(op, _cuda.make_streams([0])) == (
        "algorithm 0, fused; refused: algorithm 1, fused "
        "(`cudnnConvolutionBiasActivationForward` failed: CUDNN_STATUS_NOT_SUPPORTED)"
    )


def test_an_instance_tells_the_algorithm_of_each_operator() -> None:
    program = Program(
        values=[Value(f"v{i}", shape, "float32") for i, shape in enumerate(SQUARE.shapes)],
        operators=[Operator("conv", "", (0, 1), (2,), SQUARE, "cudnn")],
        inputs=(0, 1),
        outputs=(2,),
    )
    schedule = Schedule("by hand", ("conv",), streams=[[0]])
    instance = CudaInstance(make_plan(program, schedule, device="cuda:0"), None, {})
    (told,) = instance.implementations.items()
    assert told[0] == "conv"
    assert told[1].startswith("algorithm ")


def test_products_are_chosen_too(tmp_path: Path, check_log: Callable[..., list[str]]) -> None:
    streams = _cuda.make_streams([0])
    assert prepared(matmul((3, 7), (7, 2)), streams) == "number 0 of cuBLASLt's choice"
    with fake_gpu.algorithm_times({0: 1.0}):
        assert prepared(matmul((3, 7), (7, 3)), streams) == "number 1 of cuBLASLt's choice"
    del streams
    assert check_log() == []
    asked = [json.loads(x) for x in (tmp_path / "calls.jsonl").read_text().splitlines()]
    asked = [line for line in asked if line["call"] == "cublasLtMatmulAlgoGetHeuristic"]
    # The parts of a divided sum must be added up in float32, in a fixed order.
    assert {line["reduction_schemes"] for line in asked} == {2}
    assert {line["alignment"] for line in asked} == {16}


@pytest.mark.parametrize(
    ("op", "math"),
    [
        (new_conv(13), {3}),  # CUDNN_FMA_MATH
        (new_conv(13, allow_tf32=True), {0}),  # CUDNN_DEFAULT_MATH
        # CUDNN_TENSOR_OP_MATH is allowed too, because it does not round float16 numbers further.
        (new_conv(13, dtype="float16"), {0, 1}),
        (new_conv(13, dtype="float16", allow_tf32=True), {0, 1}),
        (matmul((3, 8), (8, 2)), {68}),  # CUBLAS_COMPUTE_32F
        (matmul((3, 8), (8, 2), allow_tf32=True), {77}),  # CUBLAS_COMPUTE_32F_FAST_TF32
        (matmul((3, 8), (8, 2), dtype="float16"), {68}),
    ],
)
def test_tf32_is_allowed_or_not(
    op: LibraryOp, math: set[int], tmp_path: Path, check_log: Callable[..., list[str]]
) -> None:
    prepared(op, _cuda.make_streams([0]))
    check_log()
    lines = [json.loads(x) for x in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert {line["math"] for line in lines if line["call"] == "launch"} == math


def test_what_a_library_refuses_is_said() -> None:
    streams = _cuda.make_streams([0])
    clipped = new_conv(14, activation="clip", clip_high=6.0)
    with pytest.raises(ExecutionError, match="`cudnn` supports no activation but ReLU"):
        prepared(clipped, streams)
    memory = _cuda.make_memory(0, 1 << 12)
    op = matmul((3, 5), (5, 4))
    tensors = [
        _cuda.tensor_within(memory, offset, shape, op.dtype)
        for offset, shape in zip((0, 260, 1024), op.shapes, strict=True)
    ]
    with pytest.raises(ExecutionError, match="argument 1 of `matmul` is not aligned to 16 bytes"):
        _cuda.prepare_kernel(library_of(op), op.fields(), streams, 0, tensors)


def test_a_kernel_that_fails_names_its_operator() -> None:
    instance = CudaInstance(plan_of(CASES["bias"]), None, {}, dispatch="streams")
    fake_gpu.fail_next("cudnnConvolutionBiasActivationForward", 5)
    with pytest.raises(
        ExecutionError, match=r"operator `op` failed: `cudnnConvolutionBias.*failed"
    ):
        instance.run()
