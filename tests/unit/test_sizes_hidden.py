"""Tests models that make numbers from sizes without reading a shape, and ask whether the size is 7.

The compiled sizes show nothing about this question, because 7 is not among them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.nets import Net
from tests.pair_nets import proven
from tvm_interop.compiler.row_ranges import Ranges
from tvm_interop.errors import InputError

ROWS: Ranges = {"n": (1, 9)}
PAIR: Ranges = {"batch": (1, 3), "seq": (1, 9)}
_SCALAR: list[int] = []


class _Net(Net):
    """A net with the input `x`, whose first dimensions are open."""

    def __init__(self, *dims: str) -> None:
        super().__init__()
        self._count = 0
        self.input("x", [*(dims or ("n",)), 4])

    def do(self, kind: str, *inputs: str, **attrs: Any) -> str:
        self._count += 1
        return self.op(kind, inputs, f"t{self._count}", **attrs)

    def whole(self, *values: int) -> str:
        return self.constant(np.array(values[0] if len(values) == 1 else values, np.int64))

    def whole_list(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def size(self, axis: int) -> str:
        return self.do("Gather", self.do("Shape", "x"), self.whole(axis))

    def asks(self, number: str, wanted: int = 7, data: str = "x") -> onnx.ModelProto:
        """The model that doubles `data` if `number` has the value `wanted`."""
        number = self.do("Cast", number, to=TensorProto.FLOAT)
        is_it = self.do("Equal", number, self.constant(np.array(wanted, np.float32)))
        more = self.do("Cast", is_it, to=TensorProto.FLOAT)
        self.op("Mul", [data, self.do("Add", more, self.constant(np.float32(1)))], "y")
        return self.model("y", opset=18, check=False)


def _value(name: str, dtype: int = TensorProto.FLOAT, shape: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _counting(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    """The body of a `Loop` with a state to which each iteration adds 1, unless `nodes` compute it.
    All tensors begin with `name`."""
    one = onnx.numpy_helper.from_array(np.array(1), f"{name}one")
    made = nodes or (helper.make_node("Add", [f"{name}s", f"{name}one"], [f"{name}t"]),)
    go_on = helper.make_node("Identity", [f"{name}go"], [f"{name}more"])
    inputs = [
        _value(f"{name}i", TensorProto.INT64, _SCALAR), _value(f"{name}go", 9, _SCALAR),
        _value(f"{name}s", TensorProto.INT64, _SCALAR),
    ]  # fmt: skip
    outputs = [_value(f"{name}more", 9, _SCALAR), _value(f"{name}t", TensorProto.INT64, _SCALAR)]
    return helper.make_graph([*made, go_on], "body", inputs, outputs, [one])


def _parts(net: _Net) -> onnx.ModelProto:
    return net.asks(net.do("SequenceLength", net.do("SplitToSequence", "x", axis=0)))


def _parts_after_others(net: _Net) -> onnx.ModelProto:
    parts = net.do("SplitToSequence", "x", axis=0)
    return net.asks(net.do("SequenceLength", net.do("SequenceErase", parts)), 6)


def _parts_within_a_loop(net: _Net) -> onnx.ModelProto:
    parts = net.do("SplitToSequence", "x", axis=0)
    body = _counting("b", helper.make_node("SequenceLength", [parts], ["bt"], name="inner"))
    return net.asks(net.do("Loop", net.whole(1), "", net.whole(0), body=body))


def _iterations(net: _Net) -> onnx.ModelProto:
    """A loop with a state for data too, so that it does not compute from numbers alone."""
    body = _counting("b")
    body.input.append(_value("bd"))
    body.output.append(_value("be"))
    body.node.append(helper.make_node("Identity", ["bd"], ["be"]))
    net.op("Loop", [net.size(0), "", net.whole(0), "x"], "k", "d", body=body)
    return net.asks("k", data="d")


def _iterations_within_a_loop(net: _Net) -> onnx.ModelProto:
    inner = helper.make_node("Loop", [net.size(0), "", "bs"], ["bt"], body=_counting("c"))
    body = _counting("b", inner)
    body.input.append(_value("bd"))
    body.output.append(_value("be"))
    body.node.append(helper.make_node("Identity", ["bd"], ["be"]))
    net.op("Loop", [net.whole(1), "", net.whole(0), "x"], "k", "d", body=body)
    return net.asks("k", data="d")


def _steps(net: _Net) -> onnx.ModelProto:
    body = _counting("b")
    state, more = body.input[2], body.output[1]
    made = helper.make_graph(
        body.node[:1], "body", [state, _value("element")], [more], body.initializer
    )
    return net.asks(net.do("Scan", net.whole(0), "x", body=made, num_scan_inputs=1))


def _diagonal(net: _Net) -> onnx.ModelProto:
    """One element of the diagonal lies within the tensor only if the size is 7."""
    return net.asks(net.do("ReduceSum", net.do("EyeLike", "x", k=-6), keepdims=0), 1)


def _kept_elements(net: _Net) -> onnx.ModelProto:
    net.op("Dropout", ["x"], "kept", "are_kept")
    ones = net.do("Cast", "are_kept", to=TensorProto.FLOAT)
    return net.asks(net.do("ReduceSum", ones, keepdims=0), 28, data="kept")


def _products_of_nothing(net: _Net) -> onnx.ModelProto:
    none = net.do("Slice", "x", *(net.constant(np.array([each])) for each in (0, 0, 1)))
    ones = net.do("ReduceProd", none, net.constant(np.array([1])), keepdims=0)
    return net.asks(net.do("ReduceSum", ones, keepdims=0))


def _with_many_zeros(net: _Net) -> onnx.ModelProto:
    """Constants that are too large to be followed, and computed from constants alone."""
    zeros = net.do("ConstantOfShape", net.whole(300, 300))
    sums = net.do("Add", net.do("Cast", zeros, to=TensorProto.INT64), net.size(0))
    return net.asks(net.do("ReduceMax", sums, keepdims=0))


def _product_by_another_operator(net: _Net) -> onnx.ModelProto:
    """ONNX's reference lacks `FusedMatMul`. The ones are the same for all sizes, but not a sum."""
    one = onnx.numpy_helper.from_array(np.array([1], np.float32))
    ones = net.do("ConstantOfShape", net.do("Shape", "x"), value=one)
    net._nodes.append(
        helper.make_node("FusedMatMul", [ones, ones], ["product"], name="product",
                         domain="com.microsoft", transA=1)
    )  # fmt: skip
    model = net.asks(net.do("ReduceMax", "product", keepdims=0))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def _sum_within_a_loop(net: _Net) -> onnx.ModelProto:
    """The first positions are the same for all sizes, but their sum is not."""
    positions = net.do("Range", net.whole(0), net.size(0), net.whole(1))
    total = helper.make_node("ReduceSum", [positions], ["bt"], keepdims=0)
    body = _counting("b", total)
    body.input.append(_value("bd"))
    body.output.append(_value("be"))
    body.node.append(helper.make_node("Identity", ["bd"], ["be"]))
    net.op("Loop", [net.whole(1), "", net.whole(0), "x"], "k", "d", body=body)
    return net.asks("k", 21, data="d")


