"""Ranges of lengths for models whose inputs have the sequence as their first dimension. In other
models, the first dimension is the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_interop
from tests.masked_nets import LOWEST, WIDTH, Masked, model, proof, theirs
from tests.native_runtime import NativeModel, RuntimeLibraryError
from tests.nets import Net
from tests.pair_nets import proven
from tests.unit.test_masked_attacks import REFUSED as ATTACKS
from tests.unit.test_masked_positions import PROVEN, REFUSED
from tests.unit.test_masked_steps import layer
from tvm_interop.artifact.manifest import RowMask
from tvm_interop.errors import InputError
from tvm_interop.execution.graph_module import GraphModule
from tvm_interop.lowering.independent_rows import RowsDependError
from tvm_interop.lowering.masked_positions import Masks

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}


def turned(made: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the first two dimensions exchanged, in its inputs and in its large outputs."""
    first = []
    for value in made.graph.input:
        dims = value.type.tensor_type.shape.dim
        perm = [1, 0, *range(2, len(dims))]
        first.append(helper.make_node("Transpose", [f"{value.name}_"], [value.name], perm=perm))
        shape = [dims[a].dim_param or dims[a].dim_value for a in perm]
        value.CopyFrom(
            helper.make_tensor_value_info(f"{value.name}_", value.type.tensor_type.elem_type, shape)
        )
    nodes = [*first, *made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _named(masks: Masks) -> Masks:
    return Masks(tuple(f"{name}_" for name in masks.names), masks.anchor)


@pytest.mark.parametrize("name", PROVEN)
def test_what_is_proven_of_other_sequences_is_proven(name: str) -> None:
    build, masks = PROVEN[name]
    assert proof(turned(model(build))) == _named(masks)


@pytest.mark.parametrize("name", [*REFUSED, *ATTACKS])
def test_what_is_refused_of_other_sequences_is_refused(name: str) -> None:
    build = REFUSED[name][0] if name in REFUSED else ATTACKS[name]
    with pytest.raises(RowsDependError):
        proof(turned(model(build, batch=2)))


@pytest.fixture(scope="module")
def attention() -> onnx.ModelProto:
    return turned(model(Masked.attention, batch=2))


def _feed(length: int, seed: int, batch: int = 2) -> dict[str, np.ndarray]:
    """Random inputs of the given length. The mask is random, but 1 at the first position of each
    row."""
    rng = np.random.default_rng([seed, length])
    mask = rng.integers(0, 2, (length, batch))
    mask[0] = 1
    x = rng.standard_normal((length, batch, WIDTH)).astype(np.float32)
    return {"x_": x, "mask_": mask}


def test_any_length_of_attention_is_right(attention: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "first.tar"
    made = tvm_interop.compile(attention, shapes={"seq": (1, 12)}, most_sizes=3, out=path, **QUICK)
    rows = made.manifest.row_sizes
    assert rows is not None
    assert rows.masks == (RowMask("mask_", "first"),)
    assert not made.manifest.batch_sizes, "a server must not join requests along the sequence"
    module, whole = GraphModule(made), NativeModel(path)
    for length in range(1, 13):
        feed = _feed(length, 3)
        (expected,) = theirs(attention, feed)
        np.testing.assert_allclose(module(feed)[0], expected, atol=1e-5)
        output = np.zeros(expected.shape, np.float32)
        native = NativeModel(path, shape=whole.find_rows(length))
        native.run_rows(length, *feed.values(), outputs=[output])
        np.testing.assert_allclose(output, expected, atol=1e-5)


def test_a_mask_that_begins_with_0_in_one_row_is_refused(
    attention: onnx.ModelProto, tmp_path: Path
) -> None:
    path, feed = tmp_path / "first.tar", _feed(7, 1)
    made = tvm_interop.compile(attention, shapes={"seq": (1, 12)}, most_sizes=2, out=path, **QUICK)
    feed["mask_"][0, 1] = 0
    with pytest.raises(InputError, match=r"`mask_` is a mask.*1 at the first seq"):
        GraphModule(made)(feed)
    native = NativeModel(path, shape=NativeModel(path).find_rows(7))
    with pytest.raises(RuntimeLibraryError, match="mask `mask_` does not allow"):
        native.run_rows(7, *feed.values(), outputs=[np.zeros((2, 7, WIDTH), np.float32)])


def test_each_row_of_a_batch_may_have_its_1_anywhere() -> None:
    made = turned(model(Masked.attention, batch="batch"))
    shapes = {"batch": (1, 3), "seq": (1, 9)}
    artifact = tvm_interop.compile(made, shapes=shapes, most_sizes=4, **QUICK)
    rows = artifact.manifest.row_sizes
    assert rows is not None
    assert (rows.dimension, rows.masks) == ("batch", (RowMask("mask_", "any"),))
    module = GraphModule(artifact)
    for batch, length in ((2, 5), (3, 8), (1, 4), (2, 9)):
        feed = _feed(length, 4, batch)
        feed["mask_"] = feed["mask_"][::-1].copy()
        np.testing.assert_allclose(module(feed)[0], theirs(made, feed)[0], atol=1e-5)
    feed["mask_"][:, 1] = 0
    feed = {name: array[:8] for name, array in feed.items()}
    with pytest.raises(InputError, match="1 somewhere for each batch"):
        module(feed)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_any_length_of_a_tagger_is_right(kind: str) -> None:
    made = turned(layer(kind))
    artifact = tvm_interop.compile(made, shapes={"seq": (1, 9)}, most_sizes=3, **QUICK)
    assert not artifact.manifest.batch_sizes
    module, rng = GraphModule(artifact), np.random.default_rng(5)
    for length in range(1, 10):
        feed = {"x_": rng.standard_normal((length, 1, WIDTH), np.float32)}
        np.testing.assert_allclose(module(feed)[0], theirs(made, feed)[0], atol=1e-5)


def test_features_are_no_mask() -> None:
    """A mask with three dimensions. The last dimension is features."""

    def build(net: Masked) -> str:
        gate = net.do("ReduceMean", "x", axes=[2], keepdims=0)
        left_out = net.do("Mul", net.do("Sub", net.number(1), gate), net.number(LOWEST))
        wide = net.do("Unsqueeze", left_out, net.ints(1))
        return net.mixed(net.do("Add", net.scores(), wide))

    with pytest.raises(RowsDependError, match="takes the maximum over positions"):
        proof(turned(model(build)))


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.INT64])
def test_floats_in_columns_may_be_features(dtype: int) -> None:
    made = turned(model(Masked.attention, batch=2, mask_type=dtype))
    if dtype == TensorProto.INT64:
        assert proof(made) == Masks(("mask_",), "first")
        return
    with pytest.raises(RowsDependError, match="takes the maximum over positions"):
        proof(made)
    rows = turned(model(Masked.attention, batch="batch", mask_type=dtype))
    shapes = {"batch": (1, 2), "seq": (1, 5)}
    assert proven(rows, shapes).masks == (RowMask("mask_", "any"),)


