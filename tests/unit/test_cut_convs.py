"""Tests that convolutions do not compute results that are cut off afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.masked_nets import theirs
from tests.nets import Net
from tvm_interop.execution.graph_module import GraphModule
from tvm_interop.frontend.load import load_model
from tvm_interop.lowering.extract import extract
from tvm_interop.lowering.lower import LowerToUnits

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}


def net_of(
    pads: tuple[int, int],
    ends: tuple[int, int],
    *,
    stride: int = 1,
    step: int = 1,
    with_bias: bool = True,
    axis: int = 2,
    also: Callable[[Net], str] | None = None,
) -> onnx.ModelProto:
    """A convolution of ten positions. Only a part of its results is used."""
    net = Net()
    weights = [net.weight(5, 3, 3), *([net.weight(5)] if with_bias else [])]
    net.input("x", [2, 3, 10])
    net.op("Conv", ["x", *weights], "c", kernel_shape=[3], pads=list(pads), strides=[stride])
    begin, end, along, by = (net.constant(np.array([n])) for n in (*ends, axis, step))
    outputs = [net.op("Slice", ["c", begin, end, along, by], "y")]
    return net.model(*outputs, *([also(net)] if also else []), check=False)


def convolved(made: onnx.ModelProto) -> int:
    """How many positions the convolution of the lowered model computes."""
    program = extract(LowerToUnits("llvm")(load_model(made)))
    conv = next(op for op in program.operators if "conv" in op.kernel)
    return program.values[conv.outputs[0]].shape[-1]


CUT = {
    "with a bias": net_of((2, 2), (0, 10)),
    "without a bias": net_of((2, 2), (0, 10), with_bias=False),
    "not all padding": net_of((2, 2), (0, 11)),
    "counted from the last axis": net_of((2, 2), (0, 10), axis=-1),
    "padded at the end alone": net_of((0, 2), (0, 9)),
}
LEFT = {
    "more than the padding": net_of((2, 1), (0, 9)),
    "at the beginning": net_of((2, 2), (2, 12)),
    "at the beginning of the last axis": net_of((2, 2), (2, 12), axis=-1),
    "with a stride": net_of((2, 2), (0, 5), stride=2),
    "in steps": net_of((2, 2), (0, 10), step=2),
    "read elsewhere": net_of((2, 2), (0, 10), also=lambda net: net.op("Relu", ["c"], "z")),
    "an output itself": net_of((2, 2), (0, 10), also=lambda net: "c"),
}


@pytest.mark.parametrize("name", CUT | LEFT)
def test_results_are_right(name: str) -> None:
    made = (CUT | LEFT)[name]
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 10)).astype(np.float32)}
    ours = GraphModule(tvm_interop.compile(made, **QUICK))(feed)
    for one, other in zip(ours, theirs(made, feed), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CUT)
def test_what_is_cut_off_is_not_computed(name: str) -> None:
    made = CUT[name]
    kept = {"not all padding": 11, "padded at the end alone": 9}
    assert convolved(made) == kept.get(name, 10)


@pytest.mark.parametrize("name", LEFT)
def test_other_convolutions_stay(name: str) -> None:
    whole = {"more than the padding": 11, "with a stride": 6}
    assert convolved(LEFT[name]) == whole.get(name, 12)
