"""Tests the tensors and kernels with which stages are timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conformance import WIDTH, crossing_chains
from tvm_interop.execution.kernels import AnyOperator, Kernels
from tvm_interop.measure.jobs import in_jobs
from tvm_interop.measure.stage_operators import SharedTensors, StageOperators, measured_by
from tvm_interop.program.kinds.softmax import Softmax
from tvm_interop.program.program import Program


class GivenKernels(Kernels):
    """A stand-in for kernels: the "kernel" of an operator is the list of its tensors."""

    def __init__(self) -> None:
        """Make the object. It has no kernels of TVM."""

    def of(self, op: AnyOperator, tensors: Sequence[Any], stream: int = 0) -> Any:
        return tensors


def stages() -> StageOperators:
    """Stages of two chains: operators 0, 2, 4 and so on, and operators 1, 3, 5 and so on."""
    return StageOperators(crossing_chains(), GivenKernels(), lambda array: array)


def test_what_a_stage_computes_does_not_reach_the_stages_after_it() -> None:
    bound = stages()
    (read, written), (first,) = bound.bind([[0]])
    (then_read, _), _ = bound.bind([[2]])
    before = then_read.copy()
    # Operator 2 is bound in a stage of its own, so it must not read this output of operator 0. It
    # would read denormal numbers, which make some kernels slow.
    written[...] = 1e-40
    assert first.args == [0, 1]
    assert read is not written
    np.testing.assert_array_equal(bound.bind([[2]])[0][0], before)
    assert np.abs(then_read).min() > 1e-10


def test_operators_of_a_stage_read_what_the_stage_computed() -> None:
    tensors, operators = stages().bind([[0, 2], [1, 3]])
    assert len({id(tensor) for tensor in tensors}) == len(tensors) == 6
    assert all(tensor.shape == (WIDTH,) for tensor in tensors)
    by_name = {operator.name: operator.args for operator in operators}
    assert by_name["x_op1"][0] == by_name["x_op0"][1]
    assert by_name["w_op1"][0] == by_name["w_op0"][1]


def test_a_weight_is_read_and_each_tensor_is_made_once() -> None:
    bound = stages()
    (weight, result), _ = bound.bind([[1]])
    np.testing.assert_array_equal(weight, np.full(WIDTH, 100, np.float32))
    again, _ = bound.bind([[1]])
    assert again[0] is weight
    assert again[1] is result


def test_timers_of_a_model_share_tensors_of_the_same_shape() -> None:
    shared, program = SharedTensors(), crossing_chains()
    values = [*program.values]
    values[1] = replace(values[1], shape=(2 * WIDTH,))
    one, other = (
        StageOperators(replace(program, values=described), GivenKernels(), lambda a: a, 0, shared)
        for described in (program.values, values)
    )
    number = {op.name: i for i, op in enumerate(program.operators)}
    first, second = (bound.bind([[number["x_op0"]]])[0] for bound in (one, other))
    assert [a is b for a, b in zip(first, second, strict=True)] == [
        v != 1 for v in (*program.operators[0].inputs, *program.operators[0].outputs)
    ]
    assert one.bind([[1]])[0][1] is other.bind([[1]])[0][1]


def test_a_librarys_kernel_is_bound_to_what_its_stage_computes() -> None:
    program = crossing_chains()
    by_library = [
        replace(
            op,
            library="onednn",
            description=Softmax(
                shapes=((WIDTH,), (WIDTH,)), layouts=("plain", "plain"), dtype="float32"
            ),
        )
        for op in program.operators
    ]
    bound = StageOperators(replace(program, operators=by_library), GivenKernels(), lambda a: a)
    tensors, (first, second) = bound.bind([[0, 2]])
    assert second.kernel[0] is first.kernel[1] is tensors[1]
    (_, _), (alone,) = bound.bind([[2]])
    assert alone.kernel[0] is not first.kernel[1]
    assert alone.kernel[1] is second.kernel[1]
    assert bound.bind([[0, 2]])[1][1].kernel is second.kernel


def with_weights() -> Program:
    """A program in which a library runs every operator, and each operator reads the weight too."""
    program = crossing_chains()
    described = Softmax(shapes=((WIDTH,), (WIDTH,)), layouts=("plain", "plain"), dtype="float32")
    (weight,) = program.weights
    operators = [
        replace(op, library="onednn", description=described, inputs=(*op.inputs, weight))
        for op in program.operators
    ]
    return replace(program, operators=operators)


def test_kernels_with_packed_weights_are_kept_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tvm_interop.measure.stage_operators._KEPT_NBYTES", 2 * 4 * WIDTH)
    bound = StageOperators(with_weights(), GivenKernels(), lambda array: array)
    first, second = bound.kernel(0), bound.kernel(2)
    assert bound.kernel(0) is first  # The weights of two kernels fit.
    third = bound.kernel(4)
    assert bound.kernel(2) is second
    assert bound.kernel(4) is third
    assert bound.kernel(0) is not first  # The oldest was dropped, and is made again.
    assert bound.kernel(2) is not second


def test_a_single_kernel_may_exceed_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_interop.measure.stage_operators._KEPT_NBYTES", 1)
    bound = StageOperators(with_weights(), GivenKernels(), lambda array: array)
    assert bound.kernel(0) is bound.kernel(0)


class CountingClock:
    """A clock on which executors take given seconds. It keeps what it was asked to time."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[float], int, bool]] = []

    def measure_interleaved(
        self, executors: Sequence[float], warmup: int, repeats: int, seed: int = 0,
        primed: bool = False,
    ) -> list[list[float]]:  # fmt: skip
        self.asked.append(([*executors], repeats, primed))
        return [[seconds] * repeats for seconds in executors]


