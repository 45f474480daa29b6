"""Tests ranges of models in which each input has its own name for the same dimension."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tvm_interop
from tests.masked_nets import WIDTH, encoder, feed_of_encoder, theirs
from tests.nets import Net
from tvm_interop.compiler.row_ranges import row_range
from tvm_interop.errors import InputError, TVMInteropError
from tvm_interop.execution.graph_module import GraphModule

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def renamed(batch: int | str = 1) -> onnx.ModelProto:
    """An encoder in which each input has its own names for the batch and the length."""
    made = encoder(batch)
    for value in made.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = f"{value.name}_{dim.dim_param}"
    return made


def two_towers() -> onnx.ModelProto:
    """Two sequences, each of its own length, whose features are multiplied."""
    net = Net()
    for name in ("user", "item"):
        net.input(name, [1, f"{name}_len", WIDTH])
        net.op("ReduceSum", [name, net.constant(np.array([1]))], f"{name}_sum")
    return net.model(net.op("Mul", ["user_sum", "item_sum"], "score"), check=False)


def test_a_range_for_one_name_is_enough() -> None:
    made = renamed()
    artifact = tvm_interop.compile(made, shapes={"input_ids_seq": (1, 20)}, most_sizes=3, **QUICK)
    module = GraphModule(artifact)
    for length in (1, 2, 7, 13, 20):
        feed = feed_of_encoder(length, length)
        for got, wanted in zip(module(feed), theirs(made, feed), strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-5)
    feed["attention_mask"] = feed["attention_mask"][:, :-1]
    with pytest.raises(TVMInteropError, match="attention_mask"):
        module(feed)


@pytest.mark.parametrize("names", [INPUTS, INPUTS[:2], INPUTS[2:]])
def test_the_same_range_for_several_names_is_one_range(names: tuple[str, ...]) -> None:
    given = row_range(renamed(), {f"{name}_seq": (1, 20) for name in names})
    assert given.dimensions == (f"{names[0]}_seq",)
    assert given.axes == (dict.fromkeys(INPUTS, 1),)


@pytest.mark.parametrize("batch", [1, 2, (1, 4)])
def test_names_of_the_batch_are_joined_too(batch: int | tuple[int, int]) -> None:
    ranges = {"attention_mask_batch": batch, "token_type_ids_seq": (1, 20)}
    found = row_range(renamed("batch"), ranges)
    assert found.axes[-1] == dict.fromkeys(INPUTS, 1)
    least = batch if isinstance(batch, int) else 1
    assert found.least_shapes == dict.fromkeys(INPUTS, (least, 1))


def test_dimensions_without_names_are_joined_too() -> None:
    """scikit-learn's exporter writes models of several columns without names of dimensions."""
    made = renamed("batch")
    for value in made.graph.input:
        value.type.tensor_type.shape.dim[0].ClearField("dim_param")
    shapes = {"attention_mask[0]": (1, 4), "input_ids_seq": 5}
    artifact = tvm_interop.compile(made, shapes=shapes, most_sizes=2, **QUICK)
    assert artifact.ranges is not None
    assert artifact.ranges.dimensions[0].name == "attention_mask[0]"
    module = GraphModule(artifact)
    for batch in (1, 2, 3, 4):
        feed = feed_of_encoder(5, batch, batch)
        for got, wanted in zip(module(feed), theirs(made, feed), strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_different_ranges_for_one_dimension_are_refused() -> None:
    with pytest.raises(InputError, match="`attention_mask_seq` and `input_ids_seq` must have the"):
        row_range(renamed(), {"input_ids_seq": (1, 20), "attention_mask_seq": (1, 30)})


def test_dimensions_that_may_differ_are_not_joined() -> None:
    found = row_range(two_towers(), {"user_len": (1, 9), "item_len": (1, 9)})
    assert found.dimensions == ("user_len", "item_len")
    assert found.axes == ({"user": 1}, {"item": 1})
    with pytest.raises(TVMInteropError, match="item"):
        tvm_interop.compile(two_towers(), shapes={"user_len": (1, 9)}, **QUICK)


def _with_mask_of(sequence: str) -> onnx.ModelProto:
    """Two sequences, and a mask of one of them whose dimension has a name of its own."""
    net = Net()
    net.input("enc", ["rows", "enc_len", WIDTH])
    net.input("dec", ["rows", "dec_len", WIDTH])
    net.input("mask", ["mask_rows", "mask_len"])
    wide = net.op("Unsqueeze", ["mask", net.constant(np.array([2]))], "wide")
    net.op("Mul", [sequence, wide], "y")
    net.op("Relu", ["dec" if sequence == "enc" else "enc"], "z")
    return net.model("y", "z", check=False)


@pytest.mark.parametrize("dec", [16, 9, (1, 16), (1, 9)])
@pytest.mark.parametrize("sequence", ["enc", "dec"])
def test_a_name_is_joined_to_the_dimension_that_it_means(sequence: str, dec: Any) -> None:
    ranges = {"rows": 1, "enc_len": (1, 9), "dec_len": dec}
    found = row_range(_with_mask_of(sequence), ranges)
    wanted = {"enc_len": {"enc": 1}, "dec_len": {"dec": 1}}
    wanted[f"{sequence}_len"]["mask"] = 1
    assert found.axes == tuple(wanted[name] for name in found.dimensions)
    least = {"enc": 1, "dec": dec if isinstance(dec, int) else 1}
    assert found.least_shapes["mask"] == (1, least[sequence])


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="no open dimension `length`"):
        row_range(renamed(), {"length": (1, 9)})


def test_a_dimension_that_an_input_has_twice_is_refused() -> None:
    net = Net()
    net.input("x", ["a", "b"])
    net.input("y", ["b", "a"], TensorProto.FLOAT)
    made = net.model(net.op("Add", ["x", "y"], "sum"), check=False)
    with pytest.raises(InputError, match="`x` has the dimension `a` twice"):
        row_range(made, {"a": (2, 9), "b": (2, 9)})
