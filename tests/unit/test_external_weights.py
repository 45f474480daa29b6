"""Tests models with weights in other files. The weights are read one by one."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_interop
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import load_model
from tvm_interop.frontend.turned_weights import turned_weights
from tvm_interop.models.external_weights import _read_into, is_outside
from tvm_interop.models.source import read_for_import, read_onnx


def products(layers: int, size: int) -> onnx.ModelProto:
    """A chain of `layers` matrix products, as PyTorch exports them, and a small constant."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i in range(layers):
        matrix = rng.standard_normal((size, size), np.float32) / np.float32(size**0.5)
        weights.append(numpy_helper.from_array(matrix, f"w{i}"))
        nodes.append(helper.make_node("Gemm", [x, f"w{i}"], [f"h{i}"], name=f"g{i}", transB=1))
        nodes.append(helper.make_node("Add", [f"h{i}", "one"], [f"r{i}"], name=f"a{i}"))
        x = f"r{i}"
    weights.append(numpy_helper.from_array(np.ones(size, np.float32), "one"))
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, size))],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, (1, size))],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    whole = onnx.ModelProto()
    whole.CopyFrom(model)  # Saving removes the weights from the model, so save a copy.
    onnx.save_model(whole, path, save_as_external_data=True, location="weights.bin")
    return path


def run(model: onnx.ModelProto | Path) -> np.ndarray:
    # Use one provider, because two compilations may find different kernels fastest.
    compiled = tvm_interop.compile(
        model, scheduler="sequential", latency_db=":memory:", providers=["tvm"]
    )
    (output,) = tvm_interop.GraphModule(compiled)(np.linspace(-1, 1, 600, dtype="float32")[None])
    return np.asarray(output)


def test_the_same_results_as_of_weights_within(tmp_path: Path) -> None:
    model = products(2, 600)
    path = saved(model, tmp_path)
    outside = [tensor for tensor in read_for_import(path).graph.initializer if is_outside(tensor)]
    assert [tensor.name for tensor in outside] == ["w0", "w1"]
    np.testing.assert_array_equal(run(path), run(model))


@pytest.mark.parametrize("linked", [["model.onnx"], ["model.onnx", "weights.bin"]])
def test_files_may_be_links(tmp_path: Path, linked: list[str]) -> None:
    """In Hugging Face's cache, both the model and the weights are links."""
    path = saved(products(1, 600), tmp_path)
    (tmp_path / "files").mkdir()
    for name in linked:
        (tmp_path / name).symlink_to((tmp_path / name).rename(tmp_path / "files" / f"of_{name}"))
    load_model(path)
    assert read_onnx(path).graph.initializer[0].raw_data


@pytest.mark.parametrize("loss", ["gone", "cut", "elsewhere", "a link out"])
def test_a_file_that_is_not_as_told(tmp_path: Path, loss: str) -> None:
    path = saved(products(1, 600), tmp_path)
    if loss == "gone":
        (tmp_path / "weights.bin").unlink()
    elif loss == "cut":
        (tmp_path / "weights.bin").write_bytes(b"\0" * 100)
    elif loss == "a link out":
        (tmp_path / "sub").mkdir()
        path = path.rename(tmp_path / "sub" / "model.onnx")
        (tmp_path / "sub" / "weights.bin").symlink_to(tmp_path / "weights.bin")
    else:
        (tmp_path / "sub").mkdir()
        path = path.rename(tmp_path / "sub" / "model.onnx")
        model = onnx.load(path, load_external_data=False)
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                entry.value = "../weights.bin" if entry.key == "location" else entry.value
        path.write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedModelError, match=r"weights? .*in (an)?other files?"):
        load_model(path)


_PEAK = """
import sys
import tvm_interop.compiler.api as api
from tvm_interop.frontend import load_model

def peak():  # getrusage tells that of the process which started this one, where it was larger.
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

load_model(sys.argv[1] + "/small/model.onnx")
before = peak()
if sys.argv[2] == "load":
    load_model(sys.argv[1] + "/model.onnx")
else:
    api.compile(sys.argv[1] + "/model.onnx", scheduler="sequential", latency_db=":memory:")
print(peak() - before)
"""


def peak_of(what: str, folder: Path) -> int:
    """The bytes by which a new process grows when it loads or compiles the model in the folder."""
    (folder / "small").mkdir()
    saved(products(1, 8), folder / "small")
    command = [sys.executable, "-c", _PEAK, str(folder), what]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_loading_takes_the_memory_of_the_weights_once(tmp_path: Path) -> None:
    saved(products(8, 2048), tmp_path)
    nbytes, one = 8 * 2048**2 * 4, 2048**2 * 4
    assert nbytes <= peak_of("load", tmp_path) < nbytes + 3 * one


def test_weights_of_many_sizes_leave_no_holes_in_memory(tmp_path: Path) -> None:
    """Each pair of weights is too large for the memory of the pair before it.

    If two weights have one size, glibc takes the second from memory that it does not give back.
    """
    sizes = [(1024, 1024 + 16 * (i // 2)) for i in range(24)]
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(size, np.float32), f"w{i}")
        for i, size in enumerate(sizes)
    ]
    nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"]) for i in range(len(sizes))]
    ends = [helper.make_tensor_value_info(f"y{i}", 1, (1, n)) for i, (_, n) in enumerate(sizes)]
    x = helper.make_tensor_value_info("x", 1, (1, 1024))
    graph = helper.make_graph(nodes, "sizes", [x], ends, weights)
    opset = [helper.make_opsetid("", 17)]
    saved(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path)
    nbytes = sum(4 * rows * columns for rows, columns in sizes)
    assert peak_of("load", tmp_path) < 1.2 * nbytes


def test_a_file_may_be_read_in_several_pieces() -> None:
    class Slow(io.BytesIO):
        def readinto(self, memory: memoryview) -> int:  # type: ignore[override]
            return super().readinto(memory[:3])

    memory = bytearray(8)
    _read_into(memoryview(memory), Slow(b"12345678"))
    assert memory == b"12345678"
    with pytest.raises(ValueError, match="the file ends before"):
        _read_into(memoryview(memory), Slow(b"1234567"))


@pytest.mark.slow
def test_compiling_takes_it_once(tmp_path: Path) -> None:
    """Each weight is transposed while it is read, so there is no second copy of all weights."""
    saved(products(10, 3840), tmp_path)
    nbytes = 10 * 3840**2 * 4
    assert peak_of("compile", tmp_path) < nbytes + 400 * 2**20


@pytest.mark.parametrize("attributes", [{}, {"perm": [1, 0]}, {"perm": [0, 1]}])
@pytest.mark.parametrize("uses", [1, 2])
def test_transposed_weights(tmp_path: Path, attributes: dict[str, list[int]], uses: int) -> None:
    """A weight that is used twice, or that is not transposed, is read unchanged."""
    weight = np.random.default_rng(0).standard_normal((600, 600), np.float32)
    nodes = [helper.make_node("Transpose", ["w"], ["t"], **attributes)]
    nodes.append(helper.make_node("MatMul", ["x", "t"], ["y" if uses == 1 else "h"]))
    if uses == 2:
        nodes.append(helper.make_node("Gemm", ["h", "w"], ["y"], transB=1))
    (x, y) = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 600)) for n in "xy")
    graph = helper.make_graph(nodes, "net", [x], [y], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = saved(model, tmp_path)
    turned = turned_weights(read_for_import(path).graph)
    assert turned == ({"w"} if uses == 1 and attributes != {"perm": [0, 1]} else set())
    np.testing.assert_array_equal(run(path), run(model))
