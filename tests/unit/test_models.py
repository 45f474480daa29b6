"""Tests the benchmark networks: they are valid, and the same for the same seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import nets
from tests.networks import BATCH, SMALL, feeds
from tests.numerics.onnx_oracle import run_onnxruntime, runner
from tvm_interop import InputError, UnsupportedModelError, models, operator_graph
from tvm_interop.frontend import load_model
from tvm_interop.models.describe import count_flops, count_parameters, describe
from tvm_interop.models.source import read_onnx
from tvm_interop.models.t5 import buckets
from tvm_interop.models.units import schedule_units


def shapes_of(values: list[onnx.ValueInfoProto]) -> dict[str, list[int]]:
    return {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


def weights_of(model: onnx.ModelProto) -> dict[str, bytes]:
    return {t.name: t.raw_data for t in model.graph.initializer}


def test_list() -> None:
    assert models.list() == [
        "inception_v3", "randwire", "nasnet_a", "squeezenet", "resnet50", "googlenet",
        "bert_base", "t5_encoder", "wide_deep", "dlrm", "task_heads", "mixture_of_experts",
    ]  # fmt: skip


def test_inputs_and_outputs() -> None:
    sizes = {"inception_v3": 299, "nasnet_a": 331}
    for name in models.list()[:6]:
        graph = models.skeleton(name).graph
        size = sizes.get(name, 224)
        assert shapes_of(graph.input) == {"image": [1, 3, size, size]}
        assert shapes_of(graph.output) == {"logits": [1, 1000]}
    bert = models.skeleton("bert_base", batch=2).graph
    assert shapes_of(bert.input) == {
        "input_ids": [2, 128],
        "attention_mask": [2, 128],
        "token_type_ids": [2, 128],
    }
    assert {v.type.tensor_type.elem_type for v in bert.input} == {onnx.TensorProto.INT64}
    assert shapes_of(bert.output) == {
        "last_hidden_state": [2, 128, 768],
        "pooler_output": [2, 768],
    }
    t5 = models.skeleton("t5_encoder", image_size=32).graph
    assert shapes_of(t5.input) == {"input_ids": [1, 32], "attention_mask": [1, 32]}
    assert shapes_of(t5.output) == {"last_hidden_state": [1, 32, 512]}
    for name in ("wide_deep", "dlrm"):
        graph = models.skeleton(name, batch=3).graph
        crossed = {"crossed": [3, 8]} if name == "wide_deep" else {}
        assert shapes_of(graph.input) == {"dense": [3, 13], "categories": [3, 26], **crossed}
        assert shapes_of(graph.output) == {"probability": [3, 1]}
    for name, tasks in (("task_heads", 16), ("mixture_of_experts", 4)):
        graph = models.skeleton(name, batch=3).graph
        assert shapes_of(graph.input) == {"features": [3, 512]}
        assert shapes_of(graph.output) == {"predictions": [3, tasks]}


@pytest.mark.parametrize("name", SMALL)
def test_valid_and_its_output_tells_inputs_apart(name: str) -> None:
    model = models.build(name, BATCH.get(name, 1), SMALL[name])
    onnx.checker.check_model(model, full_check=True)
    assert [o.version for o in model.opset_import] == [17]
    assert "BatchNormalization" not in {node.op_type for node in model.graph.node}
    run, feed = runner(model), feeds(model)
    first = run(feed)
    other = run(feeds(model, seed=2))
    for output, values in first.items():
        assert np.isfinite(values).all()
        assert 0.02 < values.std() < 50
        assert np.abs(values - other[output]).std() > 0.03 * values.std()
    assert ("attention_mask" in feed) == (name in ("bert_base", "t5_encoder"))
    if "attention_mask" in feed:
        padding_does_not_matter(run, feed)


def padding_does_not_matter(
    run: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]], feed: dict[str, np.ndarray]
) -> None:
    """Check that a change of the last token, which is padding, changes no other token's output."""
    changed = {**feed, "input_ids": feed["input_ids"].copy()}
    changed["input_ids"][:, -1] += 1
    before, after = (run(each)["last_hidden_state"] for each in (feed, changed))
    np.testing.assert_array_equal(before[:, :-1], after[:, :-1])
    assert not np.array_equal(before[:, -1], after[:, -1])


@pytest.mark.parametrize("name", ["squeezenet", "googlenet"])
def test_batch_is_as_one_by_one(name: str) -> None:
    model = models.build(name, batch=2, image_size=SMALL[name])
    one = models.build(name, image_size=SMALL[name])
    images = feeds(model)["image"]
    (both,) = run_onnxruntime(model, {"image": images}).values()
    (second,) = run_onnxruntime(one, {"image": images[1:]}).values()
    np.testing.assert_allclose(both[1:], second, rtol=0, atol=1e-4 * np.abs(second).max())


def test_parameters_of_recommenders_and_tasks() -> None:
    """The expected numbers of parameters are computed by hand from the widths of the layers."""

    def layers(*widths: int) -> int:
        return sum(a * b + b for a, b in itertools.pairwise(widths))

    counts = {name: describe(name).parameters for name in models.list()}
    deep = layers(13 + 26 * 32, 1024, 512, 256, 1)
    assert counts["wide_deep"] == deep + 26 * 1000 * 32 + 8 * 1000
    pairs = 27 * 26 // 2
    layers_of_dlrm = layers(13, 512, 256, 64) + layers(64 + pairs, 512, 256, 1)
    assert counts["dlrm"] == layers_of_dlrm + 26 * 1000 * 64
    assert counts["task_heads"] == layers(512, 512, 256) + 16 * layers(256, 128, 64, 1)
    experts, gates = 8 * layers(512, 256, 128), 4 * layers(512, 8)
    assert counts["mixture_of_experts"] == experts + gates + 4 * layers(128, 64, 1)


