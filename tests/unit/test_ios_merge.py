"""Tests IOS with merging: the stages that it chooses, and models compiled with them."""

import math

import numpy as np
import pytest

import tvm_interop
from tests.brute_force import cheapest_stages
from tests.graphs import latencies, layered, sparse
from tests.merging import Eager, by_hand
from tests.nets import Net, inception_like
from tvm_interop import GraphModule, Schedule, ScheduleError, Stage
from tvm_interop.compiler.annotate import annotated_schedule
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.compiler.merging import MergingLatency
from tvm_interop.errors import LatencyError
from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import schedule
from tvm_interop.transform import InterOpSchedule

DATA = np.random.default_rng(0).standard_normal((1, 8, 14, 14)).astype("float32")


class Merging(LatencyTable):
    """A latency model: merged operators take the fraction `share` of their total latency."""

    def __init__(self, us, sets, share=0.5, most=8):
        super().__init__(us)
        self.sets = sets
        self.share = share
        self.most = most

    def stage(self, groups):
        longest = max(sum(self.op(op) for op in group) for group in groups)
        return longest * (1 + 0.4 * (len(groups) - 1))

    def mergeable(self):
        return self.sets

    def merges(self, sets):
        return np.array([
            self.share * sum(map(self.op, ops)) if len(ops) <= self.most else math.inf
            for ops in sets
        ])  # fmt: skip


def merged_sets(made):
    return [
        {op for group in stage.groups for op in group}
        for stage in made.stages
        if stage.kind == "merge"
    ]


FOUR = OpGraph.from_edges(["a", "b", "c", "d"], [(0, 3), (1, 3), (2, 3)])


def test_what_is_cheapest_merged_is_merged():
    model = Merging([4, 4, 4, 2], [(0, 1, 2)], share=0.4)
    made = schedule(FOUR, "ios-both", model)
    assert merged_sets(made) == [{0, 1, 2}]
    assert made.makespan == pytest.approx(0.4 * 12 + 2)
    assert made.makespan == pytest.approx(made.simulate(FOUR, model))
    assert schedule(FOUR, "ios-both", Merging([4, 4, 4, 2], [(0, 1, 2)], share=0.9)) == Schedule(
        "ios-both",
        FOUR.names,
        stages=schedule(FOUR, "ios", Merging([4, 4, 4, 2], [])).stages,
        makespan=schedule(FOUR, "ios", Merging([4, 4, 4, 2], [])).makespan,
    )


def test_what_cannot_be_merged_is_not():
    model = Merging([4, 4, 4, 2], [(0, 1, 2)], share=0.4, most=2)
    assert [len(ops) for ops in merged_sets(schedule(FOUR, "ios-merge", model))] == [2]
    assert merged_sets(schedule(FOUR, "ios-both", LatencyTable([4, 4, 4, 2]))) == []
    assert merged_sets(schedule(FOUR, "ios-merge", model, max_groups=1)) == []


def test_merging_alone_runs_nothing_side_by_side():
    model = Merging([4, 4, 4, 2], [(0, 1)], share=0.6)
    made = schedule(FOUR, "ios-merge", model)
    assert made.num_streams == 1
    assert merged_sets(made) == [{0, 1}]
    assert made.makespan == pytest.approx(0.6 * 8 + 4 + 2)


def test_ios_parallel_is_ios():
    us = LatencyTable(latencies(12, 1))
    graph = layered(12, 1)
    assert schedule(graph, "ios-parallel", us) == schedule(graph, "ios", us)


def cheapest(graph, model, side_by_side, most):
    """The least latency of all sequences of stages, found by trying every sequence. A stage is a
    single operator or a merged set of operators."""
    sets = [frozenset(ops) for ops in model.mergeable()]

    def price(ending):
        independent = not any(graph.reaches(u, v) for u in ending for v in ending)
        together = math.inf
        if independent and 1 < len(ending) <= most and any(ending <= ops for ops in sets):
            together = float(model.merges([sorted(ending)])[0])
        if len(ending) > 1 and not side_by_side:
            return together
        apart = model.stage([[op] for op in ending]) if independent else math.inf
        return min(together, apart)

    return cheapest_stages(graph, price)


