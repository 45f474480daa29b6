"""Tests Opara's order of launches and its streams, and that plans and files keep the order."""

from itertools import pairwise

import pytest

from tests.graphs import latencies, layered
from tvm_interop.errors import ScheduleError
from tvm_interop.latency import LatencyTable
from tvm_interop.plan.make import make_plan
from tvm_interop.program.graph import OpGraph
from tvm_interop.program.program import Operator, Program, Value
from tvm_interop.scheduling import OperatorTraits, Schedule, schedule

# Two compute-bound operators, two memory-bound operators, and an operator that reads all four.
GRAPH = OpGraph.from_edges(["conv", "wide", "add", "relu", "cat"], [(i, 4) for i in range(4)])
TRAITS = [
    OperatorTraits(flops=1000, nbytes=10),
    OperatorTraits(flops=4000, nbytes=10),
    OperatorTraits(flops=10, nbytes=300),
    OperatorTraits(flops=10, nbytes=100),
    OperatorTraits(flops=0, nbytes=400),
]


def test_memory_and_compute_alternate_least_demand_first():
    made = schedule(GRAPH, "opara", traits=TRAITS)
    assert [GRAPH.names[op] for op in made.launch_order] == ["relu", "conv", "add", "wide", "cat"]


def test_what_the_traits_say_comes_before_what_is_derived():
    traits = [
        OperatorTraits(demand=0.3, memory_bound=True),
        OperatorTraits(demand=0.2, memory_bound=True),
        OperatorTraits(demand=0.1, memory_bound=False),
        OperatorTraits(demand=0.4, memory_bound=False),
        OperatorTraits(),
    ]
    made = schedule(GRAPH, "opara", traits=traits)
    assert made.launch_order == (1, 2, 0, 3, 4)


def test_ties_go_to_the_operator_that_has_been_ready_for_longest():
    """Operators 0, 1 and 2 have equal demands. Operators 1 and 2 are ready from the start, and
    operator 0 only after operator 3 was launched."""
    graph = OpGraph.from_edges(4, [(3, 0)])
    traits = [OperatorTraits(demand=0.5, memory_bound=True) for _ in range(4)]
    traits[3] = OperatorTraits(demand=0.25, memory_bound=True)
    assert schedule(graph, "opara", traits=traits).launch_order == (3, 1, 2, 0)


def test_without_traits_operators_launch_as_they_become_ready():
    assert schedule(GRAPH, "opara").launch_order == (0, 1, 2, 3, 4)
    # All operators have fewer flops per byte than the limit 1e9, so all are memory-bound. The
    # demands of `conv` and `relu` are both 1/4, so the operator with the lower id comes first.
    made = schedule(GRAPH, "opara", traits=TRAITS, flops_per_byte=1e9)
    assert made.launch_order == (0, 3, 2, 1, 4)


def test_the_streams_are_algorithm_1():
    """Compares the streams with a simple implementation of the paper's Algorithm 1: an operator's
    stream is continued by the first of its successors to be launched."""
    for seed in range(60):
        graph = layered(40, seed)
        traits = [OperatorTraits(us, (us * 7) % 13) for us in latencies(40, seed)]
        made = schedule(graph, "opara", traits=traits, flops_per_byte=2)
        position = {op: i for i, op in enumerate(made.launch_order)}
        streams = []
        on = {}
        for op in made.launch_order:
            for source in graph.predecessors(op):
                if min(graph.successors(source), key=position.get) == op:
                    on[op] = on[source]
                    break
            else:
                on[op] = len(streams)
                streams.append([])
            streams[on[op]].append(op)
        assert made.streams == tuple(map(tuple, streams))
        assert all(v in graph.successors(u) for ops in made.streams for u, v in pairwise(ops))


@pytest.mark.parametrize("streams", [1, 3])
def test_folded_streams_keep_the_launch_order(streams):
    graph = layered(40, 2)
    us = LatencyTable(latencies(40, 2))
    made = schedule(graph, "opara", us, streams=streams)
    position = {op: i for i, op in enumerate(made.launch_order)}
    assert made.num_streams == streams
    assert all(list(ops) == sorted(ops, key=position.get) for ops in made.streams)


def test_a_file_keeps_the_launch_order():
    made = schedule(GRAPH, "opara", traits=TRAITS)
    assert Schedule.from_json(made.to_json()) == made
    assert '"launch_order"' not in schedule(GRAPH, "nimble").to_json()
    with pytest.raises(ScheduleError, match="`launch_order` has an operator `sum`"):
        Schedule.from_json(made.to_json().replace('"relu", "conv"', '"sum", "conv"'))


def test_a_plan_keeps_the_launch_order():
    values = [Value(f"v{i}", (4,), "float32") for i in range(6)]
    operators = [Operator(name, "k", (0,), (i + 1,)) for i, name in enumerate(GRAPH.names[:4])]
    operators.append(Operator("cat", "k4", (1, 2, 3, 4), (5,)))
    program = Program(values, operators, (0,), (5,), {})
    made = schedule(GRAPH, "opara", traits=TRAITS)
    names = [op.name for op in make_plan(program, made).operators]
    assert names == [GRAPH.names[op] for op in made.launch_order]


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ((0, 1, 2, 4, 3), "`cat` before `relu`, which must run first"),
        ((0, 1, 2, 3), "4 operators for 5"),
        ((0, 1, 2, 3, 3), "must hold each operator once"),
        ((1, 0, 2, 3, 4), "`wide` before `conv`, which must run first"),
    ],
)
def test_a_launch_order_that_cannot_be_is_refused(order, says):
    streams = ((0, 1, 4), (2, 3))
    with pytest.raises(ScheduleError, match=says):
        Schedule("mine", GRAPH.names, streams=streams, launch_order=order).validate(GRAPH)


def test_stages_have_no_launch_order():
    stages = schedule(GRAPH, "greedy").stages
    with pytest.raises(ScheduleError, match="launched in turn"):
        Schedule("mine", GRAPH.names, stages=stages, launch_order=(0, 1, 2, 3, 4))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"traits": TRAITS[:2]}, "`traits` describes 2 operators, but the graph has 5"),
        ({"flops_per_byte": -1}, "`flops_per_byte` is -1"),
        ({"streams": 0}, "`streams` is 0"),
    ],
)
def test_bad_options_are_named(options, says):
    with pytest.raises(ScheduleError, match=says):
        schedule(GRAPH, "opara", **options)


def test_bad_traits_are_named():
    with pytest.raises(ScheduleError, match="`nbytes` of an operator is -1"):
        OperatorTraits(nbytes=-1)
