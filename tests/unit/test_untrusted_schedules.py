"""Tests that malformed input of users and of their schedulers is refused with a clear error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.graphs import layered
from tvm_interop.errors import GraphError, LatencyError, PlanError, ScheduleError
from tvm_interop.latency import LatencyModel, LatencyTable, StageBatch
from tvm_interop.program.graph import OpGraph
from tvm_interop.program.planning import Buffer, memory_order, memory_plan, sync_plan
from tvm_interop.scheduling import (
    Schedule,
    Stage,
    ios_merge,
    register_scheduler,
    registry,
    schedule,
    schedules,
)
from tvm_interop.scheduling.simulation import simulate
from tvm_interop.scheduling.stages import pack_onto_streams

GRAPH = OpGraph.from_edges(["a", "b", "c"], [("a", "b")])
US = LatencyTable([1, 2, 3])
SURROGATE = "\ud800"


@pytest.fixture
def register(monkeypatch):
    """Register a function that returns a schedule, for one test."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    def made(make):
        register_scheduler("mine")(lambda graph, latency: make(graph.names))

    return made


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda names: Schedule("m", names, streams=[list(names)]), "a stream holds 'a'"),
        (lambda names: Schedule("m", names, streams=[[0, 1.0, 2]]), r"a stream holds 1\.0"),
        (lambda names: Schedule("m", names, streams=[[0, None, 2]]), "a stream holds None"),
        (lambda names: Schedule("m", names, streams=[[0, True, 2]]), "a stream holds True"),
        (lambda names: Schedule("m", names, streams=[[0, 1, 2**70]]), f"operator {2**70}"),
        (lambda names: Schedule("m", names, streams=[[0, 1, 3]]), "operator 3, but has 3"),
        (lambda names: Schedule("m", names, streams=[[0, 1, -1]]), "operator -1"),
        (lambda names: Schedule("m", names, streams=[0, 1, 2]), "a stream is 0; give a list"),
        (lambda names: Schedule("m", names, streams="abc"), "the streams are 'abc'"),
        (lambda names: Schedule("m", names, streams=None), "the streams are None"),
        (lambda names: Schedule("m", names, stages=[((0, 1), (2,))]), "stage 0 is"),
        (lambda names: Schedule("m", names, stages=[Stage(((0, 1), 2), (0, 1))]), "is 2; give"),
        (lambda names: Schedule("m", names, stages=[Stage(((0, 1), (2,)), (0, 0.5))]), r"0\.5"),
        (lambda names: Schedule("m", names, [Stage(((0, 1), (2,)), (0, 2**70))]), f"{2**70}"),
        (lambda names: Schedule("m", names, [], [[0, 1, 2]], makespan=math.inf), "makespan is inf"),
        (lambda names: Schedule("m", names, [], [[0, 1, 2]], makespan=math.nan), "makespan is nan"),
        (lambda names: Schedule("m", names, [], [[0, 1, 2]], makespan="3"), "makespan is '3'"),
        (lambda names: Schedule(SURROGATE, names, [], [[0, 1, 2]]), "called '.ud800'"),
        (lambda names: Schedule(7, names, [], [[0, 1, 2]]), "called 7"),
        (lambda names: Schedule("m", ("a", "b", 3), [], [[0, 1, 2]]), "called 3"),
        (lambda names: Schedule("m", names, [], [[0, 1, 2]], timeline=[(0, 0, 1)]), "a row"),
        (
            lambda names: Schedule("m", names, [], [[0, 1, 2]], timeline=[(0, 0, 1, math.inf)]),
            "a row",
        ),
        (
            lambda names: Schedule("m", names, [], [[0, 1, 2]], timeline=[(9, 0, 1, 2)]),
            "operator 9",
        ),
        (lambda names: Schedule("m", names, [], [[0, 1, 2]], launch_order=["a"]), "holds 'a'"),
        (lambda names: Schedule("m", names, [], [[0, 1, 2]], devices=["cuda:0"]), "'cuda:0'"),
    ],
)
def test_what_a_users_scheduler_returns_is_checked(register, make, says):
    register(make)
    with pytest.raises(ScheduleError, match=says):
        schedule(GRAPH, "mine", US)


