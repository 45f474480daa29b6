"""Tests normalisations of numbers that are far larger than their spread."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests.one_node import computed

CHANNELS, GROUPS = 8, 4
NUMPY = {"float": "float32", "float16": "float16", "double": "float64"}
SHAPE = (2, CHANNELS, 5, 13)


def onnx_model(op: str, dtype: str, opset: int, per_channel: int) -> onnx.ModelProto:
    """A model whose only operator is `op`, on `x`, with scales of 2 and shifts of 0.5."""
    sizes = ", ".join(map(str, SHAPE))
    node = f"{op} <num_groups = {GROUPS}>" if op == "GroupNormalization" else op
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : {opset}]>
        g ({dtype}[{sizes}] x) => ({dtype}[{sizes}] y) {{ y = {node} (x, scale, shift) }}""")
    for name, number in (("scale", 2.0), ("shift", 0.5)):
        values = np.full(per_channel, number, NUMPY[dtype])
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def run(model: onnx.ModelProto | tvm.IRModule, x: np.ndarray) -> np.ndarray:
    return computed(model, {"x": x})[0]


def wanted(x: np.ndarray, groups: int) -> np.ndarray:
    rows = x.astype(np.float64).reshape(SHAPE[0], groups, -1)
    centred = rows - rows.mean(2, keepdims=True)
    deviation = np.sqrt((centred**2).mean(2, keepdims=True) + 1e-5)
    return (centred / deviation).reshape(SHAPE) * 2 + 0.5


def numbers(mean: float, spread: float, dtype: str = "float32") -> np.ndarray:
    drawn = np.random.default_rng(0).standard_normal(SHAPE)
    return (mean + spread * drawn).astype(dtype)


CASES = [
    ("GroupNormalization", 18, GROUPS, GROUPS),
    ("GroupNormalization", 21, CHANNELS, GROUPS),
    ("InstanceNormalization", 18, CHANNELS, CHANNELS),
]


@pytest.mark.parametrize(("op", "opset", "per_channel", "groups"), CASES)
@pytest.mark.parametrize(("mean", "spread"), [(26.12, 0.0), (1000.0, 0.1), (-300.0, 1.0)])
def test_a_large_mean(
    op: str, opset: int, per_channel: int, groups: int, mean: float, spread: float
) -> None:
    x = numbers(mean, spread)
    got = run(onnx_model(op, "float", opset, per_channel), x)
    np.testing.assert_allclose(got, wanted(x, groups), rtol=0, atol=1e-2)


@pytest.mark.parametrize(("op", "opset", "per_channel", "groups"), CASES)
@pytest.mark.parametrize(("dtype", "apart"), [("float16", 5e-3), ("double", 1e-12)])
def test_other_types(
    op: str, opset: int, per_channel: int, groups: int, dtype: str, apart: float
) -> None:
    x = numbers(1.0, 2.0, NUMPY[dtype])
    got = run(onnx_model(op, dtype, opset, per_channel), x)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, wanted(x, groups), rtol=0, atol=apart)


@pytest.mark.parametrize("op", ["group_norm", "instance_norm"])
def test_of_a_relax_module(op: str) -> None:
    """Programs that PyTorch exported have Relax's operators for normalisations."""
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    scale = relax.const(np.full(CHANNELS, 2, np.float32))
    shift = relax.const(np.full(CHANNELS, 0.5, np.float32))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            if op == "group_norm":
                y = relax.op.nn.group_norm(x, scale, shift, GROUPS, 1, [2, 3])
            else:
                y = relax.op.nn.instance_norm(x, scale, shift, 1, [2, 3])
            out = bb.emit_output(bb.emit(y))
        bb.emit_func_output(out)
    data = numbers(26.12, 0.0)
    groups = GROUPS if op == "group_norm" else CHANNELS
    np.testing.assert_allclose(run(bb.get(), data), wanted(data, groups), rtol=0, atol=1e-2)
