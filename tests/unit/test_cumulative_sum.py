"""Compares ONNX's `CumSum` with NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

import tvm_interop


def _model(shape: tuple[int, ...], dtype: str, axis: int, **attributes: int) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, y = (helper.make_tensor_value_info(name, kind, shape) for name in ("x", "y"))
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], name="sums", **attributes)
    constants = [numpy_helper.from_array(np.array(axis), "axis")]
    graph = helper.make_graph([node], "net", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _sums(x: npt.NDArray[np.generic], axis: int, exclusive: int, reverse: int) -> object:
    turned = np.flip(x, axis) if reverse else x
    sums = np.cumsum(turned, axis, dtype=x.dtype)
    sums = sums - turned if exclusive else sums
    return np.flip(sums, axis) if reverse else sums


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize(
    ("shape", "dtype", "axis"),
    [((7,), "int64", 0), ((3, 5, 4), "int32", 1), ((3, 5), "float32", -1), ((4, 1), "float64", 1)],
)
def test_numbers(
    shape: tuple[int, ...], dtype: str, axis: int, exclusive: int, reverse: int
) -> None:
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)
    model = _model(shape, dtype, axis, exclusive=exclusive, reverse=reverse)
    artifact = tvm_interop.compile(model, scheduler="sequential", latency_db=":memory:")
    module = tvm_interop.GraphModule(artifact)
    module.run(x=x)
    got = module.get_output(0).numpy()
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, _sums(x, axis, exclusive, reverse))


def test_float16_adds_up_in_float32() -> None:
    """The input consists of ones.

    The sum goes beyond 2048, where adding 1 in float16 has no effect.
    """
    x = np.ones(4000, "float16")
    artifact = tvm_interop.compile(
        _model((4000,), "float16", 0), scheduler="sequential", latency_db=":memory:"
    )
    module = tvm_interop.GraphModule(artifact)
    module.run(x=x)
    np.testing.assert_allclose(module.get_output(0).numpy()[-1], 4000)
