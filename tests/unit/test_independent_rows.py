"""Tests the proof that the rows of a batch do not influence each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from tests.nets import Net, attention, branches
from tvm_interop.frontend.load import load_model
from tvm_interop.lowering import independent_rows as module
from tvm_interop.lowering.extract import extract
from tvm_interop.lowering.independent_rows import Rows, RowsDependError, independent_rows
from tvm_interop.lowering.lower import LowerToUnits

Build = Callable[[Net, int], str]
"""Adds operators to a net for a batch of a given size, and returns the name of the output."""


def _model(build: Build, size: int) -> onnx.ModelProto:
    net = Net()
    net.input("x", [size, 4, 6])
    return net.model(build(net, size), check=False)


def _proof(model: Callable[[int], onnx.ModelProto], *sizes: int) -> Any:
    programs = {
        size: extract(LowerToUnits("llvm")(load_model(model(size)))) for size in sizes or (2, 3, 5)
    }
    first = programs[next(iter(programs))]
    return independent_rows(programs, {first.values[v].name: 0 for v in first.inputs})


def _ints(net: Net, *values: int) -> str:
    return net.constant(np.array(values, np.int64))


def _heads(net: Net, n: int) -> str:
    """Attention of two heads, with the batch merged into the heads' dimension."""
    split = net.op("Reshape", ["x", _ints(net, n, 4, 2, 3)], "split")
    heads = net.op("Transpose", [split], "heads", perm=[0, 2, 1, 3])
    merged = net.op("Reshape", [heads, _ints(net, n * 2, 4, 3)], "merged")
    turned = net.op("Transpose", [merged], "turned", perm=[0, 2, 1])
    weights = net.op("Softmax", [net.op("MatMul", [merged, turned], "scores")], "weights", axis=-1)
    mixed = net.op("MatMul", [weights, merged], "mixed")
    apart = net.op("Reshape", [mixed, _ints(net, n, 2, 4, 3)], "apart")
    back = net.op("Transpose", [apart], "back", perm=[0, 2, 1, 3])
    return net.op("Reshape", [back, _ints(net, n, 24)], "y")


def _grouped(net: Net, n: int) -> str:
    """A convolution with a group for each row, as in a style network."""
    image = net.op("Reshape", ["x", _ints(net, 1, n * 4, 6, 1)], "image")
    kernels = net.op("Tile", [net.weight(4, 4, 3, 1), _ints(net, n, 1, 1, 1)], "kernels")
    made = net.op("Conv", [image, kernels], "made", group=n, pads=[1, 0, 1, 0])
    return net.op("Reshape", [made, _ints(net, n, 24)], "y")


def _time_first(net: Net, n: int) -> str:
    turned = net.op("Transpose", ["x"], "turned", perm=[1, 0, 2])
    flat = net.op("Reshape", [turned, _ints(net, 4 * n, 6)], "flat")
    made = net.op(
        "Reshape", [net.op("MatMul", [flat, net.weight(6, 5)], "m"), _ints(net, 4, n, 5)], "z"
    )
    return net.op("Transpose", [made], "y", perm=[1, 0, 2])


def _token(net: Net, n: int) -> str:
    """A learned token that is put before each row, as in a vision transformer."""
    token = net.op("Expand", [net.weight(1, 1, 6), _ints(net, n, 1, 6)], "token")
    return net.op("Concat", [token, "x"], "y", axis=1)


def _lstm(net: Net, n: int) -> str:
    turned = net.op("Transpose", ["x"], "turned", perm=[1, 0, 2])
    net.op(
        "LSTM",
        [turned, net.weight(2, 12, 6), net.weight(2, 12, 3)],
        "s",
        "h",
        hidden_size=3,
        direction="bidirectional",
    )
    return net.op("Transpose", ["h"], "y", perm=[1, 0, 2])


def _embedding(net: Net, n: int) -> str:
    places = net.op("Cast", [net.op("Abs", ["x"], "abs")], "places", to=onnx.TensorProto.INT64)
    return net.op("Gather", [net.weight(9, 3), places], "y")


