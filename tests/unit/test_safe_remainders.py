"""Tests indices that wrap around. LLVM's loop vectoriser wrongly assumes that they keep growing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import te

from tests.one_node import computed
from tvm_interop.kernels.pipeline import PIPELINE

pytestmark = pytest.mark.compiles_anew

CASES = 48


def tiles(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[np.ndarray]]:
    """A model that repeats tensors of random shapes, its inputs, and its expected outputs."""
    rng = np.random.default_rng(seed)
    nodes, inputs, constants, feeds, wanted = [], [], [], {}, []
    for i in range(CASES):
        rank = int(rng.integers(1, 4))
        shape = rng.choice([1, 2, 3, 4, 5, 8, 16], rank)
        repeats = rng.choice([1, 2, 3, 4, 8], rank)
        x = rng.standard_normal(shape).astype("float32")
        feeds[f"x{i}"] = x
        wanted.append(np.tile(x, repeats))
        nodes.append(onnx.helper.make_node("Tile", [f"x{i}", f"r{i}"], [f"y{i}"]))
        inputs.append(onnx.helper.make_tensor_value_info(f"x{i}", 1, x.shape))
        constants.append(onnx.numpy_helper.from_array(repeats.astype("int64"), f"r{i}"))
    outputs = [
        onnx.helper.make_tensor_value_info(f"y{i}", 1, y.shape) for i, y in enumerate(wanted)
    ]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds, wanted


@pytest.mark.parametrize("seed", [1, 2])
def test_repeated_tensors(seed: int) -> None:
    model, feeds, wanted = tiles(seed)
    for i, (got, want) in enumerate(zip(computed(model, feeds), wanted, strict=True)):
        np.testing.assert_array_equal(got, want, err_msg=f"Tile {i} of {feeds[f'x{i}'].shape}")


@pytest.mark.parametrize(
    ("divisor", "place", "is_hidden"),
    [(8, lambda i: i % 8, True), (8, lambda i: i & 7, True), (6, lambda i: i % 6, False)],
    ids=["i % 8", "i & 7", "i % 6"],
)
def test_what_llvm_is_given(divisor: int, place: Any, is_hidden: bool) -> None:
    """Remainders by a power of two are hidden from LLVM. Other remainders cause no fault and
    stay."""
    x = te.placeholder((divisor, 4), name="x")
    y = te.compute((64, 4), lambda i, j: x[place(i), j], name="y")
    kernel = te.create_prim_func([x, y]).with_attr("global_symbol", "tile")
    built = tvm.compile(kernel, target="llvm", tir_pipeline=PIPELINE)
    assert ("llvm.umul.fix" in built.mod.inspect_source("ll")) == is_hidden
