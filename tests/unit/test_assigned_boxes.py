"""Tests scatters with constant indices, as PyTorch exports an assignment to a slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tvm_interop
from tests.masked_nets import theirs
from tests.nets import Net
from tests.one_node import computed
from tvm_interop.execution.graph_module import GraphModule
from tvm_interop.frontend.load import load_model

SHAPE = (3, 4, 5)


def grid(*parts: Any) -> np.ndarray:
    """The indices of all combinations of the parts. Each part is an array, or a single number."""
    return np.stack(np.broadcast_arrays(*parts), -1).astype(np.int64)


def at(axis: int, numbers: Any, rank: int = 2) -> np.ndarray:
    return np.array(numbers).reshape([-1 if a == axis else 1 for a in range(rank)])


BOXES = {
    "one axis": grid(at(0, range(3)), at(1, range(1, 3))),
    "all axes": grid(at(0, range(1, 3), 3), at(1, range(4), 3), at(2, range(2, 5), 3)),
    "inner axes": grid(at(0, [1], 3), at(1, range(1, 3), 3), at(2, range(1, 4), 3)),
    "other order": grid(at(1, range(2)), at(0, range(1, 4))),
    "one number": grid(at(0, range(3), 1), np.full(3, 2)),
    "one row": np.array([[1]]),
    "all elements": grid(at(0, range(3)), at(1, range(4))),
    "from the end": grid(at(0, [-3, -2, -1]), at(1, [-2, -1])),
}
OTHERS = {
    "gaps": grid(at(0, range(3)), at(1, [0, 2])),
    "backwards": grid(at(0, [2, 1, 0]), at(1, [1, 2])),
    "no box": np.array([[0, 1], [2, 2], [1, 0]]),
    "diagonal": grid(at(0, range(3), 1), at(0, range(3), 1)),
}


def scattered(indices: np.ndarray, **attrs: Any) -> onnx.ModelProto:
    net = Net()
    net.input("x", SHAPE)
    net.input("z", [*indices.shape[:-1], *SHAPE[indices.shape[-1] :]])
    net.op("ScatterND", ["x", net.constant(indices), "z"], "y", **attrs)
    return net.model("y", check=False)


def feed_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        value.name: rng.standard_normal(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in model.graph.input
    }


def has_scatter(model: onnx.ModelProto) -> bool:
    return "relax.scatter" in load_model(model).script() or "R.scatter" in str(load_model(model))


@pytest.mark.parametrize("name", [*BOXES, *OTHERS])
def test_assigned_elements_are_those_of_onnxruntime(name: str) -> None:
    model = scattered({**BOXES, **OTHERS}[name])
    feed = feed_of(model)
    np.testing.assert_array_equal(computed(model, feed)[0], theirs(model, feed)[0])
    assert has_scatter(model) == (name in OTHERS)


def test_a_box_that_is_added_stays_a_scatter() -> None:
    model = scattered(BOXES["one axis"], reduction="add")
    feed = feed_of(model)
    np.testing.assert_allclose(computed(model, feed)[0], theirs(model, feed)[0], atol=1e-6)
    assert has_scatter(model)


@pytest.mark.parametrize(
    ("axis", "numbers", "sizes", "is_box"),
    [
        (1, [2], (3, 1, 5), True), (1, [1, 2], (3, 2, 5), True), (2, [3, 4], (2, 3, 2), True),
        (-3, [1], (1, 4, 5), True), (0, [0, 1, 2], (3, 4, 5), True), (1, [0, 2], (3, 2, 5), False),
        (1, [2, 1], (3, 2, 5), False), (1, [-1], (3, 1, 5), True),
    ],
)  # fmt: skip
def test_elements_assigned_along_one_axis(
    axis: int, numbers: list[int], sizes: tuple[int, ...], is_box: bool
) -> None:
    net = Net()
    net.input("x", SHAPE)
    net.input("z", sizes)
    indices = np.broadcast_to(at(axis % 3, numbers, 3), sizes).astype(np.int64)
    net.op("ScatterElements", ["x", net.constant(indices), "z"], "y", axis=axis)
    model = net.model("y", check=False)
    feed = feed_of(model)
    np.testing.assert_array_equal(computed(model, feed)[0], theirs(model, feed)[0])
    assert has_scatter(model) != is_box


def test_an_assignment_to_a_slice_leaves_rows_independent() -> None:
    """`y[:, 1:] = x[:, :-1]; y[:, 0] = 2`, as PyTorch's older exporter writes it, for any batch."""
    net = Net()
    x = net.input("x", ["batch", 6], TensorProto.INT64)

    def ints(*numbers: int) -> str:
        return net.constant(np.array(numbers, np.int64))

    batch = net.op("Slice", [net.op("Shape", [x], "shape"), ints(0), ints(1)], "batch")
    rows = net.op("Range", [net.constant(np.array(0)), net.op("Squeeze", ["batch"], "n"),
                  net.constant(np.array(1))], "rows")  # fmt: skip
    column = net.op("Unsqueeze", [rows, ints(1)], "column")
    zeros = net.op("ConstantOfShape", ["shape"], "zeros",
                   value=onnx.numpy_helper.from_array(np.zeros(1, np.int64)))  # fmt: skip
    wide = net.op("Concat", [batch, ints(5)], "wide", axis=0)
    places = [net.op("Expand", [each, wide], f"expanded{i}")
              for i, each in enumerate((column, ints(1, 2, 3, 4, 5)))]  # fmt: skip
    deep = [net.op("Unsqueeze", [each, ints(2)], f"{each}_deep") for each in places]
    moved = net.op("Slice", [x, ints(0), ints(5), ints(1)], "moved")
    shifted = net.op("ScatterND", [zeros, net.op("Concat", deep, "at", axis=2), moved], "shifted")
    first = net.op("Concat", [column, net.op("Mul", [column, ints(0)], "zero")], "first", axis=1)
    net.op("ScatterND", [shifted, first, net.op("Expand", [ints(2), batch], "twos")], "y")
    model = net.model("y", check=False)
    artifact = tvm_interop.compile(
        model, shapes={"batch": (1, 9)}, most_sizes=3, scheduler="sequential", time_budget=0
    )
    assert artifact.manifest.batch_sizes == (1, 4, 9)
    for count in (1, 2, 3, 7, 9):
        ids = np.random.default_rng(count).integers(3, 9, (count, 6))
        found = np.asarray(GraphModule(artifact)(ids)[0])
        np.testing.assert_array_equal(found[:, 1:], ids[:, :-1])
        assert (found[:, 0] == 2).all()