def test_the_sizes_that_an_error_proposes_are_in_order() -> None:
    net = Net()
    net.op("Softmax", [net.input("x", ["n", 4])], "y", axis=0)
    with pytest.raises(InputError, match=r'such as shapes=\{"n": \{9, 40\}\} \(.*"n=9,40"\)'):
        tvm_interop.compile(net.model("y"), shapes={"n": (9, 40)}, **QUICK)


def test_both_reasons_are_given() -> None:
    net = Net()
    scores = net.op("Softmax", [net.input("x", ["n", 4])], "scores", axis=0)
    net.op("Relu", [scores], "y")
    with pytest.raises(
        InputError,
        match=r"for a batch of `n`.*`scores/Softmax`.*rows; and for a sequence of `n`, operator "
        r"`scores/Softmax` takes the maximum over positions.*a mask must add",
    ):
        tvm_interop.compile(net.model("y"), shapes={"n": (1, 4)}, **QUICK)


def test_items_that_a_mask_leaves_out_may_be_a_batch() -> None:
    """The model is a softmax over the items that the mask keeps.

    The rows depend on each other, but padding with items that the mask leaves out changes nothing.
    """
    net = Net()
    x, keep = net.input("x", ["items", 4]), net.input("keep", ["items", 1], TensorProto.BOOL)
    low = net.constant(np.array(-np.inf, np.float32))
    kept = net.op("Where", [keep, x, low], "kept")
    made = net.model(net.op("Softmax", [kept], "share", axis=0), check=False)
    artifact = tvm_interop.compile(made, shapes={"items": (1, 20)}, most_sizes=3, **QUICK)
    assert not artifact.manifest.batch_sizes
    module, rng = GraphModule(artifact), np.random.default_rng(0)
    for count in range(1, 21):
        keep_it = rng.random((count, 1)) < 0.7
        keep_it[rng.integers(count)] = True
        feed = {"x": rng.standard_normal((count, 4)).astype(np.float32), "keep": keep_it}
        np.testing.assert_allclose(module(feed)[0], theirs(made, feed)[0], atol=1e-6)
