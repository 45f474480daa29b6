"""Tests that the last layer computes only the rows that are read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed
from tvm_interop.frontend import load_model
from tvm_interop.lowering.fold_arrays import FoldArrays
from tvm_interop.lowering.names import bindings_of
from tvm_interop.lowering.selected_rows import SelectedRows

ROWS, WIDTH, HEADS = 24, 32, 4
Select = Callable[[nets.Net, str], "list[str]"]


def products(model: onnx.ModelProto) -> list[tuple[int, ...]]:
    """The shapes of the results of the matrix products that remain."""
    mod = load_model(model)
    clean = relax.transform.DeadCodeElimination()
    for each in (FoldArrays(), clean, SelectedRows(), clean):
        mod = each(mod)
    values = [getattr(binding, "value", None) for binding in bindings_of(mod["main"])]
    matmul = tvm.ir.Op.get("relax.matmul")
    found = [v for v in values if isinstance(v, relax.Call) and v.op == matmul]
    return [tuple(map(int, value.ty.shape)) for value in found]


def integers(net: nets.Net, *numbers: int, scalar: bool = False) -> str:
    return net.constant(np.array(numbers[0] if scalar else numbers, np.int64))


def norm(net: nets.Net, x: str, out: str) -> str:
    """A layer norm, written out as older exporters write it."""
    mean = net.op("ReduceMean", [x], out + "_m", axes=[-1])
    centred = net.op("Sub", [x, mean], out + "_c")
    two = net.constant(np.array(2, np.float32))
    squares = net.op("Pow", [centred, two], out + "_p")
    variance = net.op("ReduceMean", [squares], out + "_v", axes=[-1])
    epsilon = net.constant(np.array(1e-5, np.float32))
    deviation = net.op("Sqrt", [net.op("Add", [variance, epsilon], out + "_e")], out + "_s")
    scaled = net.op(
        "Mul", [net.op("Div", [centred, deviation], out + "_d"), net.weight(WIDTH)], out
    )
    return net.op("Add", [scaled, net.weight(WIDTH)], out + "_y")


def linear(net: nets.Net, x: str, out: str, sizes: tuple[int, int]) -> str:
    product = net.op("MatMul", [x, net.weight(*sizes)], out + "_m")
    return net.op("Add", [product, net.weight(sizes[1])], out)


def heads(net: nets.Net, x: str, out: str, order: list[int]) -> str:
    shape = integers(net, 0, ROWS, HEADS, WIDTH // HEADS)
    return net.op("Transpose", [net.op("Reshape", [x, shape], out + "_r")], out, perm=order)


def layer(net: nets.Net, x: str, masked: bool = False) -> str:
    """A layer of a transformer; with `masked`, a position sees only itself and earlier
    positions."""
    q, k, v = (linear(net, x, name, (WIDTH, WIDTH)) for name in "qkv")
    scores = net.op(
        "MatMul", [heads(net, q, "qh", [0, 2, 1, 3]), heads(net, k, "kh", [0, 2, 3, 1])], "scores"
    )
    if masked:
        mask = np.triu(np.full((1, 1, ROWS, ROWS), -1e4, np.float32), 1)
        scores = net.op("Add", [scores, net.constant(mask)], "masked")
    weights = net.op("Softmax", [scores], "softmax", axis=-1)
    mixed = net.op("MatMul", [weights, heads(net, v, "vh", [0, 2, 1, 3])], "mixed")
    joined = net.op("Transpose", [mixed], "back", perm=[0, 2, 1, 3])
    joined = net.op("Reshape", [joined, integers(net, 0, ROWS, WIDTH)], "joined")
    x = net.op("Add", [x, linear(net, joined, "o", (WIDTH, WIDTH))], "x1")
    wide = linear(net, norm(net, x, "n1"), "up", (WIDTH, 64))
    halved = net.op("Mul", [wide, net.op("Sigmoid", [wide], "sig")], "act")
    x = net.op("Add", [linear(net, halved, "down", (64, WIDTH)), x], "x2")
    return norm(net, x, "n2")


def model(select: Select, masked: bool = False, batch: int = 2) -> onnx.ModelProto:
    net = nets.Net()
    x = net.op("Tanh", [net.input("x", [batch, ROWS, WIDTH])], "t")
    return net.model(*select(net, layer(net, x, masked)))


def gathered(*rows: int, scalar: bool = False) -> Select:
    def select(net: nets.Net, x: str) -> list[str]:
        picked = net.op("Gather", [x, integers(net, *rows, scalar=scalar)], "picked", axis=1)
        return [net.op("Relu", [picked], "y")]

    return select


def sliced(begin: int, end: int) -> Select:
    def select(net: nets.Net, x: str) -> list[str]:
        bounds = [integers(net, begin), integers(net, end), integers(net, 1)]
        return [net.op("Relu", [net.op("Slice", [x, *bounds], "picked")], "y")]

    return select


def two_tokens(net: nets.Net, x: str) -> list[str]:
    """The tokens for the class and for distillation, as in DeiT."""
    picked = [
        net.op("Gather", [x, integers(net, row, scalar=True)], f"p{row}", axis=1) for row in (1, 0)
    ]
    return [net.op("Relu", [each], f"y{i}") for i, each in enumerate(picked)]


MOVED = {
    "the first": (gathered(0, scalar=True), 1),
    "the last": (gathered(-1, scalar=True), 1),
    "a slice": (sliced(0, 1), 1),
    "a slice of the end": (sliced(-3, 9999), 3),
    "in any order, with repeats": (gathered(5, 2, 5, 7), 3),
    "two tokens": (two_tokens, 2),
}


def assert_right(made: onnx.ModelProto) -> None:
    given = nets.feeds(made)
    for got, want in zip(computed(made, given), run_onnxruntime(made, given).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", MOVED)
def test_the_last_layer_computes_what_is_read(case: str, masked: bool) -> None:
    select, rows = MOVED[case]
    made = model(select, masked)
    head = WIDTH // HEADS
    assert sorted(products(made)) == sorted([
        (2, ROWS, WIDTH), (2, ROWS, WIDTH),  # The keys and values of all positions.
        (2, rows, WIDTH), (2, HEADS, rows, ROWS), (2, HEADS, rows, head),
        (2, rows, WIDTH), (2, rows, 64), (2, rows, WIDTH),
    ])  # fmt: skip
    assert_right(made)


def also_an_output(net: nets.Net, x: str) -> list[str]:
    return [*gathered(0)(net, x), x]


def read_by_another(net: nets.Net, x: str) -> list[str]:
    return [*gathered(0)(net, x), net.op("ReduceMax", [x], "z", axes=[1])]


def of_two_axes(net: nets.Net, x: str) -> list[str]:
    column = net.op("Gather", [x, integers(net, 3, scalar=True)], "column", axis=2)
    return [*gathered(0)(net, x), net.op("Relu", [column], "z")]


def more_than_half(net: nets.Net, x: str) -> list[str]:
    return gathered(*range(ROWS - 5))(net, x)


def of_images(net: nets.Net, x: str) -> list[str]:
    return [net.op("Relu", [net.op("Gather", [x, integers(net, 1)], "picked", axis=0)], "y")]


def columns(net: nets.Net, x: str) -> list[str]:
    return [net.op("Relu", [net.op("Gather", [x, integers(net, 1)], "picked", axis=2)], "y")]


@pytest.mark.parametrize(
    "select",
    [also_an_output, read_by_another, of_two_axes, more_than_half, of_images, columns],
)
def test_other_selections_stay(select: Select) -> None:
    made = model(select)
    assert all(shape[-2] in (ROWS,) for shape in products(made))
    assert_right(made)
