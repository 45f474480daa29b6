"""Tests plans: how they are made from schedules, proven safe, and refused if damaged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.damage import damaged
from tests.native_runtime import read_plan_in_both as read_plan
from tvm_interop import ArtifactError, PlanError, Schedule, ScheduleError, Stage
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.program import Operator, Program, Value


def diamond() -> Program:
    """The graph x -> a -> (b, c) -> d -> y, with a reshape of the result of a before c."""
    names = ("x", "a", "b", "c", "d", "e")
    values = [Value(name, (16, 16), "float32") for name in names]
    values.append(Value("a_flat", (256,), "float32", alias_of=1))
    operators = [
        Operator("A", "k", (0,), (1,)),
        Operator("B", "k", (1,), (2,)),
        Operator("C", "k", (6,), (3,)),
        Operator("D", "k2", (2, 3), (4,)),
        Operator("E", "k", (4,), (5,)),
    ]
    return Program(values, operators, inputs=(0,), outputs=(5,))


NAMES = ("A", "B", "C", "D", "E")


def two_stream_plan() -> Plan:
    return make_plan(diamond(), Schedule("by hand", NAMES, streams=[[0, 1, 3, 4], [2]]))


def test_waits_are_the_fewest() -> None:
    plan = two_stream_plan()
    waits = {op.name: [plan.operators[w].name for w in op.waits] for op in plan.operators}
    assert waits == {"A": [], "B": [], "C": ["A"], "D": ["C"], "E": []}


def test_waits_point_backwards() -> None:
    for i, op in enumerate(two_stream_plan().operators):
        assert all(w < i for w in op.waits)


def test_sequential_reuses_storage() -> None:
    plan = make_plan(diamond(), Schedule("by hand", NAMES, streams=[[0, 1, 2, 3, 4]]))
    # a, b and c are in use at once, and d takes the place of a.
    assert plan.arena_bytes == 3 * 1024
    assert not any(op.waits for op in plan.operators)


def test_inputs_outputs_and_aliases_have_their_storage() -> None:
    plan = two_stream_plan()
    storage = {v.name: v.storage for v in plan.values}
    assert storage == {
        "x": "input",
        "a": "arena",
        "b": "arena",
        "c": "arena",
        "d": "arena",
        "e": "output",
        "a_flat": "alias",
    }


def test_an_output_may_be_an_input_or_an_alias() -> None:
    program = diamond()
    program.outputs = (0, 6, 5)
    plan = make_plan(program, Schedule("by hand", NAMES, streams=[[0, 1, 3, 4], [2]]))
    # The value is also an output. So it has storage of its own, which the caller can read after the
    # run.
    assert plan.values[1].storage == "output"


def test_json_round_trip() -> None:
    plan = two_stream_plan()
    assert read_plan(plan.to_json()) == plan


def test_a_missing_wait_is_caught() -> None:
    with pytest.raises(PlanError, match=r"`C`.*`A`|`A`.*`C`"):
        read_plan(damaged(two_stream_plan(), C__waits=[]))
    with pytest.raises(PlanError, match=r"`D`.*`C`|`C`.*`D`"):
        read_plan(damaged(two_stream_plan(), D__waits=[]))


def test_storage_shared_without_an_order_is_caught() -> None:
    plan = two_stream_plan()
    offset = {v.name: v.offset for v in plan.values}
    for first, second in (("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("b", "d")):
        with pytest.raises(PlanError):
            read_plan(damaged(plan, **{f"{second}__offset": offset[first]}))


def test_storage_outside_the_arena_is_caught() -> None:
    plan = two_stream_plan()
    with pytest.raises(PlanError):
        read_plan(damaged(plan, b__offset=plan.arena_bytes))


def test_storage_off_its_alignment_is_caught() -> None:
    with pytest.raises(PlanError, match="`d` lies at 32, which is not a multiple of 64"):
        read_plan(damaged(two_stream_plan(), d__offset=32))


@pytest.mark.parametrize(
    "changes",
    [
        {"B__stream": 2},
        {"B__inputs": [99]},
        {"A__waits": [4]},
        {"a_flat__alias_of": 6},
        {"a_flat__shape": [257]},
        {"a_flat__offset": 4},
        {"x__storage": "arena"},
        {"d__storage": "input"},
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError):
        read_plan(damaged(two_stream_plan(), **changes))


def test_unknown_fields_and_versions_are_refused() -> None:
    document = json.loads(two_stream_plan().to_json())
    with pytest.raises(ArtifactError, match="colour"):
        read_plan(json.dumps({**document, "colour": "red"}))
    with pytest.raises(ArtifactError):
        read_plan(json.dumps({**document, "version": 2}))
    with pytest.raises(ArtifactError):
        read_plan("no json")


def test_a_schedule_that_breaks_a_dependency_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"`D`|`E`"):
        make_plan(diamond(), Schedule("by hand", NAMES, streams=[[0, 1, 2, 4, 3]]))


def test_a_barrier_holds_back_what_depends_on_nothing() -> None:
    """Four independent operators form two stages on two streams. The second stage waits for the
    first, although no operator depends on another."""
    values = [Value(name, (4,), "float32") for name in ("x", "a", "b", "c", "d")]
    operators = [Operator(n, "k", (0,), (i,)) for i, n in enumerate("ABCD", start=1)]
    program = Program(values, operators, inputs=(0,), outputs=(1, 2, 3, 4))

    def waits(barrier: bool) -> dict[str, set[str]]:
        stages = [
            Stage(groups=((0,), (1,)), streams=(0, 1)),
            Stage(groups=((2,), (3,)), streams=(0, 1), barrier=barrier),
        ]
        plan = make_plan(program, Schedule("by hand", tuple("ABCD"), stages=tuple(stages)))
        return {op.name: {plan.operators[w].name for w in op.waits} for op in plan.operators}

    assert waits(barrier=False) == {"A": set(), "B": set(), "C": set(), "D": set()}
    assert waits(barrier=True) == {"A": set(), "B": set(), "C": {"B"}, "D": {"A"}}


def test_operators_are_matched_by_name() -> None:
    """A schedule that was edited by hand may list operators in another order than the program."""
    plan = two_stream_plan()
    turned = Schedule("by hand", NAMES[::-1], streams=[[4, 3, 1, 0], [2]])
    assert make_plan(diamond(), turned) == plan
