"""Compares operators on tensors without elements, and on slices of tensors, with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed, one_node
from tvm_interop import UnsupportedModelError

RNG = np.random.default_rng(0)
NONE_I64 = np.empty(0, "int64")


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def i64(*values: int) -> np.ndarray:
    return np.array(values, "int64")


X = f32(3, 4, 5)
Case = tuple[str, list[Any], tuple[int, ...], dict[str, Any]]
CASES: dict[str, Case] = {
    "of each": ("Relu", [f32(0, 3)], (), {}),
    "broadcast": ("Add", [f32(0, 3), f32(3)], (), {}),
    "joined with nothing": ("Concat", [f32(0, 3), f32(2, 3)], (), {"axis": 0}),
    "nothing in between": ("Concat", [f32(1, 3), f32(0, 3), f32(2, 3)], (), {"axis": 0}),
    "nothing at all": ("Concat", [f32(0, 3), f32(0, 3)], (), {"axis": 0}),
    "product over nothing": ("MatMul", [f32(2, 0), f32(0, 3)], (), {}),
    "product of no rows": ("MatMul", [f32(0, 2), f32(2, 3)], (), {}),
    "gemm over nothing": ("Gemm", [f32(2, 0), f32(0, 3), f32(3)], (), {}),
    "no index": ("Gather", [X, NONE_I64], (), {"axis": 1}),
    "no index, constant": ("Gather", [X, NONE_I64], (1,), {"axis": 1}),
    "no place": ("ScatterND", [X, np.empty((0, 1), "int64"), f32(0, 4, 5)], (), {}),
    "transposed": ("Transpose", [f32(0, 3)], (), {}),
    "reshaped": ("Reshape", [f32(0, 3), i64(3, 0)], (1,), {"allowzero": 1}),
    "repeated no time": ("Tile", [X, i64(0, 1, 1)], (1,), {}),
    "expanded to nothing": ("Expand", [f32(1, 4), i64(0, 4)], (1,), {}),
    "padded": ("Pad", [f32(0, 3), i64(1, 0, 2, 0)], (1,), {}),
    "cast": ("Cast", [f32(0, 3)], (), {"to": onnx.TensorProto.INT64}),
    "softmax": ("Softmax", [f32(3, 0)], (), {}),
    "its shape": ("Shape", [f32(0, 3)], (), {}),
    "no image": ("Conv", [f32(0, 3, 8, 8), f32(4, 3, 3, 3)], (1,), {}),
    "no image to pool": ("MaxPool", [f32(0, 3, 8, 8)], (), {"kernel_shape": [2, 2]}),
    "the best none": ("TopK", [X, i64(0)], (1,), {"outputs": 2}),
    "a range of none": ("Range", [np.int64(3), np.int64(3), np.int64(1)], (0, 1, 2), {}),
    "a scalar's shape": ("ConstantOfShape", [NONE_I64], (0,), {}),
    "a part of none": ("Split", [X, i64(0, 2, 2)], (1,), {"axis": 1, "outputs": 3}),
    "all in one part": ("Split", [X, i64(4, 0)], (1,), {"axis": 1, "outputs": 2}),
    "an old split": ("Split", [X], (), {"axis": 1, "outputs": 2, "split": [0, 4], "opset": 11}),
}


def assert_like_onnxruntime(case: Case) -> None:
    op, inputs, constants, attributes = case
    model, feeds = one_node(op, inputs, constants, **attributes)
    wanted = run_onnxruntime(model, feeds, rewrites=False).values()
    for got, want in zip(computed(model, feeds), wanted, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_like_onnxruntime(name: str) -> None:
    assert_like_onnxruntime(CASES[name])


@pytest.mark.parametrize("kind", ["Sum", "Prod", "L1", "L2", "SumSquare", "LogSum", "Max", "Min"])
def test_reduced_over_nothing(kind: str) -> None:
    assert_like_onnxruntime((f"Reduce{kind}", [f32(2, 0, 3), i64(1)], (1,), {}))
    assert_like_onnxruntime((f"Reduce{kind}", [f32(2, 0, 3), i64(0)], (1,), {}))


FAR = 2**63 - 1
SLICES = [
    ((FAR,), (-FAR,), (1,), (-1,)),
    ((-1,), (-(2**31),), (1,), (-1,)),
    ((3,), (-100,), (1,), (-2,)),
    ((-100,), (-200,), (1,), (-1,)),
    ((0,), (0,), (0,), (1,)),
    ((5,), (2,), (2,), (1,)),
    ((-1, 0), (-6, 2), (2, 0), (-3, 1)),
    ((2**31 - 1,), (0,), (1,), (-1,)),
    ((-100,), (100,), (0,), (2,)),
    ((1,), (3,), (-1,), (1,)),
    ((0,), (4,), (1,), (1,)),
]


@pytest.mark.parametrize("bounds", SLICES, ids=str)
def test_slices(bounds: tuple[tuple[int, ...], ...]) -> None:
    inputs = [X, *(i64(*numbers) for numbers in bounds)]
    assert_like_onnxruntime(("Slice", inputs, (1, 2, 3, 4), {}))
    assert_like_onnxruntime(("Slice", inputs, (0, 1, 2, 3, 4), {}))


def test_an_artifact_keeps_empty_inputs_and_outputs(tmp_path: Any) -> None:
    model, _ = one_node("Concat", [f32(0, 3), f32(2, 3)], axis=0)
    model.graph.node.append(onnx.helper.make_node("Neg", ["x0"], ["nothing"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("nothing", 1, (0, 3)))
    artifact = tvm_interop.compile(model, scheduler="nimble", streams=2, latency_db=":memory:")
    artifact.save(tmp_path / "model.tar")
    module = tvm_interop.GraphModule(tvm_interop.load(tmp_path / "model.tar"))
    x = f32(2, 3)
    module.run(x0=np.empty((0, 3), "float32"), x1=x)
    np.testing.assert_array_equal(module.get_output(0).numpy(), x)
    assert module.get_output(1).numpy().shape == (0, 3)


WRONG: dict[str, tuple[Case, str]] = {
    "axis of a slice": (
        ("Slice", [f32(2, 3), i64(0), i64(1), i64(5)], (1, 2, 3), {}),
        "axis 5 is out of range",
    ),
    "slice of a scalar": (
        ("Slice", [np.float32(1), i64(0), i64(1), i64(0)], (1, 2, 3), {}),
        "its input has no dimensions",
    ),
    "axis of a split": (
        ("Split", [f32(2, 3), i64(0, 2)], (1,), {"axis": 5, "outputs": 2}),
        "axis 5 is out of range",
    ),
    "too few": (("Split", [f32(4), i64(0, 2)], (1,), {"outputs": 2}), "do not add up to the 4"),
    "negative": (
        ("Split", [f32(4), i64(0, 5, -1)], (1,), {"outputs": 3}),
        "do not add up to the 4",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str) -> None:
    (op, inputs, constants, attributes), message = WRONG[name]
    model, feeds = one_node(op, inputs, constants, **attributes)
    for output in model.graph.output:  # ONNX cannot infer the outputs' types.
        output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, 1, None))
        output.type.tensor_type.shape.SetInParent()
    with pytest.raises(UnsupportedModelError, match=message):
        computed(model, feeds)