def _own_places(net: Net, n: int) -> str:
    places = net.op("ArgMax", ["x"], "places", axis=1)
    return net.op("GatherElements", ["x", places], "y", axis=1)


def _strided(net: Net, n: int) -> str:
    """Reads rows by their indices in the flattened batch, as PyTorch exports `as_strided`."""
    flat = net.op("Reshape", ["x", _ints(net, n * 24)], "flat")
    places = net.constant(np.arange(n * 24).reshape(n, 24)[:, ::-2].copy())
    return net.op("Gather", [flat, places], "y")


def _scattered(net: Net, n: int, columns: int = 4) -> str:
    """Writes the greatest number of each column to the place of its least number."""
    ends = [_ints(net, k) for k in (0, columns, 1)]
    x = net.op("Slice", ["x", *ends], "part")
    places = net.op("ArgMin", [x], "places", axis=2)
    greatest = net.op("ReduceMax", [x], "greatest", axes=[2])
    return net.op("ScatterElements", ["x", places, greatest], "y", axis=2)


def _matrices(net: Net, kind: str, domain: str = "") -> str:
    """Two square matrices in each row."""
    corner = net.op("Slice", ["x", *(_ints(net, *each) for each in ((0, 0), (4, 6), (1, 2)))], "c")
    square = net.op("MatMul", [corner, net.weight(6, 4)], "square")
    pair = net.op("Concat", [square, net.op("Neg", [square], "neg")], "pair", axis=1)
    both = net.op("Reshape", [pair, _ints(net, -1, 2, 4, 4)], "both")
    return net.op(kind, [both], "y", domain=domain)


INDEPENDENT: dict[str, Build] = {
    "element-wise": lambda net, n: net.op("Erf", ["x"], "y"),
    "layer norm": lambda net, n: net.op("LayerNormalization", ["x", net.weight(6)], "y"),
    "reduction": lambda net, n: net.op("ReduceMean", ["x"], "y", axes=[1], keepdims=0),
    "heads": _heads,
    "grouped convolution": _grouped,
    "time first": _time_first,
    "token": _token,
    "LSTM": _lstm,
    "embedding": _embedding,
    "own places": _own_places,
    "scattered": _scattered,
    "scattered to some columns": lambda net, n: _scattered(net, n, columns=2),
    "strided": _strided,
    "itself by its number": lambda net, n: net.op("Gather", ["x", _ints(net, *range(n))], "y"),
    "positions": lambda net, n: net.op("Add", ["x", net.weight(4, 6)], "y"),
    "cumulative sum": lambda net, n: net.op("CumSum", ["x", _ints(net, 1)], "y"),
    "top": lambda net, n: net.op("TopK", ["x", _ints(net, 2)], "y", "places", axis=-1),
    "determinants": lambda net, n: _matrices(net, "Det"),
    "inverses": lambda net, n: _matrices(net, "Inverse", "com.microsoft"),
    "padding": lambda net, n: net.op("Pad", ["x", _ints(net, 0, 1, 0, 0, 0, 2)], "y"),
}


def _batch_norm(net: Net, n: int) -> str:
    """Batch norm as in training: the mean and the variance are taken over the batch."""
    centred = net.op("Sub", ["x", net.op("ReduceMean", ["x"], "mean", axes=[0])], "centred")
    variance = net.op("ReduceMean", [net.op("Mul", [centred, centred], "sq")], "var", axes=[0])
    return net.op("Div", [centred, net.op("Sqrt", [variance], "std")], "y")


def _contrast(net: Net, n: int) -> str:
    """Similarities between all rows, as in contrastive learning."""
    flat = net.op("Reshape", ["x", _ints(net, n, 24)], "flat")
    turned = net.op("Transpose", [flat], "turned", perm=[1, 0])
    return net.op("MatMul", [flat, turned], "y")