def test_stages_that_took_long_are_not_run_untimed_again() -> None:
    clock = CountingClock()
    brief, lengthy = 1.9e-3, 2e-3
    measure = measured_by(clock, [brief, lengthy, brief], 0)
    assert measure([0, 1], 1) == [[brief], [lengthy]]
    assert measure([1, 0, 2], 2) == [[lengthy] * 2, [brief] * 2, [brief] * 2]
    assert measure([1], 3) == [[lengthy] * 3]
    assert clock.asked == [
        ([brief, lengthy], 1, True),
        ([brief, brief], 2, True),
        ([lengthy], 2, False),
        ([lengthy], 3, False),
    ]


def test_jobs_are_limited_by_stages_and_by_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    program, stage_nbytes = with_weights(), 4 * WIDTH
    stages = {str(op): [[op], []] for op in range(5)}
    assert [[*job] for job in in_jobs(program, stages, 2)] == [["0", "1"], ["2", "3"], ["4"]]
    monkeypatch.setattr("tvm_interop.measure.jobs._JOB_NBYTES", 3 * stage_nbytes)
    assert [[*job] for job in in_jobs(program, stages, 8)] == [["0", "1", "2"], ["3", "4"]]
    monkeypatch.setattr("tvm_interop.measure.jobs._JOB_NBYTES", stage_nbytes - 1)
    assert [[*job] for job in in_jobs(program, stages, 8)] == [["0"], ["1"], ["2"], ["3"], ["4"]]
    assert in_jobs(program, {}, 8) == []


def test_a_large_tensor_is_full_of_random_numbers() -> None:
    program = crossing_chains()
    # The tensor has more numbers than are drawn, so the drawn numbers repeat.
    wide = (3, 50_000)
    values = [replace(value, shape=wide, dtype="bfloat16") for value in program.values]
    bound = StageOperators(replace(program, values=values, weights={}), GivenKernels(), np.copy)
    (read, written), _ = bound.bind([[0]])
    numbers = read.astype(np.float32)
    assert numbers.shape == wide
    assert abs(numbers.mean()) < 0.05
    assert abs(numbers.std() - 1) < 0.05
    assert (np.abs(numbers) > 1e-10).mean() > 0.99
    assert not written.astype(np.float32).any()
    (other, _), _ = bound.bind([[2]])
    assert (other.astype(np.float32) != numbers).mean() > 0.9