def test_numbers_of_numpy_are_numbers(register):
    register(lambda names: Schedule("m", names, streams=np.array([[0, 1, 2]])))
    made = schedule(GRAPH, "mine", US)
    assert made == Schedule.from_json(made.to_json())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((-5, []), "cannot have -5 operators"),
        ((2**70, []), "operators; give a number from 0 to"),
        (("abc", []), "the operators are 'abc'"),
        ((None, []), "the operators are None"),
        ((2.0, []), r"the operators are 2\.0"),
        ((["a", SURROGATE], []), "ud800"),
        ((["a", None], []), "operator name None"),
        ((2, [(0, 2**70)]), f"names operator {2**70}"),
        ((2, [(0, 0.5)]), r"holds 0\.5"),
        ((2, [(0, None)]), "holds None"),
        ((2, None), "the edges are None"),
        ((2, [7]), "edge 7 is not a pair"),
    ],
)
def test_a_graph_of_nonsense(arguments, says):
    with pytest.raises(GraphError, match=says):
        OpGraph.from_edges(*arguments)
    if not isinstance(arguments[0], int):
        with pytest.raises(GraphError, match=says):
            OpGraph(*arguments)


@pytest.mark.parametrize("op", [-1, 3, 2**70, 0.5, None, "a"])
def test_questions_about_an_operator_that_is_none(op):
    for ask in (GRAPH.predecessors, GRAPH.successors, lambda op: GRAPH.reaches(0, op)):
        with pytest.raises(GraphError, match=f"there is no operator {op!r}"):
            ask(op)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("ios", {"max_groups": 2**63}, "`max_groups` is 9223372036854775808"),
        ("ios", {"max_transitions": 2**63}, "`max_transitions` is"),
        ("greedy", {"max_groups": 2**63}, "`max_groups` is"),
        ("greedy", {"streams": 2**63}, "`streams` is"),
        ("lios", {"streams": 2**63}, "`streams` is"),
        ("lios-rand", {"seed": 2**63}, "`seed` is"),
        ("lios+", {"wait_us": 10**400}, "`wait_us` is"),
        ("opara", {"flops_per_byte": "many"}, "`flops_per_byte` is 'many'"),
        ("auto", {"time_budget_s": None}, "`time_budget_s` is None"),
        ("nimble", {"streams": 2**63}, "`streams` is"),
        ("ios", {"parts": [[0], [], [1], [2]]}, "`parts` holds an empty list"),
        ("ios", {"parts": [[0], [1]]}, "`parts` must hold each of 3 operators once"),
        ("ios", {"parts": [[0], [1], [2, 2]]}, "`parts` must hold each"),
        ("ios", {"parts": [[0], [1], ["c"]]}, "a whole of `parts` holds 'c'"),
        ("ios", {"parts": 3}, "`parts` are 3"),
    ],
)
def test_options_of_no_use(name, options, says):
    with pytest.raises(ScheduleError, match=says):
        schedule(GRAPH, name, US, **options)


def test_the_largest_option_is_one_without_effect():
    assert schedule(GRAPH, "ios", US, max_groups=2**63 - 1) == schedule(GRAPH, "ios", US)


class Answers(LatencyModel):
    """A latency model that returns `op_us` and `stage_us`, even if they are malformed."""

    def __init__(self, op_us, stage_us):
        self.op_us, self.stage_us = op_us, stage_us

    def op(self, op):
        return self.op_us

    def stage(self, groups):
        return self.stage_us


NO_PRICES = [math.nan, math.inf, -math.inf, -1.0, None, "soon"]
STREAMED = Schedule("m", GRAPH.names, streams=[[0, 1], [2]])
STAGED = Schedule("m", GRAPH.names, stages=[Stage(((0, 1), (2,)), (0, 1))])


@pytest.mark.parametrize("price", NO_PRICES)
@pytest.mark.parametrize(
    "name", ["auto", "ios", "ios-both", "ios-merge", "ios-parallel", "lios", "lios+", "lios-rand"]
)
def test_every_scheduler_refuses_a_price_that_is_none(name, price):
    with pytest.raises(LatencyError):
        schedule(GRAPH, name, Answers(price, price))


@pytest.mark.parametrize("price", NO_PRICES)
def test_makespans_and_simulations_refuse_a_price_that_is_none(price):
    bad = Answers(price, price)
    for name in ("sequential", "greedy", "nimble", "opara"):
        with pytest.raises(LatencyError):
            schedule(GRAPH, name, bad)
    for made in (STREAMED, STAGED):
        with pytest.raises(LatencyError):
            made.simulate(GRAPH, bad)
        with pytest.raises(LatencyError, match="operator `a` takes"):
            simulate(GRAPH, made, bad)


def test_a_stage_of_no_price_is_named():
    with pytest.raises(LatencyError, match="the stage of `a`, `b`, `c` takes nan us"):
        STAGED.simulate(GRAPH, Answers(1.0, math.nan))
    with pytest.raises(LatencyError, match="the stage of `"):
        schedule(GRAPH, "ios", Answers(1.0, math.nan), bounds=False)