def _reversed(net: Net, n: int) -> str:
    ends = [_ints(net, -1), _ints(net, -(2**31)), _ints(net, 0), _ints(net, -1)]
    turned = net.op("Slice", ["x", *ends], "turned")
    return net.op("Add", ["x", turned], "y")


def _shifted(net: Net, n: int) -> str:
    last = net.op("Slice", ["x", _ints(net, n - 1), _ints(net, n), _ints(net, 0)], "last")
    others = net.op("Slice", ["x", _ints(net, 0), _ints(net, n - 1), _ints(net, 0)], "others")
    return net.op("Concat", [last, others], "y", axis=0)


def _first_row(net: Net, n: int) -> str:
    first = net.op("Slice", ["x", _ints(net, 0), _ints(net, 1), _ints(net, 0)], "first")
    return net.op("Add", ["x", first], "y")


def _mixed(net: Net, n: int) -> str:
    """A reshape that puts elements of different rows into one row."""
    mixed = net.op("Reshape", ["x", _ints(net, 4, n, 6)], "mixed")
    made = net.op("ReduceSum", [mixed, _ints(net, 0)], "sums", keepdims=0)
    return net.op("Relu", [made], "y")


def _turned_groups(net: Net, n: int) -> str:
    """Channels and rows merged in the wrong order before a grouped convolution."""
    turned = net.op("Transpose", ["x"], "turned", perm=[1, 0, 2])
    image = net.op("Reshape", [turned, _ints(net, 1, n * 4, 6, 1)], "image")
    kernels = net.op("Tile", [net.weight(4, 4, 1, 1), _ints(net, n, 1, 1, 1)], "kernels")
    made = net.op("Conv", [image, kernels], "made", group=n)
    return net.op("Reshape", [made, _ints(net, n, 24)], "y")


def _window(net: Net, n: int) -> str:
    """A pooling whose window reaches into neighbouring rows of the batch."""
    image = net.op("Reshape", ["x", _ints(net, 1, 1, n, 24)], "image")
    made = net.op("MaxPool", [image], "made", kernel_shape=[3, 1], pads=[1, 0, 1, 0])
    return net.op("Reshape", [made, _ints(net, n, 24)], "y")


def _numbered(net: Net, n: int) -> str:
    numbers = net.constant(np.arange(n, dtype=np.float32).reshape(n, 1, 1))
    return net.op("Add", ["x", numbers], "y")


def _share_of_batch(net: Net, n: int) -> str:
    return net.op("Div", ["x", net.constant(np.float32(n))], "y")


def _places_of_another(net: Net, n: int) -> str:
    places = net.op("ArgMax", ["x"], "places", axis=0, keepdims=0)
    return net.op("Gather", ["x", places], "y", axis=0)


def _shifted_places(net: Net, n: int) -> str:
    """The last element of each row is also the first element of the next row."""
    flat = net.op("Reshape", ["x", _ints(net, n * 24)], "flat")
    places = np.arange(n * 24).reshape(n, 24) + np.where(np.arange(24) == 23, 1, 0)
    return net.op("Gather", [flat, net.constant(places % (n * 24))], "y")


def _wide_steps(net: Net, n: int) -> str:
    """Row `i` reads element 2 * `i` of a table that is long enough."""
    table = net.op("Concat", ["x", "x"], "table", axis=0)
    return net.op("Gather", [table, _ints(net, *range(0, 2 * n, 2))], "y")


def _number_of_the_row(net: Net, n: int) -> str:
    """Scales each row by a number that depends on the row's index. A table holds these numbers."""
    found = net.op("Gather", [_ints(net, *range(9)), _ints(net, *range(n))], "found")
    numbers = net.op("Cast", [found], "numbers", to=onnx.TensorProto.FLOAT)
    return net.op("Mul", ["x", net.op("Reshape", [numbers, _ints(net, n, 1, 1)], "column")], "y")


def _scattered_to_one_row(net: Net, n: int) -> str:
    places = net.constant(np.zeros((n, 4, 6), np.int64))
    return net.op("ScatterElements", ["x", places, "x"], "y", axis=0)


