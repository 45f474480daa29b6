"""Tests numbers that a model computes from its sizes in ways that the compiler cannot evaluate.

This happens in subgraphs, and in operators that ONNX's reference lacks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_interop
from tests.masked_nets import theirs
from tests.nets import Net
from tvm_interop.errors import InputError
from tvm_interop.execution.graph_module import GraphModule

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}
_SCALAR: list[int] = []


class _Rows(Net):
    """A net with the input `x` of shape (batch, 4), and its batch size as the tensor `n`."""

    def __init__(self) -> None:
        super().__init__()
        self.input("x", ["batch", 4])
        self.seven = self.constant(np.array(7, np.int64))
        first = self.constant(np.array(0, np.int64))
        self.op("Gather", [self.op("Shape", ["x"], "shape"), first], "n")

    def other(self, kind: str, domain: str, *inputs: str, **attrs: Any) -> str:
        self._nodes.append(
            helper.make_node(kind, inputs, ["other"], name=f"other/{kind}", domain=domain, **attrs)
        )
        return "other"

    def made(self, *domains: str) -> onnx.ModelProto:
        model = self.model("y", check=False)
        model.graph.output[0].CopyFrom(
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
        )
        model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in domains)
        return model


def _value(name: str, dtype: int = TensorProto.FLOAT, shape: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _body(nodes: list[Any], state: str, result: str, shape: Any = None) -> onnx.GraphProto:
    inputs = [_value("i", TensorProto.INT64, _SCALAR), _value("go", TensorProto.BOOL, _SCALAR)]
    outputs = [_value("go_on", TensorProto.BOOL, _SCALAR), _value(result, shape=shape)]
    made = [helper.make_node("Identity", ["go"], ["go_on"]), *nodes]
    return helper.make_graph(made, "body", [*inputs, _value(state, shape=shape)], outputs)


def _seven_inside(source: str) -> list[Any]:
    """Nodes that compute `f`, which is 1 if the number `source` is 7."""
    return [
        helper.make_node("Equal", [source, "w0"], ["is"], name="is"),
        helper.make_node("Cast", ["is"], ["f"], name="f", to=TensorProto.FLOAT),
    ]


def _in_a_branch() -> onnx.ModelProto:
    net = _Rows()
    net.input("flag", _SCALAR, TensorProto.BOOL)
    nodes = [*_seven_inside("n"), helper.make_node("Mul", ["x", "f"], ["product"])]
    then = helper.make_graph(nodes, "then", [], [onnx.ValueInfoProto(name="product")])
    neg = [helper.make_node("Neg", ["x"], ["neg"])]
    other = helper.make_graph(neg, "else", [], [onnx.ValueInfoProto(name="neg")])
    net.op("If", ["flag"], "y", then_branch=then, else_branch=other)
    return net.made()


def _in_a_loop() -> onnx.ModelProto:
    net = _Rows()
    body = _body([*_seven_inside("n"), helper.make_node("Add", ["s", "f"], ["t"])], "s", "t")
    net.op("Loop", [net.constant(np.array(2, np.int64)), "", "x"], "y", body=body)
    return net.made()


def _in_a_state() -> onnx.ModelProto:
    """The state of the loop is the size. The loop's result is 1 if the size is 7."""
    net = _Rows()
    nodes = [
        helper.make_node("Equal", ["s", "seven"], ["is"]),
        helper.make_node("Cast", ["is"], ["t"], to=TensorProto.FLOAT),
    ]
    body = _body(nodes, "s", "t", _SCALAR)
    body.initializer.append(numpy_helper.from_array(np.array(7, np.float32), "seven"))
    state = net.op("Cast", ["n"], "state", to=TensorProto.FLOAT)
    net.op("Loop", [net.constant(np.array(1, np.int64)), "", state], "k", body=body)
    net.op("Mul", ["x", "k"], "y")
    return net.made()


def _passed_through() -> onnx.ModelProto:
    """The loop returns the size unchanged, and the model then asks whether it is 7."""
    net = _Rows()
    body = _body([helper.make_node("Add", ["d", "d"], ["e"])], "s", "s", _SCALAR)
    body.input.append(_value("d"))
    body.output.append(_value("e"))
    state = net.op("Cast", ["n"], "state", to=TensorProto.FLOAT)
    turns = net.constant(np.array(1, np.int64))
    net._nodes.append(
        helper.make_node("Loop", [turns, "", state, "x"], ["k", "z"], name="k/Loop", body=body)
    )
    is_seven = net.op("Equal", ["k", net.constant(np.array(7, np.float32))], "is")
    net.op("Mul", ["z", net.op("Cast", [is_seven], "factor", to=TensorProto.FLOAT)], "y")
    return net.made()