def test_prices_that_are_missing():
    class Short(Answers):
        def stages(self, stages):
            return [1.0] * (len(stages) - 1)

    with pytest.raises(LatencyError, match="answer for 1 stages is"):
        STAGED.simulate(GRAPH, Short(1.0, 1.0))
    for name in ("ios", "auto"):
        with pytest.raises(LatencyError, match="answer for"):
            schedule(GRAPH, name, Short(1.0, 1.0))


def test_prices_that_no_number_can_hold_together():
    huge = LatencyTable([1.7e308, 1.7e308, 1.0])
    for name in ("sequential", "lios", "nimble", "ios"):
        with pytest.raises(LatencyError, match="more than a float can hold"):
            schedule(GRAPH, name, huge)


@pytest.mark.parametrize("op", [10**9, 2**70, -1, 0.5, None, "a"])
def test_no_id_crosses_unchecked(op):
    """A subclass that overrides `op` could once skip the check of ids and crash the process."""

    class Trusting(LatencyTable):
        def op(self, op):
            return 1.0

    for table in (Trusting([1.0, 2.0]), LatencyTable([1.0, 2.0]), Trusting([1.0, 2.0], streams=2)):
        for ask in (table.stage, lambda groups, table=table: table.stages([groups])):
            with pytest.raises(LatencyError):
                ask([[0], [op]])


@pytest.mark.parametrize("junk", [3, None, [3], [[3]], ["a"], [[[[0]]]], [[[0.5]]], object()])
def test_lists_that_are_none(junk):
    with pytest.raises(LatencyError):
        US.stages(junk)
    with pytest.raises(PlanError):
        sync_plan(GRAPH, junk)
    with pytest.raises(PlanError):
        sync_plan(GRAPH, [[0, 1, 2]], junk)


@pytest.mark.parametrize(
    "ends", [([5], [1]), ([1], [5]), ([1, 0], [2]), ([-1], [1]), ([1], [1, 0]), ([2**62], [1])]
)
def test_a_batch_that_points_outside_of_itself(ends):
    groups, stages = (np.array(part, dtype=np.int64) for part in ends)
    batch = StageBatch(np.zeros(1, dtype=np.int64), groups, stages)
    for table in (LatencyTable([1.0]), LatencyTable([1.0], streams=1)):
        with pytest.raises(LatencyError, match="ends ascend"):
            table.stages(batch)


def test_buffers_of_more_bytes_than_there_are():
    """The sum of the sizes once overflowed, and the buffers were placed over each other."""
    graph = OpGraph.from_edges(3, [])
    buffers = [Buffer(2**62, (op,)) for op in range(3)]
    streams, waits = [[0], [1], [2]], [()] * 3
    with pytest.raises(PlanError, match="more bytes than can be addressed"):
        memory_plan(graph, streams, waits, buffers)
    with pytest.raises(PlanError, match="more bytes than can be addressed"):
        memory_order(graph, buffers)
    assert memory_plan(graph, streams, waits, buffers[:1]).arena_bytes == 2**62
    with pytest.raises(PlanError, match=f"{2**63} is given"):
        memory_plan(graph, streams, waits, [Buffer(2**63, (0,))])


def compensate(monkeypatch):
    for module in (schedules, ios_merge):
        monkeypatch.setattr(module, "sum", math.fsum, raising=False)


def test_sums_are_those_of_the_native_code(monkeypatch):
    """Python's `sum` compensates for rounding from 3.12 on, as `fsum` does here."""
    compensate(monkeypatch)
    rng = np.random.default_rng(0)
    for _ in range(300):
        op_us = rng.choice([0.1, 0.2, 0.3, 0.7, 1e-9], 12)
        groups = [list(part) for part in np.split(rng.permutation(12), [3, 6, 9])]
        (stage,) = pack_onto_streams([Stage(groups, range(4))], op_us, 2)
        by_stream = [list(ops) for ops in stage.by_stream().values()]
        packed = LatencyTable(op_us).stage(by_stream)
        assert LatencyTable(op_us, streams=2).stage(groups) == packed


def test_merging_in_order_warns_of_nothing(monkeypatch, caplog):
    compensate(monkeypatch)
    rng = np.random.default_rng(0)
    for seed in range(100):
        graph = layered(14, seed)
        made = schedule(graph, "ios-merge", LatencyTable(rng.random(14) * 10), max_groups=4)
        assert made.stats["below_bound"] == 0
    assert not caplog.records
