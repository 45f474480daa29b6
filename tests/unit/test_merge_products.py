"""Tests merged matrix products, such as queries, keys and values: they give the same results, or a
reason why they cannot be merged."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.nets import Net
from tests.networks import SMALL
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed
from tvm_interop import GraphModule, Schedule, ScheduleError, Stage, models
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.frontend import load_model
from tvm_interop.lowering.merge_convs import MergeConvs, fold_for_merging
from tvm_interop.lowering.mergeable import find_chains, mergeable_sets

SHAPE = (2, 5, 8)
FEEDS = {"x": np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)}
QKV = ("query/MatMul", "key/MatMul", "value/MatMul")


def product(net: Net, x: str, out: str, sizes: tuple[int, int], bias: bool = True) -> str:
    """A product by a constant weight, and a bias."""
    made = net.op("MatMul", [x, net.weight(*sizes)], out)
    return net.op("Add", [made, net.weight(sizes[1])], f"{out}_sum") if bias else made


def attention(columns: Sequence[int] = (6, 6, 4), relu: bool = False) -> onnx.ModelProto:
    """Queries, keys and values of one tensor, and the attention that they make."""
    net = Net()
    x = net.input("x", SHAPE)
    made = [
        product(net, x, name, (8, number))
        for name, number in zip(("query", "key", "value"), columns, strict=True)
    ]
    if relu:
        made = [net.op("Relu", [each], f"{each}_relu") for each in made]
    turned = net.op("Transpose", [made[1]], "turned", perm=[0, 2, 1])
    scores = net.op("Softmax", [net.op("MatMul", [made[0], turned], "scores")], "shares", axis=-1)
    return net.model(net.op("MatMul", [scores, made[2]], "out"))


def folded(model: onnx.ModelProto) -> Any:
    return fold_for_merging()(load_model(model))


def assert_close(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
    for ours, theirs in zip(got, want, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def names_after_merging(
    model: onnx.ModelProto, groups: Sequence[Sequence[str]], feeds: dict[str, np.ndarray]
) -> tuple[str, ...]:
    module = MergeConvs(groups)(folded(model))
    assert_close(computed(module, feeds), list(run_onnxruntime(model, feeds).values()))
    options = CompileOptions(latency_db=":memory:", providers=("tvm",))
    return Compilation(module, options).graph.names


@pytest.mark.parametrize("relu", [False, True])
def test_queries_keys_and_values_become_one_product(relu: bool) -> None:
    model = attention(relu=relu)
    assert mergeable_sets(find_chains(folded(model)["main"])) == [QKV]
    names = names_after_merging(model, [QKV], FEEDS)
    assert "+".join(sorted(QKV)) in names
    assert not set(QKV) & set(names)


def test_gates_of_a_concat_are_read_whole() -> None:
    """Two gates of a single row, one of them without a bias."""
    net = Net()
    x = net.input("x", (1, 8))
    gates = [product(net, x, "a", (8, 3)), product(net, x, "b", (8, 5), bias=False)]
    model = net.model(net.op("Concat", gates[::-1], "gates", axis=-1))
    feeds = {"x": FEEDS["x"][0, :1]}
    assert names_after_merging(model, [("a/MatMul", "b/MatMul")], feeds) == ("a/MatMul+b/MatMul",)


def test_random_products_merge_to_the_same_numbers() -> None:
    for seed in range(12):
        rng = random.Random(seed)
        net = Net()
        shape = [rng.randint(1, 4) for _ in range(rng.randint(0, 2))] + [rng.randint(1, 9)]
        x = net.input("x", shape)
        outs = [
            product(net, x, f"p{i}", (shape[-1], rng.randint(1, 6)), rng.random() < 0.6)
            for i in range(rng.randint(2, 4))
        ]
        model = net.model(*outs)
        (names,) = mergeable_sets(find_chains(folded(model)["main"]))
        assert len(names) == len(outs)
        feeds = {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}
        merged = computed(MergeConvs([names])(folded(model)), feeds)
        assert_close(merged, list(run_onnxruntime(model, feeds).values()))


def test_why_not() -> None:
    net = Net()
    x = net.input("x", SHAPE)
    y = net.op("Tanh", [x], "y")
    outs = [
        product(net, x, "a", (8, 4)),
        net.op("Relu", [product(net, x, "b", (8, 4))], "b_relu"),
        product(net, y, "c", (8, 4)),
        # The second factor has a matrix for each index of the batch.
        net.op("MatMul", [x, net.weight(2, 8, 4)], "d"),
    ]
    module = folded(net.model(*outs))
    for other, says in (
        ("b", "`b/MatMul` has another activation than `a/MatMul`"),
        ("c", "`c/MatMul` reads another tensor than `a/MatMul`"),
        ("d", "`d/MatMul` cannot be merged: it is neither .* nor a product by a constant matrix"),
    ):
        with pytest.raises(ScheduleError, match=says):
            MergeConvs([("a/MatMul", f"{other}/MatMul")])(module)


def test_a_schedule_with_merged_products_runs() -> None:
    model = attention()
    options = CompileOptions(streams=1, parts=1, latency_db=":memory:", providers=("tvm",))
    compilation = Compilation(model, options)
    names = compilation.graph.names
    merged = [names.index(name) for name in QKV]
    assert [set(ops) for ops in compilation.merges.sets] == [set(merged)]
    rest = [op for op in range(len(names)) if op not in merged]
    stages = (
        Stage(tuple((op,) for op in merged), (0,) * 3, kind="merge"),
        Stage((tuple(rest),), (0,)),
    )
    made = Schedule("by hand", names, stages=stages)
    home, realized = compilation.realized(made)
    assert len(home.graph.names) < len(names) + 1
    artifact = home.artifact(realized)
    module = GraphModule(artifact)
    module.run(**FEEDS)
    want = list(run_onnxruntime(model, FEEDS).values())
    assert_close([module.get_output(0).numpy()], want)


def test_ios_merges_them_if_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    options = CompileOptions(streams=1, parts=1, latency_db=":memory:", providers=("tvm",))
    compilation = Compilation(attention(), options)
    names = compilation.graph.names

    class Priced(tvm_interop.LatencyTable):
        def mergeable(self) -> Sequence[Sequence[int]]:
            return compilation.merges.sets

        def merges(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
            return np.array([0.5 * sum(map(self.op, ops)) for ops in sets])

    made = compilation.schedule("ios-merge", Priced([10.0] * len(names)))
    merged = [stage for stage in made.stages if stage.kind == "merge"]
    assert [{names[op] for op in stage.ops} for stage in merged] == [set(QKV)]


@pytest.mark.slow
def test_each_layer_of_bert_has_a_set() -> None:
    model = models.build("bert_base", image_size=SMALL["bert_base"])
    sets = mergeable_sets(find_chains(folded(model)["main"]))
    assert [len(names) for names in sets] == [3] * 12
    assert all(
        [name.split("/")[2] for name in names] == ["query", "key", "value"] for names in sets
    )
