"""Tests `GatherND` with constant indices, as PyTorch exports `mask[rows, columns]`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.masked_nets import LOWEST, Masked, model, proof, theirs
from tests.nets import Net
from tests.one_node import computed
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
