"""Tests the learned scheduler GPG: the endings that it chooses from, its graph network in NumPy and
in PyTorch, training and rewards."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.paper_device import network_work
from benchmarks.top_gpg import beam_search, printed_reward
from tests.graphs import latencies, layered, sparse
from tvm_interop.errors import GraphError, InputError, ScheduleError
from tvm_interop.latency import LatencyTable
from tvm_interop.latency.contended import ContendedLatency
from tvm_interop.program.graph import OpGraph
from tvm_interop.program.kinds.avg_pool2d import AvgPool2d
from tvm_interop.program.layers import LAYER_FEATURES, Layer, layer_of
from tvm_interop.program.windows import Window
from tvm_interop.scheduling import schedule
from tvm_interop.scheduling.endings import bits, endings
from tvm_interop.scheduling.gpg import load_weights
from tvm_interop.scheduling.gpg_network import pooled, states
from tvm_interop.serving.learning.gpg import GpgConfig, GpgTraining, Task, save_weights
from tvm_interop.serving.learning.gpg_network import GraphNetwork, Union

SMALL = GpgConfig(steps=60, pack=4, states=4)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # The networks are so small that more threads would be slower.
    yield
    torch.set_num_threads(before)


def all_endings(graph, max_group_ops, max_groups):
    """Return every ending of the graph as a set of groups, found by trying all sets of operators.

    An ending is a set of operators from which no operator outside the set reads. Its groups are its
    connected components.
    """
    found = set()
    ops = range(graph.num_ops)
    for size in range(1, graph.num_ops + 1):
        for chosen in map(set, itertools.combinations(ops, size)):
            if any(v not in chosen for u in chosen for v in graph.successors(u)):
                continue
            groups, left = [], set(chosen)
            while left:
                group, open_ = set(), [left.pop()]
                while open_:
                    op = open_.pop()
                    group.add(op)
                    near = {*graph.successors(op), *graph.predecessors(op)} & left
                    left -= near
                    open_ += near
                groups.append(frozenset(group))
            if len(groups) <= max_groups and max(map(len, groups)) <= max_group_ops:
                found.add(frozenset(groups))
    return found


@pytest.mark.parametrize("limits", [(3, 8), (2, 2), (1, 3), (5, 4)])
def test_the_endings_are_those_of_the_definition(limits):
    for seed in range(30):
        size = random.Random(seed).randint(1, 8)
        graph = layered(size, seed) if seed % 2 else sparse(size, seed)
        order = graph.topological_order()
        place = {op: i for i, op in enumerate(order)}
        readers = [sum(1 << place[v] for v in graph.successors(op)) for op in order]
        found = endings(readers, (1 << size) - 1, *limits)
        numbered = [
            frozenset(frozenset(order[i] for i in bits(group)) for group in found.numbered(number))
            for number in range(found.count)
        ]
        assert len(set(numbered)) == len(numbered)
        assert set(numbered) == all_endings(graph, *limits)


def fork(seed: int, width: int = 3) -> tuple[OpGraph, ContendedLatency]:
    """Chains of two operators side by side, between a source and a sink, on three cores."""
    size = 2 * width + 2
    edges = [(0, 1 + 2 * i) for i in range(width)]
    edges += [(1 + 2 * i, 2 + 2 * i) for i in range(width)]
    edges += [(2 + 2 * i, size - 1) for i in range(width)]
    rng = np.random.default_rng(seed)
    us, cores = rng.uniform(5, 50, size), rng.choice([1.0, 2.0, 3.0], size)
    latency = ContendedLatency(us, 3.0, 1.0, cores, rng.choice([0.0, 0.4, 0.8], size))
    return OpGraph.from_edges(size, edges), latency


@pytest.mark.parametrize("variant", ["gpg", "gpg-scored"])
def test_numpy_and_torch_agree(variant):
    torch.manual_seed(3)
    net = GraphNetwork(variant)
    blocks = [Task.of(*fork(seed)).block for seed in (1, 2)]
    union = Union(blocks)
    with torch.no_grad():
        ours = net.summands(union).numpy()
        z = net.h2(union.spread([np.ones((1, len(b))) for b in blocks]) @ net.summands(union))
    weights = net.weights()
    theirs = np.concatenate([pooled(weights, block) for block in blocks])
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    gathered = np.stack([pooled(weights, block).sum(0) for block in blocks])
    np.testing.assert_allclose(z.numpy(), states(weights, gathered), atol=1e-5)


def test_the_layers_of_a_program_and_of_schedule_units_are_those_of_the_network():
    units = network_work("squeezenet")[0].layers
    first = units[0]
    assert (first.kind, first.kernel, first.stride, first.activation) == (
        "conv", (7, 7), (2, 2), "relu",
    )  # fmt: skip
    assert (first.read, first.made[1]) == (((1, 3, 224, 224),), 96)
    kinds = [layer.kind for layer in units]
    assert (kinds.count("pool"), kinds.count("joined")) == (4, 8)
    assert units[-1].pooling == "global avg"
    depthwise = Layer("conv", ((1, 8, 4, 4),), (1, 8, 4, 4), (1, 1), (3, 3), (2, 2), groups=8)
    row = depthwise.features()
    assert len(row) == LAYER_FEATURES
    assert row != replace(depthwise, groups=1).features()
    assert row != replace(depthwise, stride=(2, 2)).features()
    assert row != replace(depthwise, activation="tanh").features()
    window = Window(size=(4, 4), strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1))
    shapes = ((1, 8, 4, 4), (1, 8, 1, 1))
    pool = AvgPool2d(
        shapes=shapes, layouts=("plain",) * 2, dtype="float32", stored=(), cut=(), window=window
    )
    assert layer_of(pool, shapes[:1], shapes[1]).pooling == "global avg"
    assert layer_of(None, [(2, 3)], (2, 4)) == Layer("", ((2, 3),), (2, 4))


@pytest.mark.parametrize("features", ["layers", "both"])
def test_gpg_learns_from_types_and_shapes(features, tmp_path):
    graph, latency = fork(2)
    layers = [
        Layer("conv", ((1, 3, 8, 8),), (1, 4 + i, 8, 8), (1, 1), (3, 3), (2, 2))
        for i in range(graph.num_ops)
    ]
    known = OpGraph(graph.names, graph.edges, layers=layers)
    assert known.layers == tuple(layers)
    config = replace(SMALL, variant="gpg", steps=10, features=features)
    weights = GpgTraining([Task.of(known, latency)], config).run()
    save_weights(tmp_path / "w.npz", weights)
    made = schedule(known, "gpg", latency, weights=tmp_path / "w.npz")
    assert made.makespan > 0
    others = [replace(layer, groups=64, kind="pool") for layer in layers]
    block = Task.of(OpGraph(graph.names, graph.edges, layers=others), latency).block
    assert np.abs(pooled(weights, block) - pooled(weights, Task.of(known, latency).block)).max() > 0
    with pytest.raises(InputError, match="types and shapes of operators, which this graph"):
        schedule(graph, "gpg", latency, weights=tmp_path / "w.npz")
    with pytest.raises(GraphError, match="there are 1 `layers` for"):
        OpGraph(graph.names, graph.edges, layers=layers[:1])
    with pytest.raises(InputError, match="`features` is 'all'"):
        GpgConfig(features="all")


@pytest.mark.parametrize("variant", ["gpg", "gpg-scored"])
def test_a_training_goes_on_where_it_was_saved(variant, tmp_path):
    tasks = [Task.of(*fork(seed)) for seed in range(5)]
    config = replace(SMALL, variant=variant, steps=10)
    whole = GpgTraining(tasks, config)
    whole.run()
    first = GpgTraining(tasks, config)
    first.run(until=5, checkpoint_path=tmp_path / "c.npz")
    second = GpgTraining(tasks, config)
    weights = second.run(checkpoint_path=tmp_path / "c.npz")
    assert second.step == 10
    for key, expected in whole.net.weights().items():
        np.testing.assert_array_equal(weights[key], expected)
    with pytest.raises(InputError, match="another configuration"):
        GpgTraining(tasks, replace(config, seed=1)).run(checkpoint_path=tmp_path / "c.npz")
    with pytest.raises(InputError, match="another configuration"):  # Fewer steps.
        GpgTraining(tasks, replace(config, steps=4)).run(checkpoint_path=tmp_path / "c.npz")
    (tmp_path / "c.npz").write_bytes((tmp_path / "c.npz").read_bytes()[:200])
    with pytest.raises(InputError, match=r"c\.npz` cannot be read"):
        GpgTraining(tasks, config).run(checkpoint_path=tmp_path / "c.npz")


def test_scored_endings_learn_what_the_exact_search_finds(tmp_path):
    graphs = [fork(seed) for seed in range(12)]
    training = GpgTraining([Task.of(*graph) for graph in graphs], replace(SMALL, steps=100))
    save_weights(tmp_path / "w.npz", training.run())
    ratios = []
    for graph, latency in graphs:
        found = schedule(graph, "gpg-scored", latency, weights=tmp_path / "w.npz")
        ratios.append(found.makespan / schedule(graph, "ios", latency).makespan)
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) < 1.05


def test_the_printed_reward_is_greatest_for_one_operator_after_the_other():
    """The reward as printed in the paper is greatest for sequential execution, so it is wrong: the
    fastest schedule has fewer stages."""
    rows = printed_reward([fork(seed) for seed in range(4)])
    for row in rows:
        assert row["paper_reward_stages"] == row["operators"]
        assert row["paper_reward_us"] == pytest.approx(row["sequential_us"])
        assert row["least_us"] < 0.9 * row["sequential_us"]
        assert row["least_stages"] < row["operators"]


def test_the_beam_is_no_better_than_the_exact_search():
    for seed in range(5):
        graph, latency = fork(seed)
        exact = schedule(graph, "ios", latency).makespan
        found = beam_search(graph, latency)
        assert exact * (1 - 1e-9) <= found < latency.op_us.sum()


def test_the_weights_of_the_package_serve_any_graph():
    for seed in range(8):
        graph = layered(12, seed)
        us = LatencyTable(latencies(12, seed))
        for name in ("gpg", "gpg-scored"):
            first, again = (schedule(graph, name, us) for _ in range(2))
            assert first.stages == again.stages
            assert schedule(graph, name, us, streams=2).makespan > 0
    # With `priced=0`, the schedule is made from predictions alone. By default, the stages that are
    # predicted to be best are measured.
    graph, latency = fork(1)
    guessed = schedule(graph, "gpg-scored", latency, priced=0)
    assert guessed.stats["stages_priced"] == 0
    assert schedule(graph, "gpg-scored", latency).stats["stages_priced"] > 0


class Refusing(LatencyTable):
    """A latency model that has no latencies for stages of more than one operator."""

    may_refuse = True

    def stages(self, stages):
        prices = super().stages(stages)
        few = np.array([sum(map(len, groups)) == 1 for groups in stages])
        return np.where(few, prices, np.inf)


def test_a_stage_that_is_refused_a_price_is_not_taken():
    for seed in range(6):
        graph = layered(10, seed)
        made = schedule(graph, "gpg-scored", Refusing(latencies(10, seed)))
        assert {sum(map(len, stage.groups)) for stage in made.stages} == {1}


def test_bad_weights_and_options_are_refused(tmp_path):
    graph, latency = fork(0)
    (tmp_path / "text.npz").write_text("no weights")
    with pytest.raises(InputError, match=r"text\.npz` cannot be read"):
        schedule(graph, "gpg", latency, weights=tmp_path / "text.npz")
    save_weights(tmp_path / "other.npz", load_weights("gpg-scored"))
    with pytest.raises(InputError, match="are not those of `gpg`: `mu"):
        schedule(graph, "gpg", latency, weights=tmp_path / "other.npz")
    with pytest.raises(ScheduleError, match="needs a latency model"):
        schedule(graph, "gpg")
    with pytest.raises(ScheduleError, match="`priced` is -1"):
        schedule(graph, "gpg-scored", latency, priced=-1)
    with pytest.raises(ScheduleError, match="`width` is 0"):
        schedule(graph, "gpg-scored", latency, width=0)
    with pytest.raises(InputError, match="there is no variant"):
        GpgConfig(variant="gpg2")
    with pytest.raises(InputError, match="no blocks to learn from"):
        GpgTraining([], SMALL)
