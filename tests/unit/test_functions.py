"""Tests models that define functions of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed
from tvm_interop import UnsupportedModelError

X = np.linspace(-3, 3, 24, dtype="float32").reshape(2, 3, 4)


def with_function(
    nodes: Sequence[onnx.NodeProto], *, opset: int = 20, **defaults: float
) -> onnx.ModelProto:
    """A model of opset 20 that calls a function from `a` to `b` without attributes."""
    function = helper.make_function(
        "own",
        "F",
        ["a"],
        ["b"],
        nodes,
        [helper.make_opsetid("", opset)],
        attribute_protos=[helper.make_attribute(*each) for each in defaults.items()],
    )
    call = helper.make_node("F", ["x"], ["y"], domain="own")
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, X.shape) for name in "xy"]
    graph = helper.make_graph([call], "g", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10)


def test_an_attribute_that_a_call_leaves_out_has_the_default_of_the_function() -> None:
    node = helper.make_node("LeakyRelu", ["a"], ["b"])
    slope = onnx.AttributeProto(name="alpha", ref_attr_name="slope")
    slope.type = onnx.AttributeProto.FLOAT
    node.attribute.append(slope)
    model = with_function([node], slope=0.75)
    (got,) = computed(model, {"x": X})
    np.testing.assert_allclose(got, run_onnxruntime(model, {"x": X})["y"], rtol=1e-6)


def test_a_function_of_another_opset() -> None:
    nodes = [
        helper.make_node("Cast", ["a"], ["c"], to=onnx.TensorProto.DOUBLE),
        helper.make_node("Cast", ["c"], ["d"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Exp", ["d"], ["b"]),
    ]
    model = with_function(nodes, opset=17)
    (got,) = computed(model, {"x": X})
    np.testing.assert_allclose(got, run_onnxruntime(model, {"x": X})["y"], rtol=1e-6)


def test_an_operator_means_what_it_means_in_the_opset_of_the_function() -> None:
    model = with_function([helper.make_node("Softmax", ["a"], ["b"])], opset=12)
    (got,) = computed(model, {"x": X})
    powers = np.exp(X - X.max())
    np.testing.assert_allclose(got, powers / powers.sum((1, 2), keepdims=True), rtol=1e-5)


def test_a_function_that_onnx_cannot_convert_is_refused() -> None:
    model = with_function([helper.make_node("Swish", ["a"], ["b"])], opset=24)
    with pytest.raises(UnsupportedModelError, match="a function of the model uses another opset"):
        computed(model, {"x": X})


def test_a_function_of_another_opset_of_classical_operators() -> None:
    """Only ONNX's own operators can be converted between opsets. `Scaler` is the same in both."""
    node = helper.make_node("Scaler", ["a"], ["b"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])
    model = with_function([node])
    model.functions[0].opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    (got,) = computed(model, {"x": X})
    np.testing.assert_allclose(got, (X - 1) * 2, rtol=1e-6)
