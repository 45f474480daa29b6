"""Tests the values that a model computes from its sizes, and whether they stay the same for a
whole range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_interop
from tests.masked_nets import Masked
from tests.nets import Net
from tests.pair_nets import proven
from tvm_interop.artifact.manifest import RowSizes
from tvm_interop.errors import InputError
from tvm_interop.frontend import size_values
from tvm_interop.frontend.even_growth import Growth, Law

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}


class _Rows(Net):
    """A net with the input `x` of shape (batch, 4), and its batch size as the tensor `n`."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.input("x", ["batch", *(shape or (4,))])
        self.op("Gather", [self.op("Shape", ["x"], "shape"), self.whole(0)], "n")

    def whole(self, *values: int) -> str:
        return self.constant(np.array(values[0] if len(values) == 1 else values, np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def times(self, factor: str) -> onnx.ModelProto:
        self.op("Mul", ["x", self.op("Cast", [factor], "factor", to=1)], "y")
        return self.model("y", check=False)


def _branch(*nodes: tuple[str, list[str], str]) -> onnx.GraphProto:
    made = [helper.make_node(kind, names, [out], name=out) for kind, names, out in nodes]
    return helper.make_graph(made, "branch", [], [onnx.ValueInfoProto(name=nodes[-1][2])])


def _if_batch_is(size: int) -> onnx.ModelProto:
    net = _Rows()
    net.op("Equal", ["n", net.whole(size)], "is")
    branches = {f"{name}_branch": _branch((kind, ["x"], name))
                for name, kind in (("then", "Relu"), ("else", "Neg"))}  # fmt: skip
    net.op("If", ["is"], "y", **branches)
    return net.model("y", check=False)


def _factor_if_batch_is(size: int) -> onnx.ModelProto:
    net = _Rows()
    net.op("Equal", ["n", net.whole(size)], "is")
    return net.times(net.op("Where", ["is", net.number(2), net.number(3)], "chosen"))


def _sum_of_positions_is_21() -> onnx.ModelProto:
    """Compares a sum over a growing tensor with the sum over 7 rows."""
    net = _Rows()
    ones = net.op("ConstantOfShape", [net.op("Unsqueeze", ["n", net.constant(
        np.array([0], np.int64))], "wide")], "zeros")  # fmt: skip
    at = net.op("Squeeze", [net.op("NonZero", [net.op("Equal", [ones, net.number(0)], "e")], "z")],
                "at")  # fmt: skip
    total = net.op("ReduceSum", [at], "total", keepdims=0)
    return net.times(net.op("Equal", [total, net.whole(21)], "is"))


def _looked_up_in_a_large_table() -> onnx.ModelProto:
    net, table = _Rows(), np.ones(70000, np.float32)
    table[7] = 2
    return net.times(net.op("Gather", [net.constant(table), "n"], "found"))


def _size_within_a_branch() -> onnx.ModelProto:
    """The chosen branch needs a batch of 7."""
    net = _Rows()
    seven, axis = net.whole(7), net.whole(0)
    net.op("Greater", ["n", net.whole(-1)], "always")
    inner = _branch(
        ("Shape", ["x"], "inner_shape"), ("Gather", ["inner_shape", axis], "m"),
        ("Equal", ["m", seven], "is"), ("Cast", ["is"], "f"), ("Mul", ["x", "f"], "product"),
    )  # fmt: skip
    inner.node[3].attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    net.op("If", ["always"], "y", then_branch=inner, else_branch=_branch(("Neg", ["x"], "neg")))
    return net.model("y", check=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _if_batch_is(7), "node `y/If` uses .* of `is`.*batch 7 with batch 6"),
        (lambda: _factor_if_batch_is(7), "node `y/Mul` uses .* of `factor`"),
        (lambda: _factor_if_batch_is(31), "node `y/Mul` uses .* of `factor`"),
        (_sum_of_positions_is_21, "node `y/Mul` uses .* of `factor`.*batch 7 with"),
        (_looked_up_in_a_large_table, "node `y/Mul` uses .* of `factor`.*batch 7 with"),
        (_size_within_a_branch, "node `product` uses .* of `f`"),
    ],
)
def test_a_number_for_a_single_size_is_noticed(
    make: Callable[[], onnx.ModelProto], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        tvm_interop.compile(make(), shapes={"batch": (1, 32)}, **QUICK)


def _regular(name: str) -> onnx.ModelProto:
    net = _Rows()
    if name == "expand":  # PyTorch exports `expand(-1, ...)` in this way.
        wanted = net.op("Concat", [net.op("Reshape", ["n", net.constant(np.array([1]))], "flat"),
                        net.constant(np.array([4]))], "wanted", axis=0)  # fmt: skip
        is_same = net.op("Equal", [wanted, net.constant(np.array([-1, -1]))], "same")
        to = net.op("Where", [is_same, net.constant(np.array([1, 1])), wanted], "to")
        net.op("Add", ["x", net.op("Expand", [net.number(2), to], "twos")], "y")
        return net.model("y")
    if name == "divided":
        net.op("Div", [net.op("Mul", ["n", net.whole(12)], "twelve"), net.whole(3)], "four")
        flat = net.op("Reshape", ["four", net.constant(np.array([1]))], "flat")
        thin = net.op("Reshape", ["x", net.op("Concat", [flat, net.constant(np.array([1]))],
                      "thin", axis=0)], "r")  # fmt: skip
        net.op("Reshape", [thin, net.constant(np.array([-1, 4]))], "y")
        return net.model("y")
    if name == "at least 1":
        return net.times(net.op("Div", [net.op("Max", ["n", net.whole(1)], "most"), "n"], "one"))
    assert name == "range"
    steps = net.op("Range", [net.whole(0), "n", net.whole(1)], "steps")
    net.op("Gather", ["x", steps], "y", axis=0)
    return net.model("y")


@pytest.mark.parametrize("name", ["expand", "divided", "at least 1", "range"])
def test_numbers_that_grow_evenly_are_fine(name: str) -> None:
    made = tvm_interop.compile(_regular(name), shapes={"batch": (1, 9)}, most_sizes=3, **QUICK)
    assert made.manifest.batch_sizes == (1, 4, 9)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: _if_batch_is(1), "node `y/If` uses other numbers of `is`"),
        (lambda: _factor_if_batch_is(1), "node `y/Mul` uses other numbers of `factor`"),
        (lambda: _squeezed(), "tensor `.*` has another shape"),
    ],
)
def test_a_single_row_that_is_treated_otherwise_is_not_joined(
    make: Callable[[], onnx.ModelProto], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server must not join a request of one row with other requests: its answer would change."""
    model = make()
    made = tvm_interop.compile(model, shapes={"batch": (1, 6)}, most_sizes=2, **QUICK)
    assert made.manifest.row_sizes == RowSizes("batch", (1, 6))
    assert made.manifest.batch_sizes == ()
    assert "will not join requests" in caplog.text
    caplog.clear()
    tvm_interop.compile(model, batch_sizes=[1, 4], **QUICK)
    assert "rows of a batch may depend on each other" in caplog.text
    assert "treats a few rows differently from many" in caplog.text
    caplog.clear()
    tvm_interop.compile(model, batch_sizes=[3, 4], **QUICK)
    assert "treats a few rows differently from many" in caplog.text
    made = tvm_interop.compile(model, shapes={"batch": (3, 6)}, most_sizes=2, **QUICK)
    assert made.manifest.batch_sizes == ()


def _squeezed() -> onnx.ModelProto:
    """`Squeeze` also removes the axis of a batch of 1. The softmax then goes over another axis."""
    net = _Rows(1, 4, 5)
    net.op("Softmax", [net.op("Squeeze", ["x"], "squeezed")], "m", axis=1)
    net.op("Reshape", ["m", net.constant(np.array([-1, 4, 5]))], "y")
    return net.model("y", check=False)


def test_batch_sizes_of_a_model_that_asks_for_a_size_between_them_get_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tvm_interop.compile(_if_batch_is(3), batch_sizes=[2, 4], **QUICK)
    assert "node `y/If` uses the numbers of `is`" in caplog.text


def _masked(at: int, rows: int | None = None) -> onnx.ModelProto:
    """Attention whose scores are doubled for one length, or for one pair of sizes."""
    net = Masked(batch="batch")
    is_it = net.do("Equal", net.length(), net.number(at, np.int64))
    if rows is not None:
        batch = net.do("Gather", net.do("Shape", "x"), net.number(0, np.int64))
        is_it = net.do("And", is_it, net.do("Equal", batch, net.number(rows, np.int64)))
    factor = net.do("Where", is_it, net.number(2), net.number(1))
    scores = net.do("Mul", net.scores(), factor)
    return net.model(net.mixed(net.do("Add", scores, net.left_out()), "x"), check=False)


def test_a_length_or_a_pair_between_the_compiled_sizes_is_noticed() -> None:
    ranges = {"batch": (1, 5), "seq": (1, 90)}
    assert proven(_masked(1000), ranges).masks
    with pytest.raises(InputError, match=r"do not grow evenly.*seq 77"):
        proven(_masked(77), {"batch": 2, "seq": (1, 90)})
    with pytest.raises(InputError, match=r"do not grow evenly.*batch 2 and seq 77"):
        proven(_masked(77, rows=2), ranges)


def test_large_tensors_are_left_out_of_some_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_values, "_SMALL", 64)
    monkeypatch.setattr(size_values, "_MOST_WORK", 4096)
    net = Masked(batch=1)
    scores = net.do("Add", net.do("Add", net.scores(), net.left_out()), net.later())
    model = net.model(net.mixed(scores, "x"), check=False)
    assert proven(model, {"seq": (1, 40)}).masks
    with pytest.raises(InputError, match=r"do not grow evenly.*seq 23"):
        proven(_masked(23), {"batch": 1, "seq": (1, 40)})


def test_numbers_beside_large_tensors_are_followed_for_all_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large tensor is not computed for a batch of 7, but the numbers around it are."""
    monkeypatch.setattr(size_values, "_SMALL", 8)
    monkeypatch.setattr(size_values, "_MOST_WORK", 64)
    for is_before in (True, False):
        net = Net()
        net.input("x", ["n", 4])
        shape = net.op("Shape", ["x"], "shape")
        zero = net.constant(np.array(0, np.int64))
        number = net.op("Gather", [shape, zero], "size")
        wanted = 7
        if not is_before:
            one = onnx.numpy_helper.from_array(np.array([1]))
            ones = net.op("ConstantOfShape", [shape], "ones", value=one)
            number, wanted = net.op("ReduceSum", [ones], "number", keepdims=0), 28
        is_it = net.op("Equal", [number, net.constant(np.array(wanted))], "is")
        net.op("Expand", [net.op("Cast", [is_it], "more", to=1), shape], "large")
        net.op("Add", ["x", "large" if is_before else "more"], "y")
        with pytest.raises(InputError, match=r"do not grow evenly with it: compare n 7 with n"):
            proven(net.model("y"), {"n": (1, 12)})


def test_numbers_of_a_tensor_that_grows_may_grow_too() -> None:
    """Reads a flattened batch of masks by computed indices, as PyTorch exports transformers."""
    net = Masked(batch="batch")
    batch = net.do("Gather", net.do("Shape", "x"), net.number(0, np.int64))
    ends = net.number(0, np.int64), batch, net.number(1, np.int64)
    rows = net.do("Unsqueeze", net.do("Range", *ends), net.ints(1))
    at = net.do("Add", net.do("Mul", rows, net.length()), net.positions())
    mask = net.do("Gather", net.do("Reshape", "mask", net.ints(-1)), at)
    scores = net.do("Add", net.scores(), net.left_out(mask=mask))
    model = net.model(net.mixed(scores, "x"), check=False)
    assert proven(model, {"batch": (1, 3), "seq": (1, 9)}).masks


def test_growth() -> None:
    def growth(function: Callable[[int, int], Any]) -> Growth:
        every = [(n, m) for n in range(1, 5) for m in range(1, 6)]
        return Growth({each: np.array(function(*each)) for each in every})

    even = growth(lambda n, m: [3 * n + m, n * m, 2**62, -np.inf])
    assert even.uneven() is None
    assert list(even.differs_at_1()) == []
    at = even.at((7, 9))
    assert at is not None
    np.testing.assert_allclose(at, [30, 63, 2.0**62, -np.inf])
    assert growth(lambda n, m: n * n).uneven() is not None
    assert growth(lambda n, m: n // 2).uneven() is not None
    assert growth(lambda n, m: (n, m) == (2, 3)).uneven() == ((2, 3), (2, 2))
    special = growth(lambda n, m: 5 if m == 1 else n)
    assert special.uneven() is None
    assert set(special.differs_at_1()) == {1}


def test_law() -> None:
    def tensor(n: int, m: int) -> np.ndarray:
        return np.arange(n)[:, None] * m + np.arange(m)[None]

    law = Law({each: tensor(*each) for each in [(5, 7), (4, 7), (5, 6), (4, 6)]})
    assert all(law.fits((n, m), tensor(n, m)) for n in range(2, 6) for m in range(2, 8))
    assert not law.fits((3, 4), tensor(3, 5))
    assert not law.fits((3, 4), tensor(3, 4) + (np.arange(4) == 2))
    assert not law.fits((6, 7), tensor(6, 7))
    assert not law.fits((3, 4), tensor(3, 4)[0])
