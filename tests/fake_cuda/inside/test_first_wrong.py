"""Tests that the first operator with wrong numbers on a GPU is named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.gpu_first_wrong import described, first_wrong, operator_samples
from tests.fake_cuda import fake_gpu
from tests.fake_cuda.random_program import SHAPE, effects_of, random_program, random_schedule
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.program import Program

RTOL, ATOL = {"float32": 1e-3}, 1e-4


def planned() -> tuple[Program, Plan, list[np.ndarray], dict[str, np.ndarray]]:
    program = random_program(3)
    plan = make_plan(program, random_schedule(program, 1, 3), device="cuda:0")
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)

    def on_host(effect: Callable[..., None]) -> Callable[..., None]:
        return lambda *tensors: effect(*map(fake_gpu.array_at, tensors))

    numbers = {op.name: len(op.inputs) + len(op.outputs) for op in program.operators}
    kernels = {n: (on_host(e), numbers[n]) for n, e in effects_of(program).items()}
    return program, plan, [x], operator_samples(plan, program.weights, [x], kernels)


def verdict(spoil: str = "", change: Callable[[np.ndarray], None] = lambda array: None) -> str:
    """The report on a run in which the operator `spoil` changes its own output."""
    program, plan, inputs, samples = planned()
    effects = effects_of(program)
    if spoil:
        right = effects[spoil]

        def wrong(*arrays: np.ndarray) -> None:
            right(*arrays)
            change(arrays[-1])

        effects[spoil] = wrong
    kernels = fake_gpu.Kernels(effects)
    return first_wrong(plan, kernels, program.weights, inputs, samples, RTOL, ATOL)


def test_right_numbers() -> None:
    assert verdict().startswith("no operator is wrong if each tensor has memory of its own")


@pytest.mark.parametrize("number", [0, 5, 13])
def test_the_first_wrong_operator_is_named(number: int) -> None:
    _, plan, _, _ = planned()
    name = plan.operators[number].name
    said = verdict(name, lambda array: np.add(array, 1, out=array))
    assert said.startswith(f"operator {number} of 14, `{name}`, is the first that is wrong: ")
    assert f"by kernel `{name}`, from " in said


def test_one_wrong_number_and_no_number_at_all_are_found() -> None:
    _, plan, _, _ = planned()
    name = plan.operators[4].name

    def one(array: np.ndarray) -> None:
        array[3] += 0.5

    assert f"`{name}`, is the first" in verdict(name, one)
    assert f"`{name}`, is the first" in verdict(name, lambda array: array.fill(np.nan))


def test_what_is_kept_of_a_result() -> None:
    """A change anywhere in a large result shows in the mean of one of the result's parts."""
    array = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    before = described(array)
    assert before.size == 1 + 64 + 64
    assert before[0] == np.abs(array).max()
    for place in (0, 777, 99_999):
        changed = array.copy()
        changed[place] += 10
        assert np.abs(described(changed) - before).max() > 1e-3
    assert described(array[:0]).tolist() == [0]
    assert described(array[:1])[1] == array[0]
