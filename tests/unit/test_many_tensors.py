"""Tests that no kernels of very many tensors are made, because LLVM takes minutes for them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx

from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed, one_node
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.program.program import Operator


def of(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int],
    constants: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    opsets = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)


def operators(model: onnx.ModelProto) -> Sequence[Operator]:
    options = CompileOptions(latency_db=":memory:", providers=["tvm"])
    return Compilation(model, options).program.operators


def test_a_long_chain_of_element_wise_operators_is_several_kernels() -> None:
    """Each operator of the chain reads a constant of its own. TVM would fuse up to 256 operators,
    and LLVM took 16 s for such a kernel."""
    count = 150
    constants = {f"c{i}": np.full((2, 3), i + 1.0, "float32") for i in range(count)}
    names = ["x", *(f"t{i}" for i in range(1, count)), "y"]
    kinds = ("Add", "Mul")  # Two kinds of operators alternate, so they cannot become one sum.
    nodes = [
        onnx.helper.make_node(kinds[i % 2], [before, f"c{i}"], [after])
        for i, (before, after) in enumerate(itertools.pairwise(names))
    ]
    found = operators(of(nodes, [2, 3], constants))
    assert max(len(op.inputs) for op in found) <= 65
    assert len(found) == 3  # There are three kernels, and not one for each operator.


def test_a_split_into_many_parts_is_no_kernel_of_as_many_outputs() -> None:
    """A kernel with 500 outputs once took LLVM more than a minute.

    Here 139 rows are split into parts of 2 rows. The last part has only one row.
    """
    parts, soft = ([f"{kind}{i}" for i in range(70)] for kind in ("p", "s"))
    softmaxes = [
        onnx.helper.make_node("Softmax", [part], [result])
        for part, result in zip(parts, soft, strict=True)
    ]
    model = of(
        [
            onnx.helper.make_node("Split", ["x"], parts, axis=0, num_outputs=len(parts)),
            *softmaxes,
            onnx.helper.make_node("Concat", soft[::-1], ["y"], axis=0),
        ],
        [139, 2],
    )
    assert max(len(op.outputs) for op in operators(model)) == 1
    x = np.linspace(-1, 1, 278, dtype="float32").reshape(139, 2) ** 3
    (wanted,) = run_onnxruntime(model, {"x": x}, rewrites=False).values()
    np.testing.assert_allclose(computed(model, {"x": x})[0], wanted, rtol=1e-5)


def test_a_resize_to_a_size_whose_quotient_is_rounded() -> None:
    """In float32, 29 / 7 is rounded down, and 7 times the result is 28.

    A resize from 7 to 29 was once refused.
    """
    x = np.linspace(-1, 1, 7, dtype="float32").reshape(1, 1, 7)
    sizes = np.array([1, 1, 29], np.int64)
    model, feeds = one_node("Resize", [x, None, None, sizes], [3], mode="linear")
    (wanted,) = run_onnxruntime(model, feeds, rewrites=False).values()
    np.testing.assert_allclose(computed(model, feeds)[0], wanted, rtol=1e-5, atol=1e-6)
