"""Tests models whose large weights stay in the model's own file until they are needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import load_model
from tvm_interop.models.external_weights import array_of, is_outside, read_all_but_large

SIZE = 600
"""A square matrix of floats with this many rows takes more than 1 MiB."""


def model() -> onnx.ModelProto:
    """A model in which large and small weights of several types alternate. It has doc strings
    too."""
    rng = np.random.default_rng(0)
    square = rng.standard_normal((SIZE, SIZE))
    weights = [
        numpy_helper.from_array(square.astype("float32"), "w0"),
        numpy_helper.from_array(np.ones(SIZE, "float32"), "small"),
        numpy_helper.from_array(square.astype("float64"), "w1"),
        numpy_helper.from_array(np.arange(SIZE * SIZE), "integers"),
        numpy_helper.from_array(square.astype("float16"), "halves"),
        helper.make_tensor("typed", TensorProto.FLOAT, (SIZE, SIZE), square.ravel()),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h0"], name="first"),
        helper.make_node("Add", ["h0", "small"], ["h1"], name="second"),
        helper.make_node("MatMul", ["h1", "typed"], ["y"], name="third"),
    ]
    shape = (1, SIZE)
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
        doc_string="a model",
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def filled(light: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Read the weights that `light` left in the file at `path` into `light`, and return it."""
    for tensor in light.graph.initializer:
        if is_outside(tensor):
            tensor.raw_data = array_of(tensor, path).tobytes()
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    return light


def test_large_floats_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(model(), path)
    light = read_all_but_large(path)
    outside = [tensor for tensor in light.graph.initializer if is_outside(tensor)]
    # Two weights cannot stay in the file: `halves` has less than 1 MiB, and `typed` is stored as a
    # list of floats.
    assert [tensor.name for tensor in outside] == ["w0", "w1"]
    assert not any(tensor.raw_data for tensor in outside)
    assert filled(light, path) == onnx.load(path)


def test_the_model_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    onnx.save_model(model(), tmp_path / "files" / "hash")
    path = tmp_path / "model.onnx"
    path.symlink_to(tmp_path / "files" / "hash")
    light = read_all_but_large(path)
    assert any(is_outside(tensor) for tensor in light.graph.initializer)
    assert filled(light, path) == model()
    load_model(path)


def test_a_shape_that_the_bytes_do_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    wrong = model()
    wrong.graph.initializer[0].dims[0] = SIZE + 1
    onnx.save_model(wrong, path)
    light = read_all_but_large(path)
    assert not is_outside(light.graph.initializer[0])
    with pytest.raises(UnsupportedModelError, match="w0"):
        load_model(path)


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.999])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "model.onnx"
    code = model().SerializeToString()
    path.write_bytes(code[: int(len(code) * kept)])
    with pytest.raises(UnsupportedModelError, match=r"is not an ONNX file|is not valid|no graph"):
        load_model(path)


def test_bytes_that_changed_are_read_as_protobuf_reads_them(tmp_path: Path) -> None:
    """A damaged file is refused, or gives the same model as `onnx.load`."""
    path = tmp_path / "model.onnx"
    code = model().SerializeToString()
    rng = np.random.default_rng(0)
    place = code.index(b"w0")
    same = refused = 0
    for _ in range(150):
        damaged = bytearray(code)
        # Most bytes are weights. The bytes around a weight's name decide how the file is read.
        at = int(rng.integers(0, 40)) if rng.random() < 0.5 else place - int(rng.integers(-9, 30))
        damaged[at] = int(rng.integers(0, 256))
        path.write_bytes(damaged)
        try:
            wanted = onnx.load(path, load_external_data=False)
        except DecodeError:
            with pytest.raises(DecodeError):
                read_all_but_large(path)
            refused += 1
            continue
        try:
            got = filled(read_all_but_large(path), path)
        except UnsupportedModelError:  # The damaged text names a file that is not there.
            refused += 1
            continue
        assert got == wanted
        same += 1
    assert same > 20
    assert refused > 20