DEPENDENT: dict[str, Build] = {
    "batch norm": _batch_norm,
    "contrast": _contrast,
    "softmax": lambda net, n: net.op("Softmax", ["x"], "y", axis=0),
    "sum": lambda net, n: net.op(
        "Add", ["x", net.op("ReduceSum", ["x", _ints(net, 0)], "sum")], "y"
    ),
    "cumulative sum": lambda net, n: net.op("CumSum", ["x", _ints(net, 0)], "y"),
    "sort": lambda net, n: net.op("TopK", ["x", _ints(net, n)], "y", "places", axis=0),
    "reversed": _reversed,
    "shifted": _shifted,
    "first row": _first_row,
    "mixed": _mixed,
    "turned groups": _turned_groups,
    "window": _window,
    "numbered": _numbered,
    "share of the batch": _share_of_batch,
    "scattered to one row": _scattered_to_one_row,
    "places of another": _places_of_another,
    "shifted places": _shifted_places,
    "wide steps": _wide_steps,
    "places backwards": lambda net, n: net.op(
        "Gather", ["x", _ints(net, *range(n - 1, -1, -1))], "y"
    ),
    "number of the row": _number_of_the_row,
    "only numbers": lambda net, n: net.op(
        "Reshape", [_ints(net, *range(n)), _ints(net, n, 1)], "y"
    ),
    "turned": lambda net, n: net.op("Transpose", ["x"], "y", perm=[1, 0, 2]),
    "no rows": lambda net, n: net.op("ReduceMax", ["x"], "y", axes=[0, 1, 2], keepdims=0),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_rows_are_proven(name: str) -> None:
    ins, outs = _proof(lambda size: _model(INDEPENDENT[name], size))
    assert ins == {"x": Rows(0, 1)}
    assert outs == {"y": Rows(0, 1)}


@pytest.mark.parametrize("name", DEPENDENT)
def test_dependent_rows_are_not_proven(name: str) -> None:
    if name == "turned":  # The rows are independent, but they lie along another axis.
        assert _proof(lambda size: _model(DEPENDENT[name], size))[1] == {"y": Rows(1, 1)}
        return
    with pytest.raises(RowsDependError):
        _proof(lambda size: _model(DEPENDENT[name], size))


def test_the_reason_names_the_operator() -> None:
    with pytest.raises(RowsDependError, match=r"operator `y/Softmax` .*row"):
        _proof(lambda size: _model(DEPENDENT["softmax"], size))
    with pytest.raises(RowsDependError, match=r"constant `.*` is not the same for all rows"):
        _proof(lambda size: _model(DEPENDENT["numbered"], size))


def test_whole_networks_are_proven() -> None:
    assert _proof(lambda size: branches(batch=size))[1] == {"y": Rows(0, 1)}
    with pytest.raises(RowsDependError):
        _proof(lambda size: attention())  # The batch is fixed, so no tensor grows with it.


def test_one_size_is_like_another_although_it_is_also_another_dimension() -> None:
    """Other dimensions also have the sizes 4 and 6.

    So at these batch sizes, some kernels are equal that would differ at other batch sizes.
    """
    assert _proof(lambda size: _model(_time_first, size), 3, 4, 6)[1] == {"y": Rows(0, 1)}


def test_a_kernel_that_says_where_its_rows_are_must_get_them_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def time_is_the_batch(net: Net, n: int) -> str:
        weights = [net.weight(1, 12, 6), net.weight(1, 12, 3)]
        net.op("LSTM", ["x", *weights], "s", "h", hidden_size=3)
        return net.op("Relu", ["s"], "y")

    with pytest.raises(RowsDependError, match="s/LSTM"):
        _proof(lambda size: _model(time_is_the_batch, size))
    monkeypatch.setattr(module, "ROWS", "no attribute of kernels")
    with pytest.raises(RowsDependError, match=r"h/LSTM|s/LSTM"):
        _proof(lambda size: _model(_lstm, size))
