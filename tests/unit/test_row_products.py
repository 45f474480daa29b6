"""Tests that a row is multiplied by a transposed tensor without transposing it."""

from __future__ import annotations

from collections.abc import Sequence

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


def net_of(
    row: Sequence[int],
    keys: Sequence[int],
    order: Sequence[int],
    leads: Sequence[int] | None = None,
    also: bool = False,
) -> onnx.ModelProto:
    """A product of `row` and transposed `keys`, plus 1.

    Parameters
    ----------
    leads: the leading axes of the transposed keys after a reshape; None for no reshape.
    also: whether the model also returns the transposed keys.
    """
    net = Net()
    net.input("row", list(row))
    net.input("keys", list(keys))
    turned = net.op("Transpose", ["keys"], "turned", perm=list(order))
    if leads is not None:
        ends = [keys[-1], keys[-2]]
        turned = net.op("Reshape", [turned, net.constant(np.array([*leads, *ends]))], "reshaped")
    net.op("MatMul", ["row", turned], "scores")
    outputs = [net.op("Add", ["scores", net.constant(np.float32([1]))], "y")]
    return net.model(*outputs, *(["turned"] if also else []), check=False)


def kernels_of(made: onnx.ModelProto) -> list[str]:
    return [op.kernel for op in extract(LowerToUnits("llvm")(load_model(made))).operators]


UNTURNED = {
    "several heads": net_of((1, 3, 1, 8), (1, 3, 20, 8), (0, 1, 3, 2)),
    "a matrix": net_of((1, 8), (20, 8), (1, 0)),
    "one row for several matrices": net_of((1, 8), (3, 20, 8), (0, 2, 1)),
    "reshaped heads": net_of((1, 3, 1, 8), (3, 20, 8), (0, 2, 1), leads=(1, 3)),
}
TURNED = {
    "several rows of one matrix": net_of((3, 1, 8), (20, 8), (1, 0)),
    "two rows": net_of((1, 3, 2, 8), (1, 3, 20, 8), (0, 1, 3, 2)),
    "another order": net_of((3, 1, 8), (20, 3, 8), (1, 2, 0)),
    "an output itself": net_of((1, 3, 1, 8), (1, 3, 20, 8), (0, 1, 3, 2), also=True),
}


@pytest.mark.parametrize("made", UNTURNED.values(), ids=UNTURNED)
def test_nothing_is_transposed(made: onnx.ModelProto) -> None:
    assert not [name for name in kernels_of(made) if "transpose" in name]


@pytest.mark.parametrize("made", TURNED.values(), ids=TURNED)
def test_what_is_transposed(made: onnx.ModelProto) -> None:
    assert [name for name in kernels_of(made) if "transpose" in name]


@pytest.mark.parametrize("name", UNTURNED | TURNED)
def test_results_are_right(name: str) -> None:
    made = (UNTURNED | TURNED)[name]
    rng = np.random.default_rng(0)
    feed = {
        given.name: rng.standard_normal(
            [dim.dim_value for dim in given.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for given in made.graph.input
    }
    ours = GraphModule(
        tvm_interop.compile(made, scheduler="sequential", providers=["tvm"], time_budget=0)
    )(feed)
    for one, other in zip(ours, theirs(made, feed), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