def test_optimal_over_all_stages_and_merges():
    merged = 0
    for seed in range(30):
        graph = sparse(4 + seed % 4, seed, degree=1.2)
        if len(graph.blocks()) > 1:
            continue
        ops = range(graph.num_ops)
        sets = [tuple(ops[: graph.num_ops // 2]), tuple(ops[graph.num_ops // 2 :])]
        model = Merging(latencies(graph.num_ops, seed), sets, share=(0.3, 0.6, 0.8)[seed % 3])
        both = schedule(graph, "ios-both", model, max_group_ops=1, max_groups=0)
        assert both.makespan == pytest.approx(cheapest(graph, model, True, 99))
        alone = schedule(graph, "ios-merge", model, max_groups=3)
        assert alone.makespan == pytest.approx(cheapest(graph, model, False, 3))
        merged += len(merged_sets(both))
    assert merged > 10


@pytest.mark.parametrize("costly", [False, True])
def test_blocks_too_large_to_search_through(costly):
    """Beam search and searches of neighbouring stages merge nearly as well as the exact search."""
    merged = 0
    for seed in range(4):
        graph = layered(24, seed, layer=4)
        sets = [tuple(range(i, i + 4)) for i in range(0, 24, 4)]
        model = Merging(latencies(24, seed), sets, share=(0.5, 0.7)[seed % 2])
        model.is_costly = costly
        for name in ("ios-both", "ios-merge"):
            some = schedule(graph, name, model, max_transitions=2000)
            whole = schedule(graph, name, model)
            assert whole.stats["optimal"]
            assert some.stats["blocks_left"]
            assert some.makespan == pytest.approx(some.simulate(graph, model))
            assert whole.makespan <= some.makespan * (1 + 1e-9)
            assert some.makespan <= (1.4 if costly else 1.2) * whole.makespan
            merged += len(merged_sets(some))
    assert merged > 10


def test_a_table_does_not_know_what_merging_takes():
    stages = (Stage(((0,), (1,), (2,)), (0, 0, 0), "merge"), Stage(((3,),), (0,)))
    made = Schedule("by hand", FOUR.names, stages=stages)
    with pytest.raises(LatencyError, match="how long `a`, `b`, `c` take as one operator"):
        made.simulate(FOUR, LatencyTable([1, 1, 1, 1]))


# Whole models.


def compilation(model=None, parts=1, **options):
    return Compilation(
        model or inception_like(), CompileOptions(latency_db=":memory:", parts=parts, **options)
    )


def result(artifact):
    module = GraphModule(artifact)
    module.run(x=DATA)
    return module.get_output(0).numpy()


@pytest.fixture(scope="module")
def plain():
    return result(tvm_interop.compile(inception_like(), scheduler="sequential"))


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_a_compilation_knows_what_can_be_merged():
    made = compilation()
    names = [{made.graph.names[op] for op in ops} for ops in made.merges.sets]
    assert names == [
        {"a1/Conv", "a3r/Conv", "a5r/Conv"},
        {"b1/Conv", "b3r/Conv", "b5r/Conv"},
    ]


@pytest.mark.parametrize("scheduler", ["ios-merge", "ios-both"])
@pytest.mark.parametrize("providers", [("tvm",), None])
def test_what_is_merged_runs(scheduler, providers, plain):
    made = compilation(streams=2, providers=providers)
    merging = made.schedule(scheduler, Eager(made))
    assert sorted(map(len, merged_sets(merging))) == [3, 3]
    artifact = made.artifact(Schedule.from_json(merging.to_json()))
    names = {op.name for op in artifact.plan.operators}
    assert {"a1/Conv+a3r/Conv+a5r/Conv", "b1/Conv+b3r/Conv+b5r/Conv"} <= names
    assert "a3/Conv" in names
    assert "a3r/Conv" not in names
    assert all(stage.kind == "concurrent" for stage in artifact.schedule.stages)
    assert_close(result(artifact), plain)


@pytest.mark.parametrize("scheduler", ["ios-merge", "ios-both"])
def test_merges_are_measured(scheduler, plain):
    artifact = tvm_interop.compile(
        inception_like(), scheduler=scheduler, streams=2, latency_db=":memory:", keep_slower=True
    )
    assert artifact.manifest.scheduler == scheduler
    assert_close(result(artifact), plain)
    made = compilation(streams=2)
    latency = made._merging_latency("ios-both")
    prices = latency.merges([made.merges.sets[0], made.merges.sets[0][:2], made.merges.sets[0]])
    assert (prices > 0).all()
    assert np.isfinite(prices).all()
    assert prices[0] == prices[2]


def test_a_merged_schedule_is_checked_against_the_model_as_it_was():
    made = compilation(streams=2)
    merging = made.schedule("ios-merge", Eager(made))
    checked = made.check_speed(merging)
    assert checked.sequential_us > 0
    artifact = made.artifact(merging, checked)
    merged = any("+" in op.name for op in artifact.plan.operators)
    assert merged == (checked.shipped == "scheduled")


def test_parts_that_a_concat_reads_whole(plain):
    net = Net()
    x = net.input("x", [1, 8, 14, 14])
    outs = [net.op("Relu", [net.conv(x, f"c{k}", (8, 4), k)], f"r{k}") for k in (1, 3)]
    net.op("Concat", outs, "cat", axis=1)
    made = compilation(net.model("cat"), streams=2)
    artifact = made.artifact(made.schedule("ios-both", Eager(made)))
    assert [op.name for op in artifact.plan.operators] == ["c1/Conv+c3/Conv"]
    unmerged = made.artifact(made.sequential())
    assert_close(result(artifact), result(unmerged))
    assert made._merging_latency("ios-both").merges([made.merges.sets[0]])[0] > 0


def test_a_merged_operator_that_reads_a_later_stage():
    """The sum after the concat becomes a part of the merged convolution, as in SqueezeNet."""
    net = Net()
    x, z = (net.input(name, [1, 8, 14, 14]) for name in ("x", "z"))
    joined = net.op("Concat", [net.conv(x, f"c{k}", (8, 4), k) for k in (1, 3)], "cat", axis=1)
    # The bypass reads another image. Otherwise it would also become a part of the merged
    # convolution.
    net.op("Relu", [net.op("Add", [joined, net.conv(z, "bypass", (8, 8), 1)], "sum")], "y")
    made = compilation(net.model("y"), providers=["tvm"])
    merging = by_hand(made, ["c1/Conv", "c3/Conv"])
    order = [made.graph.names[stage.ops[-1]] for stage in merging.stages]
    assert order.index("c3/Conv") < order.index("bypass/Conv")
    home, realized = made.realized(merging)
    assert [home.graph.names[stage.ops[0]] for stage in realized.stages] == [
        "bypass/Conv",
        "c1/Conv+c3/Conv",
    ]
    assert len(home.plan(realized).operators) == 2


def test_a_schedule_by_hand(plain):
    made = compilation()
    merging = by_hand(made, ["b5r/Conv", "b1/Conv"])
    assert_close(result(made.artifact(merging)), plain)
    with pytest.raises(ScheduleError, match="that `realized` returns"):
        made.plan(merging)
    wrong = by_hand(made, ["a1/Conv", "app/Conv"])
    with pytest.raises(ScheduleError, match="`app/Conv` reads another tensor than `a1/Conv`"):
        made.artifact(wrong)
    wrong = by_hand(made, ["ap/MaxPool", "a1/Conv"])
    with pytest.raises(
        ScheduleError, match="`ap/MaxPool` cannot be merged: it is neither a convolution"
    ):
        made.artifact(wrong)


def test_the_pass_merges_too(plain):
    from tvm_interop.frontend import load_model

    imported = load_model(inception_like())
    # Two compilations may divide different operators, because that depends on measurements. So
    # none is divided here (`parts=1`).
    module = InterOpSchedule("ios-merge", latency=Eager(compilation()), parts=1)(imported)
    made = annotated_schedule(module)
    assert "a1/Conv+a3r/Conv+a5r/Conv" in made.op_names
    assert_close(result(tvm_interop.compile(module, keep_slower=True)), plain)


# The next tests are about operators that are divided into parts.


@pytest.fixture(scope="module", params=[("tvm",), None], ids=["tvm", "all"])
def in_parts(request):
    """A compilation that divides large operators, such as convolutions of 5x5, into two parts."""
    return compilation(inception_like(28, 32), parts=None, streams=2, providers=request.param)


def run(artifact):
    data = np.random.default_rng(0).standard_normal((1, 8, 28, 28)).astype("float32")
    module = GraphModule(artifact)
    module.run(x=data)
    return module.get_output(0).numpy()


@pytest.mark.parametrize("scheduler", ["ios-merge", "ios-both"])
def test_a_stage_of_one_operator_uses_all_streams(in_parts, scheduler):
    """Merged operators are divided like other operators, so that no core is idle while they run."""
    made = in_parts
    assert made.program.is_divided
    merging = made.schedule(scheduler, Eager(made))
    assert merged_sets(merging)
    for ops in merged_sets(merging):
        wholes = {made.program.operators[op].whole for op in ops} - {None}
        parts = {i for i, op in enumerate(made.program.operators) if op.whole in wholes}
        assert parts <= ops
    home, realized = made.realized(merging)
    divided = [ops for ops in home.program.parts() if len(ops) > 1]
    assert any("+" in home.graph.names[ops[0]] for ops in divided)
    alone = [stage for stage in realized.stages if sorted(stage.ops) in divided]
    assert {home.graph.names[op] for stage in alone for op in stage.ops} >= {
        name for name in home.graph.names if "+" in name and name.endswith("/2]")
    }
    assert all(sorted(stage.streams) == [0, 1] for stage in alone)
    plain = run(made.artifact(made.sequential()))
    artifact = made.artifact(Schedule.from_json(merging.to_json()))
    assert any("+" in op.name for op in artifact.plan.operators)
    assert_close(run(artifact), plain)


def test_without_merges_the_bits_are_those_of_sequential_execution(in_parts):
    made = in_parts
    apart = made.schedule("ios-both", LatencyTable([10.0] * made.graph.num_ops, streams=2))
    assert not merged_sets(apart)
    found, plain = (run(made.artifact(each)) for each in (apart, made.sequential()))
    assert found.tobytes() == plain.tobytes()


def test_parts_of_merged_operators_are_measured_side_by_side(in_parts):
    """The latency of a merged operator is the time of its parts side by side, plus the time of the
    operators that cut its output."""
    made = in_parts
    asked = []

    class Asked(LatencyTable):
        def stages(self, stages):
            asked.extend(stages)
            return super().stages(stages)

    def compile_alone(module):
        alone = made._compiled(made.streams, made.threads, module)
        alone.measured_latency = Asked([7.0] * alone.graph.num_ops)
        return alone

    latency = MergingLatency.measuring(made.measured_latency, made.merges, compile_alone)
    (us,) = latency.merges([made.merges.sets[1]])
    merged = max(asked, key=len)
    assert [len(ops) for ops in merged] == [1, 1]
    assert us == 7.0 * len(asked)


def test_parts_that_are_apart_cannot_run_beside_merged_operators(in_parts):
    made = in_parts
    merging = made.schedule("ios-both", Eager(made))
    at = next(
        i
        for i, stage in enumerate(merging.stages)
        if stage.kind == "concurrent" and len(stage.ops) > 1
        and any(made.program.operators[op].whole for op in stage.ops)
    )  # fmt: skip
    stage = merging.stages[at]
    each = tuple(Stage((group,), (0,)) for group in stage.groups)
    apart = Schedule(
        "by hand",
        merging.op_names,
        stages=(*merging.stages[:at], *each, *merging.stages[at + 1 :]),
    )
    with pytest.raises(ScheduleError, match=r"the parts of `\S+` are in several stages"):
        made.realized(apart)


@pytest.mark.parametrize("scheduler", ["ios-merge", "ios-both"])
def test_divided_operators_are_merged_and_measured_here(scheduler):
    model = inception_like(28, 32)
    artifact = tvm_interop.compile(model, scheduler=scheduler, streams=2, latency_db=":memory:")
    plain = tvm_interop.compile(model, scheduler="sequential", streams=2, latency_db=":memory:")
    assert any(op.name.endswith("/2]") for op in artifact.plan.operators)
    assert_close(run(artifact), run(plain))