def _by_a_constant_condition(net: _Net) -> onnx.ModelProto:
    """The condition is a constant that is not followed: the length of a sequence."""
    parts = net.do("SplitToSequence", net.whole(1, 2), axis=0)
    is_two = net.do("Equal", net.do("SequenceLength", parts), net.whole(2))
    size, one = net.size(0), net.whole(1)
    then = helper.make_graph(
        [helper.make_node("Identity", [size], ["p"])], "then", [], [_value("p", 7, _SCALAR)]
    )
    other = helper.make_graph(
        [helper.make_node("Identity", [one], ["q"])], "else", [], [_value("q", 7, _SCALAR)]
    )
    return net.asks(net.do("If", is_two, then_branch=then, else_branch=other))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (_with_many_zeros, "node `t5/Add` computes further numbers from `t4`"),
        (_product_by_another_operator, "node `product` computes further numbers from `t2`"),
        (_sum_within_a_loop, "node `k/Loop` computes further numbers from `t3`"),
        (_by_a_constant_condition, "node `t6/If` computes further numbers from `t5`"),
        (_parts, "node `t2/SequenceLength` counts the tensors of `t1`"),
        (_parts_after_others, "node `t3/SequenceLength` counts the tensors of `t2`"),
        (_parts_within_a_loop, "node `inner` counts the tensors of `t1`"),
        (_iterations, "node `k/Loop` computes further numbers from `t2`"),
        (_iterations_within_a_loop, "node `k/Loop` computes further numbers from `t2`"),
        (_steps, "node `t1/Scan` takes a step for each index of `x`"),
        (_diagonal, "node `t1/EyeLike` makes numbers from the shape of `x`"),
        (_kept_elements, "node `kept/Dropout` makes numbers from the shape of `x`"),
        (_products_of_nothing, "node `t2/ReduceProd` makes numbers from the shape of `t1`"),
    ],
)
def test_a_number_from_a_size_without_a_shape_is_refused(
    make: Callable[[_Net], onnx.ModelProto], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        proven(make(_Net()), ROWS)


def _not_in_order(net: _Net, tmp_path: Path) -> onnx.ModelProto:
    """onnxruntime sorts the nodes of a model."""
    model = net.asks(net.size(0))
    nodes = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _of_sparse_weights(net: _Net, tmp_path: Path) -> onnx.ModelProto:
    values = onnx.numpy_helper.from_array(np.array([1], np.int64), "sparse")
    indices = onnx.numpy_helper.from_array(np.array([1], np.int64))
    model = net.asks(net.do("ReduceMax", net.do("Mul", net.size(0), "sparse"), keepdims=0))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    return model


def _of_weights_in_the_file(net: _Net, tmp_path: Path) -> Path:
    """Large weights are read from the model's file when they are needed."""
    zeros = net.constant(np.zeros((512, 512), np.float32))
    size = net.do("Cast", net.size(0), to=TensorProto.FLOAT)
    onnx.save(net.asks(net.do("ReduceMax", net.do("Add", zeros, size))), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("make", [_not_in_order, _of_sparse_weights, _of_weights_in_the_file])
def test_numbers_are_followed_as_the_model_is_compiled(
    make: Callable[[_Net, Path], Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"uses the numbers of .* do not grow evenly"):
        proven(make(_Net(), tmp_path), ROWS)


def test_rows_of_a_table_that_is_not_followed_are_fine() -> None:
    """The table of positions is too large to be followed, since a node computes it."""
    net = _Net("batch", "seq")
    table = net.constant((np.arange(80000.0).reshape(-1, 4) % 100).astype(np.float16))
    table = net.do("Cast", table, to=TensorProto.FLOAT)
    rows = net.do("Gather", table, net.do("Range", net.whole(0), net.size(1), net.whole(1)))
    ends = net.do("Unsqueeze", net.size(1), net.whole_list(0))
    first = net.do("Slice", table, net.whole_list(0), ends, net.whole_list(0))
    rows = net.do("Unsqueeze", net.do("Add", rows, first), net.whole_list(0))
    # ONNX's reference refuses indices of another shape than the data, as in exports of BERT.
    zeros = net.do("Cast", net.constant(np.zeros((120, 600), np.int32)), to=TensorProto.FLOAT)
    at = net.do("Unsqueeze", net.do("Range", net.whole(0), net.size(1), net.whole(1)),
                net.whole_list(0))  # fmt: skip
    kinds = net.do("Unsqueeze", net.do("GatherElements", zeros, at, axis=1), net.whole_list(2))
    net.op("Add", ["x", net.do("Add", rows, kinds)], "y")
    assert proven(net.model("y", check=False), PAIR).dimension == "batch"


def test_numbers_that_no_size_changes_are_fine() -> None:
    net = _Net()
    parts = net.do("SplitToSequence", "x", net.whole(2), axis=1)
    body = _counting("b")
    steps = net.do("Loop", net.whole(3), "", net.do("SequenceLength", parts), body=body)
    assert proven(net.asks(net.do("Add", steps, net.whole(2))), ROWS).dimension == "n"


def _branch(*nodes: tuple[str, list[str], str], **attrs: Any) -> onnx.GraphProto:
    made = [helper.make_node(kind, names, [out], name=out) for kind, names, out in nodes]
    for node in made:
        if node.op_type == "Cast":
            node.attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    return helper.make_graph(made, "branch", [], [onnx.ValueInfoProto(name=nodes[-1][2])])


def _if_one_row(net: _Net, then: onnx.GraphProto) -> onnx.ModelProto:
    is_one = net.do("Equal", net.size(0), net.whole(1))
    other = _branch(("Neg", ["x"], "neg"))
    net.op("If", [is_one], "y", then_branch=then, else_branch=other)
    return net.model("y", check=False)


def test_sizes_in_a_branch_for_a_single_row_are_refused() -> None:
    """The branch for a batch of 1 asks whether the length is 7."""
    net = _Net("batch", "seq")
    axis, seven = net.whole(1), net.whole(7)
    then = _branch(
        ("Shape", ["x"], "shape"), ("Gather", ["shape", axis], "length"),
        ("Equal", ["length", seven], "is"), ("Cast", ["is"], "f"), ("Mul", ["x", "f"], "product"),
    )  # fmt: skip
    with pytest.raises(InputError, match="node `y/If` takes another branch where a dimension has"):
        proven(_if_one_row(net, then), PAIR)


def test_a_branch_for_a_single_row_without_sizes_is_fine() -> None:
    net = _Net("batch", "seq")
    first = net.constant(np.array([0], np.int64))
    then = _branch(("Squeeze", ["x", first], "row"), ("Unsqueeze", ["row", first], "rows"))
    assert proven(_if_one_row(net, then), PAIR).dimension == "batch"


def test_a_shape_with_fewer_axes_for_a_single_row_is_followed() -> None:
    """`Squeeze` removes the axis of a batch of 1. The first size is then the length."""
    net = _Net("batch", "seq")
    first = net.do("Gather", net.do("Shape", net.do("Squeeze", "x")), net.whole(0))
    with pytest.raises(InputError, match=r"node `y/Mul` uses the numbers of .* do not grow evenly"):
        proven(net.asks(first), PAIR)
    net = _Net("batch", "seq")
    shape = net.do("Shape", net.do("Squeeze", "x"))
    length = net.do("Slice", shape, net.constant(np.array([-2])), net.constant(np.array([-1])))
    shape = net.do("Concat", net.constant(np.array([-1])), length, net.constant(np.array([4])),
                   axis=0)  # fmt: skip
    net.op("Relu", [net.do("Reshape", "x", shape)], "y")
    assert proven(net.model("y", check=False), PAIR).dimension == "batch"
