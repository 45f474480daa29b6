"""Tests the registry of schedulers and its errors, and compares schedulers with brute force."""

import math
from itertools import product

import numpy as np
import pytest

from tests.graphs import latencies, layered, randwire, sparse
from tvm_interop.errors import ScheduleError
from tvm_interop.latency import LatencyModel, LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import (
    Schedule,
    Stage,
    register_scheduler,
    registry,
    schedule,
    schedulers,
)

GRAPH = OpGraph.from_edges(["a", "b", "c", "d"], [(0, 1), (0, 2), (1, 3), (2, 3)])
US = LatencyTable([1, 2, 3, 4])


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def test_the_built_in_names():
    assert {"ios", "lios", "greedy", "sequential"} <= set(schedulers())
    assert schedulers() == sorted(schedulers())


def test_an_unknown_name_lists_the_names():
    with pytest.raises(
        ScheduleError, match=r"no scheduler `lois` \(did you mean `lios`\?\); the"
    ) as caught:
        schedule(GRAPH, "lois", US)
    for name in schedulers():
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("ios", {"max_group": 1}, r"no option `max_group` \(did you mean `max_groups?"),
        ("ios", {"zzz": 1}, "no option `zzz`; its options are max_group_ops, max_groups, endings"),
        ("sequential", {"streams": 1}, "no option `streams`; its options are order, buffers"),
        ("sequential", {"order": "least"}, "`order` is 'least'"),
        ("sequential", {"order": "memory"}, "how large tensors are; pass `buffers=`"),
        ("ios", {"endings": "all"}, "`endings` is 'all'"),
        ("ios", {"max_groups": -1}, "`max_groups` is -1"),
        ("ios", {"max_group_ops": 2.5}, "`max_group_ops` is 2.5"),
        ("ios", {"max_group_ops": True}, "`max_group_ops` is True"),
        ("ios", {"max_transitions": 0}, "`max_transitions` is 0"),
        ("ios", {"streams": 0}, "`streams` is 0"),
        ("lios", {"streams": 0}, "`streams` is 0"),
        ("lios", {"streams": "two"}, "`streams` is 'two'"),
        ("greedy", {"max_groups": None}, "`max_groups` is None"),
    ],
)
def test_bad_options_are_named(name, options, says):
    with pytest.raises(ScheduleError, match=says):
        schedule(GRAPH, name, US, **options)


@pytest.mark.parametrize("name", ["ios", "lios"])
def test_latency_is_required(name):
    with pytest.raises(ScheduleError, match=f"`{name}` needs a latency model"):
        schedule(GRAPH, name)


def test_latency_is_optional_where_nothing_depends_on_it():
    assert schedule(GRAPH, "greedy").makespan is None
    assert schedule(GRAPH, "greedy", streams=1).streams == ((0, 1, 2, 3),)
    assert schedule(GRAPH, "greedy", US).makespan == 8
    assert schedule(GRAPH, "sequential").makespan is None
    assert schedule(GRAPH, "sequential", US).makespan == 10


def test_users_add_their_own(own_registry):
    @register_scheduler("reverse")
    def reverse(graph, latency, *, upside_down=False):
        """Return a schedule in which each operator is a stage."""
        order = graph.topological_order()
        if upside_down:
            order = order[::-1]
        return Schedule("reverse", graph.names, stages=tuple(Stage(((op,),), (0,)) for op in order))

    assert "reverse" in schedulers()
    made = schedule(GRAPH, "reverse", US)
    assert made.makespan == 10
    assert made.stats["search_us"] >= 0
    with pytest.raises(ScheduleError, match="reads the output of"):
        schedule(GRAPH, "reverse", US, upside_down=True)
    with pytest.raises(ScheduleError, match="its options are upside_down"):
        schedule(GRAPH, "reverse", US, inside_out=True)
    with pytest.raises(ScheduleError, match="already"):
        register_scheduler("reverse")(reverse)


def test_a_scheduler_of_code_without_a_module(own_registry):
    code = "@register_scheduler('unnamed')\ndef unnamed(graph, latency): ..."
    exec(code, {"register_scheduler": register_scheduler, "__name__": None})
    assert not registry.is_own("unnamed")
    assert registry.is_own("ios")


def test_a_scheduler_must_return_a_schedule(own_registry):
    register_scheduler("nothing")(lambda graph, latency: None)
    with pytest.raises(ScheduleError, match="returned a NoneType"):
        schedule(GRAPH, "nothing")
    with pytest.raises(ScheduleError, match="give it a name"):
        register_scheduler("")


def test_the_empty_graph_and_the_single_operator():
    for name in ("ios", "lios", "greedy", "sequential"):
        assert schedule(OpGraph.from_edges(0, []), name, LatencyTable([])).makespan == 0
        assert schedule(OpGraph.from_edges(1, []), name, LatencyTable([7])).makespan == 7


def test_greedy_takes_what_is_ready():
    graph = OpGraph.from_edges(6, [(0, 5), (1, 5)])
    stages = schedule(graph, "greedy", max_groups=2).stages
    assert [stage.groups for stage in stages] == [((0,), (1,)), ((2,), (3,)), ((4,), (5,))]
    stages = schedule(graph, "greedy", max_groups=0).stages
    assert [stage.groups for stage in stages] == [((0,), (1,), (2,), (3,), (4,)), ((5,),)]


def test_groups_are_packed_onto_streams():
    graph = OpGraph.from_edges(4, [])
    us = LatencyTable([3, 3, 4, 5])
    made = schedule(graph, "greedy", us, streams=2)
    # The longest operators come first: op3 and op2, then op0 after op2 and op1 after op3.
    assert made.stages[0].streams == (1, 0, 1, 0)
    assert made.streams == ((1, 3), (0, 2))
    assert made.makespan == 8


