"""Tests that equal operators are computed once, and that different operators stay separate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed
from tvm_interop.frontend import load_model
from tvm_interop.lowering.common_subexpressions import CommonSubexpressions
from tvm_interop.lowering.lower import LowerToUnits
from tvm_interop.lowering.names import bindings_of

Node = tuple[str, str, str, dict[str, Any]]
"""A node: its kind, its inputs and outputs (names with spaces between), and its attributes."""

WEIGHTS = np.random.default_rng(5).standard_normal((8, 8)).astype(np.float32)
OTHER = WEIGHTS.copy()
OTHER[7, 7] = np.nextafter(OTHER[7, 7], np.float32(9))
CONSTANTS = {
    "w": WEIGHTS, "same": WEIGHTS.copy(), "other": OTHER,
    "zero": np.zeros((1, 8), np.float32), "minus_zero": np.full((1, 8), -0.0, np.float32),
}  # fmt: skip


def model_of(nodes: Sequence[Node], outputs: str) -> onnx.ModelProto:
    """A model with the inputs `x` and `z` of shape (4, 8), and the constants `CONSTANTS`."""
    made = [
        helper.make_node(kind, read.split(), written.split(), name=f"{kind}_{i}", **attributes)
        for i, (kind, read, written, attributes) in enumerate(nodes)
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in ("x", "z")]
    results = [onnx.ValueInfoProto(name=name) for name in outputs.split()]
    constants = [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items()]
    graph = helper.make_graph(made, "g", inputs, results, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 9
    return model


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal((4, 8)).astype(np.float32) for name in ("x", "z")}


def count(model: onnx.ModelProto, *passes: Any) -> int:
    mod = load_model(model)
    for each in passes:
        mod = each(mod)
    return len(list(bindings_of(mod["main"])))


MERGED: dict[str, tuple[list[Node], str, int]] = {
    "the same weights": (
        [("MatMul", "x w", "a", {}), ("MatMul", "x w", "b", {}), ("Sub", "a b", "y", {})],
        "y",
        1,
    ),
    "weights with equal numbers": (
        [("MatMul", "x w", "a", {}), ("MatMul", "x same", "b", {}), ("Sub", "a b", "y", {})],
        "y",
        1,
    ),
    "a chain of equal operators": (
        [
            ("MatMul", "x w", "a", {}), ("Tanh", "a", "c", {}), ("Softmax", "c", "e", {"axis": 1}),
            ("MatMul", "x same", "b", {}), ("Tanh", "b", "d", {}),
            ("Softmax", "d", "f", {"axis": 1}), ("Add", "e f", "y", {}),
        ],
        "y",
        3,
    ),
    "concatenations": (
        [
            ("Concat", "x z", "a", {"axis": 1}), ("Concat", "x z", "b", {"axis": 1}),
            ("Mul", "a b", "y", {}),
        ],
        "y",
        1,
    ),
    "two outputs of the model": (
        [("Tanh", "x", "y", {}), ("Tanh", "x", "v", {}), ("Tanh", "z", "u", {})],
        "y v u",
        1,
    ),
    "an output that another operator reads": (
        [("Tanh", "x", "a", {}), ("Exp", "a", "v", {}), ("Tanh", "x", "y", {})],
        "y v",
        1,
    ),
}  # fmt: skip

DIFFERENT: dict[str, tuple[list[Node], str]] = {
    "weights that differ in one bit": (
        [("MatMul", "x w", "a", {}), ("MatMul", "x other", "b", {}), ("Sub", "a b", "y", {})],
        "y",
    ),
    "zeros of different signs": (
        [("Mul", "x zero", "a", {}), ("Mul", "x minus_zero", "b", {}), ("Sub", "a b", "y", {})],
        "y",
    ),
    "attributes": (
        [
            ("Softmax", "x", "a", {"axis": 0}), ("Softmax", "x", "b", {"axis": 1}),
            ("Sub", "a b", "y", {}),
        ],
        "y",
    ),
    "inputs": ([("Tanh", "x", "a", {}), ("Tanh", "z", "b", {}), ("Sub", "a b", "y", {})], "y"),
    "order of inputs": (
        [("Sub", "x z", "a", {}), ("Sub", "z x", "b", {}), ("Mul", "a b", "y", {})],
        "y",
    ),
    "types": (
        [
            ("Cast", "x", "a", {"to": TensorProto.INT32}),
            ("Cast", "x", "b", {"to": TensorProto.FLOAT16}),
            ("Cast", "a", "c", {"to": TensorProto.FLOAT}),
            ("Cast", "b", "d", {"to": TensorProto.FLOAT}), ("Sub", "c d", "y", {}),
        ],
        "y",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MERGED)
def test_equal_operators_are_computed_once(case: str) -> None:
    nodes, outputs, gone = MERGED[case]
    model = model_of(nodes, outputs)
    assert count(model, CommonSubexpressions()) <= count(model) - gone


@pytest.mark.parametrize("case", DIFFERENT)
def test_different_operators_stay(case: str) -> None:
    model = model_of(*DIFFERENT[case])
    assert count(model, CommonSubexpressions()) == count(model)


@pytest.mark.parametrize("case", [*MERGED, *DIFFERENT])
def test_numbers(case: str) -> None:
    nodes, outputs, *_ = {**MERGED, **DIFFERENT}[case]
    model = model_of(nodes, outputs)
    expected = run_onnxruntime(model, feeds(), rewrites=False)
    for name, array in zip(outputs.split(), computed(model, feeds()), strict=True):
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_an_equal_pair_is_one_unit() -> None:
    nodes, outputs, _ = MERGED["weights with equal numbers"]
    units = list(bindings_of(LowerToUnits("llvm")(load_model(model_of(nodes, outputs)))["main"]))
    products = [unit for unit in units if "MatMul" in unit.var.name]
    assert len(products) == 1
