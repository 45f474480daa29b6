"""Tests `GatherND` with constant indices, as PyTorch exports `mask[rows, columns]`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tvm_interop
from tests.masked_nets import LOWEST, Masked, model, proof, theirs
from tests.nets import Net
from tests.one_node import computed
from tvm_interop.execution.graph_module import GraphModule
from tvm_interop.frontend.load import load_model
from tvm_interop.lowering.independent_rows import RowsDependError
from tvm_interop.lowering.masked_positions import Masks

SHAPE = (3, 4, 5)


def grid(*parts: np.ndarray) -> np.ndarray:
    return np.stack(np.broadcast_arrays(*parts), -1).astype(np.int64)


def along(axis: int, numbers: range | list[int], rank: int = 3) -> np.ndarray:
    return np.array(numbers).reshape([-1 if a == axis else 1 for a in range(rank)])


ALL = [range(size) for size in SHAPE]
GRIDS = {
    "rows and columns": grid(along(0, ALL[0]), along(2, ALL[1])),
    "repeated": np.broadcast_to(grid(along(0, ALL[0]), along(2, ALL[1])), (3, 6, 4, 2)),
    "other order": grid(along(2, ALL[0]), along(0, ALL[1])),
    "three components": grid(along(1, ALL[0]), along(2, ALL[1]), along(0, ALL[2])),
    "one component": grid(along(1, ALL[0])),
    "one number": grid(along(2, [1]), along(0, ALL[1])),
    "one number before another": grid(along(0, ALL[0]), along(1, [2]), along(1, ALL[2])),
    "numbers alone": grid(along(0, [1]), along(0, [2])),
    "some of them": grid(along(0, [2, 0]), along(1, [3, 3, 1, 0, 2])),
    "from the end": grid(along(0, [-1, 0]), along(1, [-1, -4])),
    "no grid": np.array([[0, 1], [2, 2], [1, 0]]),
    "the same axis": grid(along(0, ALL[0]), along(0, [0, 2, 1])),
}


def gathered(indices: np.ndarray, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    net = Net()
    net.input("x", SHAPE, kind)
    return net.model(net.op("GatherND", ["x", net.constant(indices)], "y"), check=False)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.BOOL])
@pytest.mark.parametrize("name", GRIDS)
def test_elements_are_those_of_onnxruntime(name: str, kind: int) -> None:
    made = gathered(GRIDS[name], kind)
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    feed = {"x": x if kind == TensorProto.FLOAT else x > 0}
    np.testing.assert_array_equal(computed(made, feed)[0], theirs(made, feed)[0])


def test_a_grid_looks_no_places_up() -> None:
    calls = [str(load_model(gathered(GRIDS[name]))) for name in ("repeated", "no grid")]
    assert ["gather_nd" in call for call in calls] == [False, True]


def mask_by_places(net: Masked, shift: int = 0, step: int = 1) -> str:
    """A mask that is read by the indices of rows and of positions."""
    zero, one = net.number(0, np.int64), net.number(1, np.int64)
    batch = net.do("Gather", net.do("Shape", "x"), zero)
    rows = net.do("Unsqueeze", net.do("Range", zero, batch, one), net.ints(1, 2))
    at = net.do("Mul", net.positions(), net.number(step, np.int64))
    at = net.do("Add", at, net.number(shift, np.int64))
    at = net.do("Min", net.do("Abs", at), net.do("Sub", net.length(), one))
    at = net.do("Unsqueeze", at, net.ints(0, 1))
    shape = net.do("Shape", net.do("Max", rows, at))
    parts = [
        net.do("Unsqueeze", net.do("Expand", part, shape), net.ints(-1)) for part in (rows, at)
    ]
    given = net.do("Cast", "mask", to=TensorProto.BOOL)
    found = net.do("GatherND", given, net.do("Concat", *parts, axis=-1))
    left_out = net.do("Where", found, net.number(0), net.number(LOWEST))
    return net.mixed(net.do("Add", net.scores(), left_out))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_mask_that_is_read_by_places_is_proven(batch: int) -> None:
    found = proof(model(mask_by_places, batch=batch))
    assert found == Masks(("mask",), "any" if batch == 1 else "first")


@pytest.mark.parametrize(("shift", "step"), [(1, 1), (-1, 1), (-3, 1), (0, 2), (0, 0)])
def test_a_mask_of_other_positions_is_refused(shift: int, step: int) -> None:
    """If the mask is read at shifted positions, padded positions could count, or given positions
    could be left out."""
    with pytest.raises(RowsDependError):
        proof(model(lambda net: mask_by_places(net, shift, step)))


def _of_rows(components: int, first: list[int] | None = None) -> onnx.ModelProto:
    """`x[rows, best]`, or `x[rows, columns, best]`, where `rows` and `columns` number all rows and
    columns. If `first` is given, it replaces the numbers of the three rows."""
    net = Net()
    net.input("x", ["batch" if first is None else 3, 4, 5])
    best = net.input("best", ["batch" if first is None else 3, *[4][: components - 2]],
                     TensorProto.INT64)  # fmt: skip
    last = net.constant(np.array([components - 1]))
    zero, one, axis = (net.constant(np.array(number)) for number in (0, 1, [0]))
    count = net.op("Squeeze", [net.op("Slice", [net.op("Shape", ["x"], "s"), axis,
                   net.constant(np.array([1]))], "b"), axis], "n")  # fmt: skip
    rows = net.op("Range", [zero, count, one], "rows")
    if first is not None:
        rows = net.constant(np.array(first))
    parts = [net.op("Unsqueeze", [rows, net.constant(np.arange(1, components))], "row")]
    if components == 3:
        target = net.op("Concat", [net.op("Shape", [best], "t"), net.constant(np.array([1]))],
                        "target", axis=0)  # fmt: skip
        columns = net.constant(np.arange(4).reshape(1, 4, 1))
        parts = [net.op("Expand", [each, target], f"wide{i}")
                 for i, each in enumerate((parts[0], columns))]  # fmt: skip
    parts.append(net.op("Unsqueeze", [best, last], "deep"))
    net.op("GatherND", ["x", net.op("Concat", parts, "at", axis=-1)], "y")
    return net.model("y", check=False)


@pytest.mark.parametrize("components", [2, 3])
def test_indices_that_number_the_rows_leave_them_independent(components: int) -> None:
    model, rng = _of_rows(components), np.random.default_rng(0)
    artifact = tvm_interop.compile(
        model, shapes={"batch": (1, 9)}, most_sizes=3, scheduler="sequential", time_budget=0
    )
    module = GraphModule(artifact)
    assert artifact.manifest.batch_sizes == (1, 4, 9)
    for rows in (1, 2, 3, 7, 9):
        shape = (rows, 4)[: components - 1]
        size = 4 if components == 2 else 5
        feed = {
            "x": rng.standard_normal((rows, 4, 5)).astype(np.float32),
            "best": rng.integers(-size, size, shape),
        }
        np.testing.assert_array_equal(np.asarray(module(feed)[0]), theirs(model, feed)[0])


@pytest.mark.parametrize("first", [[0, 1, 2], [0, 2, 1], [1, 1, 0]])
def test_other_numbers_than_those_of_the_rows_are_looked_up(first: list[int]) -> None:
    model, rng = _of_rows(2, first), np.random.default_rng(0)
    feed = {
        "x": rng.standard_normal((3, 4, 5)).astype(np.float32),
        "best": rng.integers(0, 4, 3),
    }
    np.testing.assert_array_equal(computed(model, feed)[0], theirs(model, feed)[0])
    has_batches = "batch_dims=1" in str(load_model(model))
    assert has_batches == (first == [0, 1, 2])


def _flattened(best: str, step: int = 4) -> onnx.ModelProto:
    """`x[rows, best]` as PyTorch's older exporter writes it: a `Gather` from the flattened rows."""
    net = Net()
    net.input("x", ["batch", 4, 5])
    net.input("scores", ["batch", 4, 1])
    zero, one = (net.constant(np.array(number)) for number in (0, 1))
    count = net.op("Gather", [net.op("Shape", ["x"], "s"), zero], "n")
    begins = net.op("Mul", [net.op("Range", [zero, count, one], "rows"),
                    net.constant(np.array(step))], "begins")  # fmt: skip
    if best == "ArgMax":
        found = net.op("ArgMax", ["scores"], "wide", axis=1, keepdims=0)
    else:
        total = net.op("ReduceSum", ["scores", net.constant(np.array([1]))], "sum", keepdims=0)
        found = net.op("Cast", [total], "wide", to=TensorProto.INT64)
    found = net.op("Squeeze", [found, net.constant(np.array([1]))], "best")
    flat = net.op("Reshape", ["x", net.constant(np.array([-1, 5]))], "flat")
    net.op("Gather", [flat, net.op("Add", [found, begins], "at")], "y")
    return net.model("y", check=False)


def _scores(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    return {
        "x": rng.standard_normal((rows, 4, 5)).astype(np.float32),
        "scores": rng.random((rows, 4, 1)).astype(np.float32) / 4,
    }


def test_the_best_elements_of_flattened_rows_leave_them_independent() -> None:
    model = _flattened("ArgMax")
    artifact = tvm_interop.compile(
        model, shapes={"batch": (1, 9)}, most_sizes=3, scheduler="sequential", time_budget=0
    )
    assert artifact.manifest.batch_sizes == (1, 4, 9)
    module = GraphModule(artifact)
    for rows in (1, 2, 3, 7, 9):
        feed = _scores(rows)
        np.testing.assert_array_equal(np.asarray(module(feed)[0]), theirs(model, feed)[0])


@pytest.mark.parametrize(
    ("best", "step", "is_of_rows"), [("ArgMax", 4, True), ("ArgMax", 3, False), ("Cast", 4, False)]
)
def test_places_in_other_rows_are_looked_up(best: str, step: int, is_of_rows: bool) -> None:
    model, feed = _flattened(best, step), _scores(3)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 3
    np.testing.assert_array_equal(computed(model, feed)[0], theirs(model, feed)[0])
    assert ("gather_nd" in str(load_model(model))) == is_of_rows
