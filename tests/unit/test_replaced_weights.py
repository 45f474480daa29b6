"""Tests sessions whose runs or options change the model: weights, adapters and sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import tvm_interop
import tvm_interop.onnxruntime as ort
from tests.nets import Net
from tvm_interop import ExecutionError, InputError, Session
from tvm_interop.session import option_names

QUICK: dict[str, Any] = {"scheduler": "sequential", "latency_db": ":memory:"}
X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
ONES, TWOS = np.ones((3, 4), np.float32), np.full((3, 4), 2, np.float32)


def product(version: int = 8) -> onnx.ModelProto:
    """`y` is `x @ w0 + w1`. The weight `w0` is also an input."""
    net = Net()
    weight = net.weight(3, 4)
    net.op("MatMul", [net.input("x", ["batch", 3]), weight], "p")
    net.op("Add", ["p", net.weight(4)], "y")
    net.input(weight, [3, 4])
    model = net.model("y")
    model.ir_version = version
    return model


def adapter_file(folder: Path, weight: np.ndarray) -> str:
    made = onnxruntime.AdapterFormat()
    made.set_adapter_version(1)
    made.set_model_version(1)
    made.set_parameters({"w0": onnxruntime.OrtValue.ortvalue_from_numpy(weight)})
    path = str(folder / "lora.onnx_adapter")
    made.export_adapter(path)
    return path


def test_weights_that_are_inputs(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(product(), path, save_as_external_data=True, location="w", size_threshold=0)
    theirs = onnxruntime.InferenceSession(path)
    options, theirs_options = ort.RunOptions(), onnxruntime.RunOptions()
    adapter, theirs_adapter = ort.LoraAdapter(), onnxruntime.LoraAdapter()
    for each in (adapter, theirs_adapter):
        each.Load(adapter_file(tmp_path, TWOS))
    options.add_active_adapter(adapter)
    theirs_options.add_active_adapter(theirs_adapter)
    with ort.InferenceSession(path, **QUICK) as ours:
        (got,) = ours.get_overridable_initializers()
        (wanted,) = theirs.get_overridable_initializers()
        assert (got.name, got.shape, got.type) == (wanted.name, wanted.shape, wanted.type)
        assert [node.name for node in ours.get_inputs()] == ["x"]
        for feed in ({"x": X}, {"x": X, "w0": ONES}, {"x": X, "w0": TWOS}, {"x": X}):
            wanted = theirs.run(None, feed)[0]
            np.testing.assert_allclose(ours.run(["y"], feed)[0], wanted, rtol=1e-4, atol=1e-5)
            wanted = theirs.run(None, feed, theirs_options)[0]
            for results in (
                ours.run(None, feed, options),
                ours.run_async(None, feed, run_options=options).result(),
            ):
                np.testing.assert_allclose(results[0], wanted, rtol=1e-4, atol=1e-5)
        assert len(ours.profile({"x": X, "w0": ONES})) > 0
        with pytest.raises(InputError, match=r"`w0` must be float32 of shape .*, got"):
            ours.run(None, {"x": X, "w0": ONES.astype(np.float64)})
        with pytest.raises(InputError, match="active adapters and a binding"):
            ours.run_with_iobinding(ours.io_binding(), options)
        with pytest.raises(InputError, match=r"of `onnxruntime.*make it by"):
            options.add_active_adapter(theirs_adapter)
        (inner,) = ours._with_weights.values()
    with pytest.raises(ExecutionError, match="was closed"):
        inner.run(None, {"x": X, "w0": ONES})


def test_weights_that_cannot_be_replaced() -> None:
    """Before version 4 of ONNX's format, each weight was also an input."""
    session = Session(product(version=3), **QUICK)
    assert session.get_overridable_initializers() == []
    for name in ("w0", "w1"):
        with pytest.raises(InputError, match=f"no input `{name}`.* weights .* are fixed"):
            session.run(None, {"x": X, name: ONES})


@pytest.mark.parametrize("names", [ort, option_names], ids=["onnxruntime's", "our own"])
def test_sizes_in_the_options(names: Any) -> None:
    model, found = product(), []
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"
    model.graph.input[0].type.tensor_type.shape.dim[1].denotation = "DATA_FEATURE"
    for values, module in ((names, ort), (onnxruntime, onnxruntime)):
        options = values.SessionOptions()
        options.add_free_dimension_override_by_name("batch", 2)
        options.add_free_dimension_override_by_name("no such dimension", 7)
        options.add_free_dimension_override_by_denotation("DATA_FEATURE", 3)
        given = QUICK if values is names else {}
        session = module.InferenceSession(model.SerializeToString(), options, **given)
        with pytest.raises(ValueError if values is names else Exception):
            session.run(None, {"x": X[:1]})
        found.append((session.get_inputs()[0].shape, session.run(None, {"x": X})[0]))
    assert found[0][0] == found[1][0] == [2, 3]
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="`batch` is -1: give a whole number"):
        names.SessionOptions().add_free_dimension_override_by_name("batch", -1)


def test_arrays_of_the_other_byte_order() -> None:
    net = Net()
    kinds = {"x": TensorProto.FLOAT, "n": TensorProto.INT64}
    for name, kind in kinds.items():
        net.op("Add", [net.input(name, ["n"], kind)] * 2, f"twice_{name}")
    session = Session(net.model("twice_x", "twice_n"), **QUICK)
    x, n = np.float32([1, -2.5]), np.int64([2**53 + 1, -7])
    for order in "<>":
        feed = {"x": x.astype(f"{order}f4"), "n": n.astype(f"{order}i8")}
        got = session.run(None, feed)
        np.testing.assert_array_equal(got[0], 2 * x)
        np.testing.assert_array_equal(got[1], 2 * n)
    with pytest.raises(InputError, match=r"must be float32 .* got float64"):
        session.run(None, {"x": x.astype(">f8"), "n": n})


def test_options_for_an_artifact(tmp_path: Path) -> None:
    """An artifact keeps its sizes, and has no weights that runs can replace."""
    path = tmp_path / "net.tar"
    tvm_interop.compile(product(), input_shapes={"x": (2, 3)}, out=path, **QUICK)
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    session = ort.InferenceSession(path, options)
    assert session.get_overridable_initializers() == []
    assert session.run(None, {"x": X})[0].shape == (2, 4)
