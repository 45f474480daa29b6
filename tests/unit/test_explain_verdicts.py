"""Tests the benchmark of `explain`'s verdicts: the choice of pairs, the runs, the error rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.explain_verdicts import Pair, choose, measure, rates, side_by_side
from tests.nets import inception_like
from tvm_interop import OpGraph
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.explaining.verdict import Verdict
from tvm_interop.explaining.wholes import Wholes

GOOD, BAD = Verdict.PROFITABLE.value, Verdict.FILLS.value


def judged(verdict: str, pays: bool) -> Pair:
    return Pair("net", ("a", "b"), verdict, "", 0.0, pays=pays, differs=pays)


def test_error_rates() -> None:
    pairs = [judged(GOOD, True), judged(BAD, True), judged(BAD, True), judged(GOOD, False)]
    found = rates([*pairs, *[judged(BAD, False)] * 3])
    assert (found["missed"], found["falsely_profitable"], found["wrong"]) == (2, 1, 3)
    assert found["missed_rate"] == pytest.approx(2 / 3)
    assert found["falsely_profitable_rate"] == pytest.approx(1 / 4)
    assert found["wrong_by_constant_answer"] == 3
    assert found["differ_beyond_noise"] == 3
    assert rates([])["missed_rate"] is None


def test_half_of_the_pairs_have_much_to_gain_and_half_little() -> None:
    one_core_us = [10.0, 9.0, 4.0, 1.0]

    def price(stages: list[list[list[int]]]) -> np.ndarray:
        return np.array([max(sum(one_core_us[op] for op in ops) for ops in s) for s in stages])

    wholes = Wholes(OpGraph.from_edges(["a", "b", "c", "d"], []), price, 2, 0.0)
    assert choose(wholes, 2) == [("a", "b"), ("a", "d")]
    assert len(choose(wholes, 100)) == 6


def test_a_pair_is_measured_both_ways() -> None:
    options = CompileOptions(streams=2, latency_db=":memory:")
    compilation = Compilation(inception_like(), options)
    operators = compilation.program.operators
    price = lambda stages: np.ones(len(stages))  # noqa: E731
    wholes = Wholes(compilation.graph, price, 2, 0.0, [op.whole for op in operators])
    a, b = wholes.levels()[0][:2]
    names = (wholes.graph.names[a], wholes.graph.names[b])
    in_turn, at_once = side_by_side(compilation, wholes, names)
    in_turn.validate(compilation.graph)
    at_once.validate(compilation.graph)
    assert len(in_turn.stages) == len(at_once.stages) + 1
    together = [stage for stage in at_once.stages if len(stage.groups) == 2]
    assert {frozenset(ops for group in stage.groups for ops in group) for stage in together} >= {
        frozenset((*wholes.parts_of(a), *wholes.parts_of(b)))
    }
    pair = replace(judged(BAD, False), operators=names, pays=None)
    measure(compilation, wholes, pair, 0.05)
    assert pair.pays is not None
    assert pair.rounds >= 6
    assert pair.in_turn_us > 0