def _by_another_operator() -> onnx.ModelProto:
    """The sum of the positions is 21 for 7 rows. ONNX's reference lacks this `Range`."""
    net = _Rows()
    ends = [net.constant(np.array(k, np.int64)) for k in (0, 1)]
    total = net.op("ReduceSum", [net.other("Range", "com.microsoft", ends[0], "n", ends[1])],
                   "total", keepdims=0)  # fmt: skip
    is_it = net.op("Equal", [total, net.constant(np.array(21, np.int64))], "is")
    net.op("Mul", ["x", net.op("Cast", [is_it], "factor", to=TensorProto.FLOAT)], "y")
    return net.made("com.microsoft")


@pytest.mark.parametrize(
    ("make", "node"),
    [
        (_in_a_loop, "y/Loop"), (_in_a_state, "k/Loop"),
        (_passed_through, "k/Loop"), (_by_another_operator, "other/Range"),
    ],
)  # fmt: skip
def test_a_number_that_is_not_followed_is_refused(make: Any, node: str) -> None:
    """Each of these models asks whether the batch is 7, which is not among the compiled sizes."""
    with pytest.raises(InputError, match=f"node `{node}` computes further numbers from"):
        tvm_interop.compile(make(), shapes={"batch": (1, 9)}, most_sizes=3, **QUICK)


def test_a_number_in_a_branch_must_grow_evenly() -> None:
    with pytest.raises(InputError, match="node `product` uses the numbers of `f`, which are"):
        tvm_interop.compile(_in_a_branch(), shapes={"batch": (1, 9)}, most_sizes=3, **QUICK)


def _sized_in_branches(*names: str) -> onnx.ModelProto:
    """Each branch reads the size of its input. A voice detector for two sampling rates does so."""
    net = _Rows()
    net.input("flag", _SCALAR, TensorProto.BOOL)
    net._initializers += [numpy_helper.from_array(np.array([k]), f"k{k}") for k in (0, 1, 2, -1)]
    branches = []
    for name, axis in zip(names, (1, 2), strict=True):
        nodes = [
            helper.make_node("Shape", ["x"], [f"{name}_shape"]),
            helper.make_node("Slice", [f"{name}_shape", "k0", "k1"], [f"{name}_rows"]),
            helper.make_node("Concat", [f"{name}_rows", "k2", "k-1"], [f"{name}_to"], axis=0),
            helper.make_node("Reshape", ["x", f"{name}_to"], [f"{name}_parts"]),
            helper.make_node("ReduceSum", [f"{name}_parts", f"k{axis}"], [name], keepdims=0),
        ]
        made = helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=name)])
        branches.append(made)
    net.op("If", ["flag"], "y", then_branch=branches[0], else_branch=branches[1])
    return net.made()


def test_two_tensors_of_one_name_are_not_followed() -> None:
    made = _sized_in_branches("same", "same")
    with pytest.raises(InputError, match="uses a size within the `If` `y/If`"):
        tvm_interop.compile(made, shapes={"batch": (1, 9)}, most_sizes=3, **QUICK)


def _shaped_in_a_branch() -> onnx.ModelProto:
    """A branch that is chosen by data reads a size, but only as a part of a shape."""
    net = _Rows()
    net.input("flag", _SCALAR, TensorProto.BOOL)
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["same"]),
        helper.make_node("Relu", ["same"], ["relu"]),
    ]
    then = helper.make_graph(nodes, "then", [], [onnx.ValueInfoProto(name="relu")])
    neg = [helper.make_node("Neg", ["x"], ["neg"])]
    other = helper.make_graph(neg, "else", [], [onnx.ValueInfoProto(name="neg")])
    net.op("If", ["flag"], "y", then_branch=then, else_branch=other)
    return net.made()


def _begins_with_zeros() -> onnx.ModelProto:
    """A recurrent layer written as a loop, whose first state is zeros for each row."""
    net = _Rows()
    weight = net.weight(4, 4)
    nodes = [
        helper.make_node("MatMul", ["s", weight], ["m"]),
        helper.make_node("Add", ["m", "x"], ["a"]),
        helper.make_node("Tanh", ["a"], ["t"]),
    ]
    zero = net.op("ConstantOfShape", ["shape"], "zeros")
    turns = net.constant(np.array(3, np.int64))
    net.op("Loop", [turns, "", zero], "y", body=_body(nodes, "s", "t"))
    return net.made()


@pytest.mark.parametrize(
    "make", [_shaped_in_a_branch, _begins_with_zeros, lambda: _sized_in_branches("one", "two")]
)
def test_sizes_that_only_shape_data_are_fine_in_subgraphs(make: Any) -> None:
    model = make()
    artifact = tvm_interop.compile(model, shapes={"batch": (1, 9)}, most_sizes=3, **QUICK)
    module, rng = GraphModule(artifact), np.random.default_rng(0)
    for rows in (1, 2, 5, 9):
        feed = {"x": rng.standard_normal((rows, 4)).astype(np.float32)}
        if len(model.graph.input) > 1:
            feed["flag"] = np.array(rows % 2 == 0)
        np.testing.assert_allclose(module(feed)[0], theirs(model, feed)[0], atol=1e-5)
