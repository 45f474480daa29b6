"""Tests that noise in the measurements by which stages are chosen does not make the predicted
makespan too short."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from tests.graphs import latencies, randwire
from tvm_interop.compiler.merging import MergingLatency
from tvm_interop.latency import LatencyModel
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import Schedule, schedule
from tvm_interop.scheduling.budget import Budget, BudgetedLatency

GRAPH = randwire(16, 3)
US = latencies(16, 3)
NOISE = 0.03


class Noisy(LatencyModel):
    """Measurements with an error of 3%. A stage is measured again only on request."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        self._known: dict[object, float] = {}
        self.again = 0

    def true_us(self, groups: Sequence[Sequence[int]]) -> float:
        return max(sum(US[op] for op in group) for group in groups) * (0.7 + 0.3 * len(groups))

    def op(self, op: int) -> float:
        return self.stage([[op]])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        key = frozenset(map(tuple, groups))
        if key not in self._known:
            self._known[key] = self._measured(groups)
        return self._known[key]

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        for groups in stages:
            self._known[frozenset(map(tuple, groups))] = self._measured(groups)
        self.again += len(stages)
        return len(stages)

    def _measured(self, groups: Sequence[Sequence[int]]) -> float:
        return self.true_us(groups) * (1 + NOISE * float(self._draw.standard_normal()))


def promised_over_true(graph: OpGraph, scheduler: str, seed: int) -> float:
    model = Noisy(seed)
    found = schedule(graph, scheduler, model, streams=2)
    assert found.makespan is not None
    assert found.stats["stages_measured_again"] == model.again == len(found.stages)
    true_us = sum(model.true_us(list(stage.by_stream().values())) for stage in found.stages)
    return found.makespan / true_us


def test_luck_is_no_part_of_the_promise() -> None:
    """If chosen stages were not measured again, the predicted makespan would be 3% too low."""
    ratios = [promised_over_true(GRAPH, "ios", seed) for seed in range(40)]
    assert np.mean(ratios) == pytest.approx(1, abs=0.006)


def test_auto_measures_the_stages_of_its_winner_again() -> None:
    def evaluate(schedules: Sequence[Schedule]) -> Iterator[list[float]]:
        return itertools.repeat([1.0 if s.scheduler == "ios" else 2.0 for s in schedules])

    model = Noisy(0)
    made = schedule(GRAPH, "auto", model, streams=2, evaluate=evaluate, finalists=9)
    assert made.stats["winner"] == "ios"
    assert made.stats["stages_measured_again"] == model.again == len(made.stages)
    assert made.makespan == made.simulate(GRAPH, model) != made.stats["predicted_us"]["ios"]


def test_stages_that_nobody_chose_by_their_latency_are_measured_once() -> None:
    model = Noisy(0)
    made = schedule(GRAPH, "greedy", model, streams=2)
    assert made.is_staged
    assert model.again == 0


def test_measuring_again_ends_with_the_budget() -> None:
    model = Noisy(0)
    stages = [[[op]] for op in range(16)]
    limited = BudgetedLatency(model, np.array(US, float), Budget(0))
    assert limited.measure_again(stages) == model.again == 0
    limited = BudgetedLatency(model, np.array(US, float), Budget(60))
    assert limited.measure_again(stages) == model.again == 16


def test_stages_beside_merged_ones_are_measured_again() -> None:
    model = Noisy(0)
    merging = MergingLatency(model, None, None)  # type: ignore[arg-type]
    assert merging.measure_again([[[0], [1]]]) == model.again == 1
