"""Tests that TVM's simplifier does not treat floating-point numbers as exact."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import te

from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed
from tvm_interop.errors import DeviceError
from tvm_interop.kernels.build_cuda import build_cuda_kernels

NAN, INF = np.nan, np.inf
X = np.array([NAN, -INF, INF, -2, -0.0, 0, 1, 3, 1e-40, 1e10, NAN, 5], "float32")
Y = np.array([1, NAN, -1, NAN, 2, 0, 1e10, -INF, INF, 1, NAN, 5], "float32")

CHAINS = {
    "(x + y) - y": ["Add x y t", "Sub t y o"],
    "(x + y) - x": ["Add x y t", "Sub t x o"],
    "x - (x + y)": ["Add x y t", "Sub x t o"],
    "x - (y + x)": ["Add y x t", "Sub x t o"],
    "(x + c) - c": ["Add x c t", "Sub t c o"],
    "t - t": ["Mul x y t", "Sub t t o"],
    "t / t": ["Mul x y t", "Div t t o"],
    "1 / (z - x)": ["Sub z x t", "Reciprocal t o"],
    "1 / (x - z)": ["Sub x z t", "Reciprocal t o"],
    "exp(x) * z + y": ["Exp x t", "Mul t z u", "Add u y o"],
    "exp(-x) + m": ["Neg x t", "Exp t u", "Add u m o"],
    "z / exp(x)": ["Exp x t", "Div z t o"],
    "x * zeros": ["ConstantOfShape n e", "Mul x e o"],
    "t == t": ["Mul x y t", "Equal t t o"],
    "not x == x": ["Equal x x t", "Not t o"],
    "not x == y": ["Equal x y t", "Not t o"],
    "not x < y": ["Less x y t", "Not t o"],
    "not x <= y": ["LessOrEqual x y t", "Not t o"],
    "not x > y": ["Greater x y t", "Not t o"],
    "not x >= y": ["GreaterOrEqual x y t", "Not t o"],
    "x < y or x >= y": ["Less x y a", "GreaterOrEqual x y b", "Or a b o"],
    "x < y or x > y": ["Less x y a", "Greater x y b", "Or a b o"],
    "x == y or not x == y": ["Equal x y a", "Not a b", "Or a b o"],
    "x <= y and x >= y": ["LessOrEqual x y a", "GreaterOrEqual x y b", "And a b o"],
    "y if not x < y else x": ["Less x y a", "Not a b", "Where b y x o"],
    "x if x < y else y if x >= y else c": [
        "Less x y a",
        "GreaterOrEqual x y b",
        "Where b y c t",
        "Where a x t o",
    ],
}
CONSTANTS = {
    "c": np.float32(1e8),
    "m": np.float32(-INF),
    "z": np.float32(0),
    "n": np.array([len(X)]),
}


def chain(nodes: list[str], dtype: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of element-wise operators. Each is given by its type, its inputs and its output."""
    words = [node.split() for node in nodes]
    used = {name for _, *inputs, _ in words for name in inputs}
    feeds = {name: a.astype(dtype) for name, a in {"x": X, "y": Y}.items() if name in used}
    number = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    filled = onnx.helper.make_tensor("zero", number, [1], [0.0])

    def attributes(op: str) -> dict[str, Any]:
        return {"value": filled} if op == "ConstantOfShape" else {}

    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, i, [o], **attributes(op)) for op, *i, o in words],
        "g",
        [onnx.helper.make_tensor_value_info(name, number, a.shape) for name, a in feeds.items()],
        [onnx.ValueInfoProto(name="o")],
        [
            onnx.numpy_helper.from_array(a if name == "n" else a.astype(dtype), name)
            for name, a in CONSTANTS.items()
            if name in used
        ],
    )
    opsets = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CHAINS)
def test_operators_that_become_one_kernel(name: str, dtype: str) -> None:
    model, feeds = chain(CHAINS[name], dtype)
    (got,) = computed(model, feeds)
    (wanted,) = run_onnxruntime(model, feeds, rewrites=False).values()
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_difference_that_was_rounded() -> None:
    """In float32, 1 + 1e8 is rounded to 1e8. So (1 + 1e8) - 1e8 must give 0, not 1."""
    model, feeds = chain(CHAINS["(x + c) - c"], "float32")
    feeds["x"] = np.linspace(-3, 3, len(X), dtype="float32")
    np.testing.assert_array_equal(computed(model, feeds)[0], np.zeros(len(X)))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_kernels_for_gpus_are_given_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def compile_nothing(kernels: tvm.IRModule, **options: Any) -> Any:
        given.append(str(kernels))
        raise RuntimeError("enough")

    x = te.placeholder((128,), "float32", name="x")
    y = te.compute((128,), lambda i: (x[i] + 1.0) - x[i], name="y")
    kernels = tvm.IRModule({"rounded": te.create_prim_func([x, y])})
    monkeypatch.setattr(tvm, "compile", compile_nothing)
    with pytest.raises(DeviceError, match="enough"):
        build_cuda_kernels(kernels, tmp_path / "kernels.so", ("sm_90",))
    assert " - " not in given[0].partition("T.reads")[2]