def test_seeds() -> None:
    def build(seed: int = 0, size: int = 64) -> onnx.ModelProto:
        return models.build("squeezenet", image_size=size, seed=seed)

    assert build().SerializeToString() == build().SerializeToString()
    one, other = weights_of(build()), weights_of(build(seed=1))
    assert all(one[name] != other[name] for name in one)
    assert weights_of(build(size=96)) == one


def test_structure_does_not_depend_on_the_size() -> None:
    for name, size in SMALL.items():
        full, small = models.skeleton(name), models.skeleton(name, image_size=size)
        assert [n.name for n in full.graph.node] == [n.name for n in small.graph.node]
        assert schedule_units(full) == schedule_units(small)


def test_names_are_readable_and_unique() -> None:
    for name in models.list():
        names = [node.name for node in models.skeleton(name).graph.node]
        assert len(set(names)) == len(names)
    inception = [node.name for node in models.skeleton("inception_v3").graph.node]
    assert "mixed_5b/branch3x3dbl_1/conv" in inception


# Published parameters in millions (weights and biases, with batch norms folded) and billions of
# multiply-adds. The numbers of NASNet-A are for cells that concatenate five tensors. With a sixth
# tensor, the cell's input, they are 88.9 and 23.8.
@pytest.mark.parametrize(
    ("name", "parameters", "multiply_adds"),
    [
        ("inception_v3", 23.8, 5.7),
        ("randwire", 61.5, 7.9),
        ("resnet50", 25.5, 3.86),
        ("googlenet", 7.0, 1.58),
        ("bert_base", 109.5, 11.2),
        ("t5_encoder", 35.3, 2.5),
        ("nasnet_a", 83.0, 22.3),
    ],
)
def test_as_large_as_published(name: str, parameters: float, multiply_adds: float) -> None:
    described = describe(name)
    assert described.parameters / 1e6 == pytest.approx(parameters, rel=0.02)
    assert described.gflops / 2 == pytest.approx(multiply_adds, rel=0.02)


def test_counting() -> None:
    net = nets.Net()
    x = net.input("x", [1, 4, 5, 5])
    net.conv(x, "c", (4, 6), 3)
    net.conv("c", "d", (6, 6), 3, group=6)
    net.op("GlobalAveragePool", ["d"], "gap")
    net.op("Flatten", ["gap"], "flat")
    net.op("Gemm", ["flat", net.weight(10, 6), net.weight(10)], "y", transB=1)
    model = net.model("y")
    assert count_parameters(model) == 4 * 6 * 9 + 6 + 6 * 9 + 6 + 60 + 10
    assert count_flops(model) == 2 * (25 * 6 * 4 * 9 + 25 * 6 * 9 + 60)


def test_wrong_requests() -> None:
    with pytest.raises(UnsupportedModelError, match=r"`resnet5`.*mean `resnet50`.*nasnet_a"):
        models.build("resnet5")
    with pytest.raises(UnsupportedModelError, match="there is no network `zzz`: there are"):
        models.build("zzz")
    with pytest.raises(InputError, match="`batch` must be at least 1, got 0"):
        models.build("squeezenet", batch=0)
    with pytest.raises(InputError, match=r"`bert_base`.* at most 512, got 513"):
        models.build("bert_base", image_size=513)
    with pytest.raises(InputError, match=r"`inception_v3`.* at least 75, got 74"):
        models.build("inception_v3", image_size=74)


@pytest.mark.parametrize("name", ["inception_v3", "nasnet_a", "squeezenet"])
def test_the_smallest_size_is_the_smallest(name: str) -> None:
    from tvm_interop.models.catalog import _NETWORKS
    from tvm_interop.models.onnx_net import OnnxNet

    network = _NETWORKS[name]
    models.skeleton(name, image_size=network.smallest)
    with pytest.raises(InputError, match=f"too small for `{name}`"):
        network.write(OnnxNet(name, None), 1, network.smallest - 1)


def test_buckets_of_distances() -> None:
    table = buckets(300)
    assert table[0, :10].tolist() == [0, *range(17, 24), 24, 24]
    assert table[:10, 0].tolist() == [*range(8), 8, 8]
    assert (table[0, 150], table[150, 0], table.max()) == (31, 15, 31)
    assert (np.diff(table[0]) >= 0)[1:].all()


def test_names_in_place_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_onnx("squeezenet").graph.name == "squeezenet"
    assert read_onnx("light:squeezenet").graph.input[0].name == "data_0"
    assert operator_graph("squeezenet").num_ops == 50
    onnx.save(nets.chain(3), tmp_path / "squeezenet")
    assert len(read_onnx("squeezenet").graph.node) == 3
    assert operator_graph("squeezenet").num_ops == 3
    assert len(load_model("squeezenet")["main"].params) == 1
    with pytest.raises(UnsupportedModelError, match=r"no file and no network `googlnet`.*did you"):
        load_model("googlnet")
    with pytest.raises(UnsupportedModelError, match=r"no light model `nothing`"):
        load_model("light:nothing")


def test_skeletons_hold_no_weights() -> None:
    assert models.skeleton("nasnet_a").ByteSize() < 1e6