class Recording(LatencyModel):
    def __init__(self, us):
        self.us = us
        self.seen = []

    def op(self, op):
        return self.us[op]

    def stage(self, groups):
        self.seen.append(tuple(map(tuple, groups)))
        return max(sum(self.us[op] for op in group) for group in groups)


def test_ios_prices_each_stage_once_as_it_will_run():
    graph = layered(14, 3)
    model = Recording(latencies(14, 3))
    made = schedule(graph, "ios", model, streams=2)
    priced = model.seen
    assert len(priced) == made.stats["stages_priced"] == len(set(priced))
    assert max(map(len, priced)) == 2
    assert made.num_streams <= 2
    assert all(tuple(stage.by_stream().values()) in set(priced) for stage in made.stages)


def brute_force_us(graph, us, max_group_ops, max_groups):
    """The least latency of all sequences of stages, found by trying every last stage of every set.

    Sets of operators are bit masks.
    """
    n = graph.num_ops
    successors = [sum(1 << v for v in graph.successors(u)) for u in range(n)]

    def groups_of(ending):
        groups = []
        while ending:
            group = ending & -ending
            while True:
                grown = group
                for u in range(n):
                    if ending >> u & 1:
                        touches = successors[u] & ending
                        if grown >> u & 1:
                            grown |= touches
                        elif touches & grown:
                            grown |= 1 << u
                if grown == group:
                    break
                group = grown
            groups.append([u for u in range(n) if group >> u & 1])
            ending &= ~group
        return groups

    best = {0: 0.0}

    def solve(state):
        if state in best:
            return best[state]
        cost = math.inf
        ending = state
        while ending:
            outside = state & ~ending
            if not any(ending >> u & 1 and successors[u] & outside for u in range(n)):
                groups = groups_of(ending)
                if len(groups) <= max_groups and all(len(g) <= max_group_ops for g in groups):
                    price = max(sum(us[op] for op in group) for group in groups)
                    cost = min(cost, solve(outside) + price)
            ending = (ending - 1) & state
        best[state] = cost
        return cost

    return solve((1 << n) - 1)


@pytest.mark.parametrize(("r", "s"), [(3, 8), (2, 2), (1, 3), (8, 8)])
def test_ios_is_optimal(r, s):
    for seed in range(20):
        graph = sparse(3 + seed % 6, seed, degree=1.5)
        us = latencies(graph.num_ops, seed)
        found = schedule(graph, "ios", LatencyTable(us), max_group_ops=r, max_groups=s).makespan
        # IOS cuts a graph into blocks. At a cut, a path leads from each operator before the cut to
        # each operator after it. So operators on different sides of a cut cannot run side by side,
        # and searching block by block loses nothing.
        assert found == brute_force_us(graph, us, r, s)


def test_of_equally_cheap_endings_ios_takes_the_first():
    class ByTheGroup(LatencyTable):
        def stage(self, groups):
            return float(len(groups))

    # An ending is a set of operators that may run last. The endings of {0, 1} are, in order, {0},
    # {0, 1} and {1}. With each of these endings as the last stage, the best schedule costs 2. So
    # the first ending is taken.
    made = schedule(OpGraph.from_edges(2, []), "ios", ByTheGroup([1, 1]))
    assert [stage.groups for stage in made.stages] == [((1,),), ((0,),)]
    assert made.makespan == 2


def test_lios_is_what_the_paper_says():
    """Compares `lios` with a simple implementation of the LIOS paper's Algorithm 1."""
    for seed, streams in product(range(30), (1, 2, 5)):
        graph = layered(40, seed)
        us = latencies(40, seed)
        waiting = [op for op in range(40) if not graph.predecessors(op)]
        done: dict[int, float] = {}
        free = [0.0] * streams
        rows = []
        while waiting:
            op = max(waiting, key=lambda v: us[v])  # `max` takes the first in a tie.
            ready = max((done[u] for u in graph.predecessors(op)), default=0.0)
            finish = [max(f, ready) + us[op] for f in free]
            stream = finish.index(min(finish))
            rows.append((op, stream, max(free[stream], ready), finish[stream]))
            free[stream] = done[op] = finish[stream]
            waiting.remove(op)
            waiting += [
                v for v in graph.successors(op) if all(u in done for u in graph.predecessors(v))
            ]
        assert list(schedule(graph, "lios", LatencyTable(us), streams=streams).timeline) == rows


def test_the_same_question_gets_the_same_answer():
    graph = layered(60, 5)
    us = LatencyTable(latencies(60, 5))
    for name in ("ios", "lios", "greedy", "sequential"):
        options = {"max_transitions": 20_000} if name == "ios" else {}
        assert schedule(graph, name, us, **options) == schedule(graph, name, us, **options)


def test_a_randwire_block_is_searched_whole():
    graph = randwire(33, 22)
    assert (graph.num_ops, graph.width, len(graph.blocks())) == (33, 8, 1)
    us = LatencyTable(latencies(33, 22))
    whole = schedule(graph, "ios", us)
    assert whole.stats["parts_cut"] == 0
    assert whole.stats["transitions"] > 10**6
    assert whole.makespan <= schedule(graph, "greedy", us).makespan
    cut = schedule(graph, "ios", us, max_transitions=10_000, beam=False)
    assert cut.stats["parts_cut"] > 0
    assert whole.makespan <= cut.makespan <= float(np.sum(latencies(33, 22)))


def test_ten_thousand_operators():
    graph = layered(10_000, 1, layer=16)
    us = LatencyTable(latencies(10_000, 1))
    for name, options in (("lios", {"streams": 4}), ("greedy", {}), ("sequential", {})):
        made = schedule(graph, name, us, **options)
        assert sum(map(len, made.streams)) == 10_000
