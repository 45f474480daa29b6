"""Tests that the stream that runs most of the longest path of operators has priority."""

from __future__ import annotations

import dataclasses
import random

from tests.nets import inception_like
from tvm_interop import LatencyTable, Schedule
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.plan.check import read_plan
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.plan.stream_priority import prefer_longest_chain
from tvm_interop.program.program import Operator, Program, Value


def program(*edges: tuple[str, str]) -> Program:
    """A program with an operator for each letter. A tensor without readers is an output."""
    names = sorted({name for edge in edges for name in edge})
    values = [Value("x", (4,), "float32"), *(Value(name, (4,), "float32") for name in names)]
    value_of = {name: i + 1 for i, name in enumerate(names)}
    operators = [
        Operator(n, "k", tuple(value_of[a] for a, b in edges if b == n) or (0,), (value_of[n],))
        for n in names
    ]
    read = {a for a, _ in edges}
    return Program(values, operators, (0,), tuple(value_of[n] for n in names if n not in read))


def planned(of: Program, *streams: str) -> Plan:
    names = tuple(op.name for op in of.operators)
    orders = [[names.index(name) for name in stream] for stream in streams]
    return make_plan(of, Schedule("by hand", names, streams=orders), device="cuda:0")


def urgent(plan: Plan, us: dict[str, float] | None = None) -> list[int]:
    op_us = None if us is None else [us[op.name] for op in plan.operators]
    streams = prefer_longest_chain(plan, op_us).streams
    return [s for s, stream in enumerate(streams) if stream.urgent]


# b and the chain c, d, e read the result of a. f reads the results of b and e.
FORK = program(("a", "b"), ("a", "c"), ("c", "d"), ("d", "e"), ("b", "f"), ("e", "f"))


def test_latencies_decide_where_they_are_known() -> None:
    plan = planned(FORK, "abf", "cde")
    us = dict.fromkeys("abcdef", 1.0)
    assert urgent(plan) == [1]
    assert urgent(plan, us) == [1]
    assert urgent(plan, us | {"b": 5.0}) == [0]
    # The longest path is a, c, d, e, f. Of its 10 us, 7 us are on stream 0.
    assert urgent(plan, us | {"a": 5.0}) == [0]


def test_the_order_on_a_stream_makes_a_chain_too() -> None:
    plan = planned(program(("a", "b"), ("c", "c2"), ("d", "d2")), "ab", ["c", "c2", "d", "d2"])
    assert urgent(plan) == [1]


def test_ties_go_to_the_lowest_stream() -> None:
    plan = planned(program(("a", "b"), ("c", "d")), "ab", "cd")
    assert urgent(plan) == [0]


def test_a_single_stream_has_nothing_to_be_preferred_to() -> None:
    plan = planned(FORK, "abcdef")
    assert prefer_longest_chain(plan) is plan


def test_the_plan_stays_the_same_otherwise_and_is_kept() -> None:
    plan = planned(FORK, "abf", "cde")
    preferring = prefer_longest_chain(plan)
    assert preferring.operators == plan.operators
    assert read_plan(preferring.to_json()) == preferring
    assert not any(stream.urgent for stream in plan.streams)


def test_against_every_chain_there_is() -> None:
    rng = random.Random(0)
    for _ in range(30):
        names = "abcdefgh"
        edges = [(a, b) for a in names for b in names if a < b and rng.random() < 0.3]
        edges += [("a", name) for name in "bh"]
        of = program(*edges)
        stream_of = {op.name: rng.randrange(3) for op in of.operators}
        streams = ["".join(n for n in stream_of if stream_of[n] == s) for s in range(3)]
        plan = planned(of, *streams)
        us = {op.name: float(rng.randint(1, 9)) for op in of.operators}
        assert set(urgent(plan, us)) <= streams_of_longest_chains(plan, us)


def streams_of_longest_chains(plan: Plan, us: dict[str, float]) -> set[int]:
    """The streams that run most of a longest path, found by listing all paths."""
    before: list[set[int]] = []
    for i, op in enumerate(plan.operators):
        same = [j for j in range(i) if plan.operators[j].stream == op.stream]
        before.append({*op.waits, *same[-1:]})
    chains: list[list[list[int]]] = []
    for i, ahead in enumerate(before):
        chains.append([[*chain, i] for j in ahead for chain in chains[j]] or [[i]])
    of_us = [us[op.name] for op in plan.operators]
    everyone = [chain for ending in chains for chain in ending]
    longest = max(sum(of_us[i] for i in chain) for chain in everyone)
    found = set()
    for chain in everyone:
        if sum(of_us[i] for i in chain) == longest:
            carried = [0.0] * len(plan.streams)
            for i in chain:
                carried[plan.operators[i].stream] += of_us[i]
            found.add(carried.index(max(carried)))
    return found


def test_a_compilation_goes_by_the_latencies_given() -> None:
    options = CompileOptions("cuda", archs=["sm_90"], stream_priorities=True)
    compilation = Compilation(inception_like(), options)
    names = compilation.graph.names
    schedule = compilation.schedule("nimble")
    orders = [[names[i] for i in order] for order in schedule.streams if order]
    for wanted in (0, len(orders) - 1):
        us = [9.0 if name in orders[wanted] else 0.001 for name in names]
        compilation.options.latency = LatencyTable(us)
        streams = compilation.plan(schedule).streams
        assert [stream.urgent for stream in streams].index(True) == wanted
    on_two = dataclasses.replace(schedule, devices=[s % 2 for s in range(len(schedule.streams))])
    streams = compilation.plan(on_two).streams  # Copies do not count for priorities.
    assert [stream.urgent for stream in streams].index(True) == wanted
    # Latencies that are given for another schedule do not change the priorities of `schedule`.
    compilation.schedule("lios", LatencyTable([1.0] * len(names)))
    assert compilation.plan(schedule).streams[wanted].urgent
    compilation.options.stream_priorities = False
    assert not any(stream.urgent for stream in compilation.plan(schedule).streams)
