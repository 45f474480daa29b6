"""Tests that expressions stay short and compile quickly although each operator could double
them."""

from __future__ import annotations

import numpy as np
import onnx
import tvm_ffi
from tvm.ir import Call, TensorLoad

from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions


def of(nodes: list[onnx.NodeProto], output: str) -> onnx.ModelProto:
    x = onnx.helper.make_tensor_value_info("t0", onnx.TensorProto.FLOAT, [4, 64])
    y = onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, [4, 64])
    graph = onnx.helper.make_graph(nodes, "g", [x], [y])
    opsets = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)


def doubled(times: int) -> onnx.ModelProto:
    nodes = [onnx.helper.make_node("Add", [f"t{i}", f"t{i}"], [f"t{i + 1}"]) for i in range(times)]
    return of(nodes, f"t{times}")


def largest(model: onnx.ModelProto) -> tuple[int, int]:
    """The largest numbers of reads and of function calls in a kernel of the model."""
    options = CompileOptions(latency_db=":memory:", providers=["tvm"])
    kernels = Compilation(model, options).program.kernels
    assert kernels is not None
    found = []
    for _, kernel in kernels.functions_items():
        reads: list[TensorLoad] = []
        calls: list[Call] = []
        tvm_ffi.structural_walk(kernel.body, [(TensorLoad, reads.append), (Call, calls.append)])
        found.append((len(reads), len(calls)))
    return max(reads for reads, _ in found), max(calls for _, calls in found)


def test_a_tensor_added_to_itself_again_and_again() -> None:
    assert largest(doubled(40))[0] < 1000  # Written out, the sum would have 2^40 terms.
    model = doubled(20)
    x = np.random.default_rng(0).standard_normal((4, 64)).astype("float32")
    np.testing.assert_array_equal(computed(model, {"t0": x})[0], x * 2**20)


def test_functions_that_are_used_by_several() -> None:
    """LLVM and TVM once took half a minute for `tanh` in six places under a `floor`."""
    nodes = [onnx.helper.make_node("Tanh", ["t0"], ["f0"])]
    for i in range(4):
        nodes.append(onnx.helper.make_node("Sin", [f"f{i}"], [f"s{i}"]))
        nodes.append(onnx.helper.make_node("Cos", [f"f{i}"], [f"c{i}"]))
        nodes.append(onnx.helper.make_node("Mul", [f"s{i}", f"c{i}"], [f"f{i + 1}"]))
    model = of(nodes, "f4")
    # Written out, the kernel would call 2 + 4 + 8 + 16 functions, and `tanh` 16 times.
    assert largest(model)[1] < 30
    x = np.random.default_rng(0).standard_normal((4, 64)).astype("float32")
    (wanted,) = run_onnxruntime(model, {"t0": x}, rewrites=False).values()
    np.testing.assert_allclose(computed(model, {"t0": x})[0], wanted, rtol=1e-4, atol=1e-6)


def test_many_tensors_are_joined_by_and_by() -> None:
    """A kernel with thousands of arguments once ended the process that compiled it."""
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [200, 2])
    node = onnx.helper.make_node("Concat", ["x"] * 200, ["y"], axis=0)
    opsets = [onnx.helper.make_opsetid("", 20)]
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = CompileOptions(latency_db=":memory:", providers=["tvm"])
    program = Compilation(model, options).program
    assert max(len(op.inputs) for op in program.operators) <= 64
    data = np.array([[1, 2]], "float32")
    np.testing.assert_array_equal(computed(model, {"x": data})[0], np.tile(data, (200, 1)))


def test_functions_within_a_sum_that_is_a_scalar() -> None:
    """TVM computes a sum to a scalar in one block, and allows no buffers within the block."""
    nodes = [
        onnx.helper.make_node("Erf", ["t0"], ["e"]),
        onnx.helper.make_node("Mul", ["e", "e"], ["m"]),
        onnx.helper.make_node("ReduceSum", ["m"], ["y"], keepdims=0),
    ]
    x = onnx.helper.make_tensor_value_info("t0", onnx.TensorProto.FLOAT, [5])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [])
    graph = onnx.helper.make_graph(nodes, "g", [x], [y])
    opsets = [onnx.helper.make_opsetid("", 20)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    feeds = {"t0": np.array([-2, -0.3, 0, 0.7, 5], "float32")}
    (wanted,) = run_onnxruntime(model, feeds, rewrites=False).values()
    np.testing.assert_allclose(computed(model, feeds)[0], wanted, rtol=1e-5)
