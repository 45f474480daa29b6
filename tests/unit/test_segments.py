"""Tests plans that run segment by segment: they give the bits of plans that run as a whole, and the
checker proves that they are safe."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import msgspec
import numpy as np
import pytest

import tvm_interop
from tests.nets import inception_like
from tvm_interop.errors import DeviceError, ExecutionError, InputError
from tvm_interop.execution.open_instance import open_instance
from tvm_interop.execution.segments import Segments, block_cuts, equal_cuts
from tvm_interop.plan.check import check_plan
from tvm_interop.plan.plan import Plan


@functools.cache
def branches(streams: int) -> tvm_interop.Artifact:
    """An artifact of blocks of parallel branches. Their tensors share memory."""
    return tvm_interop.compile(
        inception_like(size=6, channels=8), providers=["tvm"], latency_db=":memory:",
        scheduler="greedy" if streams > 1 else "sequential", streams=streams, threads=1,
        keep_slower=True,
    )  # fmt: skip


def given(seed: int) -> np.ndarray:
    plan = branches(1).plan
    shape = plan.values[plan.inputs[0]].shape
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("streams", [1, 2])
def test_segments_give_the_same_bits_as_a_whole_run_at_every_cut(streams: int) -> None:
    artifact = branches(streams)
    whole, parted = open_instance(artifact), open_instance(artifact)
    plan = whole.plan
    assert len(plan.streams) == streams
    (x,), (y,) = plan.inputs, plan.outputs
    count = len(plan.operators)
    assert count >= 6
    divisions = [[cut] for cut in range(1, count)] + [list(range(1, count)), block_cuts(plan)]
    for seed, cuts in enumerate(divisions):
        segments = Segments(parted, cuts)
        for instance in (whole, parted):
            instance.write(x, given(seed))
        parted.arrays[y].fill(np.nan)
        whole.run()
        for segment in range(len(segments)):
            segments.run(segment)
        assert np.array_equal(whole.read(y), parted.read(y))


def test_two_runs_may_be_between_their_segments_at_once() -> None:
    artifact = branches(2)
    whole = open_instance(artifact)
    runs = [Segments(open_instance(artifact), block_cuts(artifact.plan)) for _ in range(2)]
    (x,), (y,) = whole.plan.inputs, whole.plan.outputs
    for i, run in enumerate(runs):
        run.instance.write(x, given(i))
    for segment in range(len(runs[0])):
        for run in runs:
            run.run(segment)
    for i, run in enumerate(runs):
        whole.write(x, given(i))
        whole.run()
        assert np.array_equal(whole.read(y), run.instance.read(y))


def test_an_input_that_is_bound_elsewhere_is_read_by_segments_too() -> None:
    artifact = branches(1)
    instance, whole = open_instance(artifact), open_instance(artifact)
    segments = Segments(instance, block_cuts(instance.plan))
    (x,), (y,) = instance.plan.inputs, instance.plan.outputs
    from tvm_interop.program.host_memory import aligned_copy

    memory = aligned_copy(given(3))
    instance.rebind(x, memory)
    whole.write(x, memory)
    whole.run()
    for segment in range(len(segments)):
        segments.run(segment)
    assert np.array_equal(whole.read(y), instance.read(y))


def test_segments_run_in_their_order() -> None:
    segments = Segments(open_instance(branches(1)), [2, 4])
    with pytest.raises(ExecutionError, match=r"segment 1 of 3 cannot run now.*turn of segment 0"):
        segments.run(1)
    segments.run(0)
    segments.run(0)  # Segment 0 begins a new run.
    segments.run(1)
    with pytest.raises(ExecutionError, match=r"segment 1 of 3 cannot run now.*turn of segment 2"):
        segments.run(1)
    with pytest.raises(ExecutionError, match=r"segment 3 of 3"):
        segments.run(3)


@pytest.mark.parametrize("cuts", [[0], [3, 3], [4, 2], [99], [1.5]])
def test_cuts_without_a_segment_between_them_are_refused(cuts: list[Any]) -> None:
    with pytest.raises(InputError, match="give ascending indices"):
        Segments(open_instance(branches(1)), cuts)


def test_only_the_cpu_runs_segments() -> None:
    class Elsewhere:
        pass

    with pytest.raises(DeviceError, match="only models on the CPU"):
        Segments(Elsewhere(), [1])  # type: ignore[arg-type]


def in_segments(plan: Plan, cuts: list[int]) -> Plan:
    """The plan with added waits: each segment of the plan waits for the segment before it."""
    bounds = [0, *cuts, len(plan.operators)]
    operators = list(plan.operators)
    for begin, end, after in zip(bounds, bounds[1:], bounds[2:], strict=False):
        last: dict[int, int] = {}
        for op in range(begin, end):
            last[operators[op].stream] = op
        for op in range(end, after):
            others = [at for stream, at in last.items() if stream != operators[op].stream]
            waits = sorted({*operators[op].waits, *others})
            operators[op] = msgspec.structs.replace(operators[op], waits=tuple(waits))
    return msgspec.structs.replace(plan, operators=tuple(operators))


def test_the_checker_finds_every_division_safe() -> None:
    plan = branches(2).plan
    assert len(plan.streams) == 2
    for cut in range(1, len(plan.operators)):
        check_plan(in_segments(plan, [cut]))
    check_plan(in_segments(plan, list(range(1, len(plan.operators)))))


def test_every_operator_before_the_end_of_a_block_reaches_every_one_after() -> None:
    plan = branches(2).plan
    cuts, count = block_cuts(plan), len(plan.operators)
    reached: list[set[int]] = [set() for _ in range(count)]
    for source, target in sorted(plan.graph().edges, reverse=True):
        reached[source] |= {target, *reached[target]}
    assert len(cuts) >= 2
    for cut in cuts:
        assert all(set(range(cut, count)) <= reached[op] for op in range(cut))


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_the_longest_segment_is_as_short_as_it_can_be(count: int) -> None:
    plan = branches(1).plan
    ends = block_cuts(plan)
    for seed in range(5):
        op_us = np.random.default_rng(seed).uniform(1, 10, len(plan.operators)).tolist()

        def longest(cuts: tuple[int, ...], op_us: list[float] = op_us) -> float:
            bounds = [0, *cuts, len(op_us)]
            return max(sum(op_us[a:b]) for a, b in itertools.pairwise(bounds))

        number = min(count, len(ends) + 1) - 1
        found = equal_cuts(plan, op_us, count)
        assert len(found) == number
        assert set(found) <= set(ends)
        assert longest(found) == pytest.approx(
            min(longest(cuts) for cuts in itertools.combinations(ends, number))
        )
