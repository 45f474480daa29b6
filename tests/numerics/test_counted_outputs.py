"""Tests results whose size depends on the data, against onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, parser
from tvm import relax

from tests import counted_nets
from tests.counted_nets import ints, suppression
from tests.nets import Net
from tvm_interop import GraphModule
from tvm_interop import compile as compile_model
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import counted, load_model


def _module(model: onnx.ModelProto) -> GraphModule:
    return GraphModule(compile_model(model, scheduler="sequential", time_budget=0))


def _check(module: GraphModule, model: onnx.ModelProto, *given: Mapping[str, np.ndarray]) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for feed in given:
        wanted = session.run(None, dict(feed))
        for got, want in zip(module(**feed), wanted, strict=True):
            assert (got.numpy().shape, got.numpy().dtype) == (want.shape, want.dtype)
            np.testing.assert_array_equal(got.numpy(), want)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A tensor whose size depends on the data has memory for its largest size.

    Fill its unused rows with NaN or huge numbers.
    """
    standing, seen = counted.CountedTensors.standing, []

    def poisoned(
        self: Any, bb: relax.BlockBuilder, whole: Any, axis: int, count: Any, origin: str
    ) -> Any:
        tensor = bb.emit(bb.normalize(counted.within_bounds(whole)))
        dtype = str(tensor.ty.dtype)
        if "float" in dtype:
            bad: Any = np.nan
        else:
            bad = True if dtype == "bool" else int(np.iinfo(dtype).max) - 7
        inside = counted.Counted(tensor, axis, count, origin).inside_whole(bb)
        seen.append(axis)
        filled = relax.op.where(inside, tensor, relax.const(bad, dtype))
        return standing(self, bb, filled, axis, count, origin)

    monkeypatch.setattr(counted.CountedTensors, "standing", poisoned)
    yield seen
    assert seen, "no tensor was counted"


_OPTIONS: list[dict[str, Any]] = [
    {"most": 5},
    {"most": 2**62, "least": None},
    {"most": 3, "overlap": None, "least": None},
    {"most": 100, "overlap": 0.25, "least": 0.25, "center_point_box": 1},
    {"most": 4, "overlap": 0.0, "least": -1.0},
    {"most": 6, "overlap": 1.0},
    {"most": 0},
    {"most": None},
    {"most": -1},
]


@pytest.mark.parametrize("options", _OPTIONS)
def test_non_max_suppression_is_that_of_onnxruntime(options: dict[str, Any]) -> None:
    """In half of the inputs, many scores and many coordinates are equal."""
    net = Net()
    boxes, scores = net.input("boxes", [2, 30, 4]), net.input("scores", [2, 3, 30])
    suppression(net, boxes, scores, **options)
    model = net.model("rows", check=False)
    rng = np.random.default_rng(0)
    given = []
    for i in range(12):
        feed = {"boxes": rng.random((2, 30, 4)), "scores": rng.random((2, 3, 30))}
        if i % 2:
            feed = {name: np.round(array * 4) / 4 for name, array in feed.items()}
        given.append({name: array.astype(np.float32) for name, array in feed.items()})
    _check(_module(model), model, *given)


def test_a_score_that_is_not_a_number_is_not_above_a_threshold() -> None:
    net = Net()
    suppression(net, net.input("boxes", [1, 6, 4]), net.input("scores", [1, 1, 6]), least=0.0)
    model = net.model("rows", check=False)
    boxes = np.arange(24, dtype=np.float32).reshape(1, 6, 4)
    scores = np.array([[[0.5, np.nan, 0.25, np.inf, -np.inf, np.nan]]], np.float32)
    _check(_module(model), model, {"boxes": boxes, "scores": scores})


@pytest.mark.parametrize("is_poisoned", [False, True])
def test_a_detector(is_poisoned: bool, request: pytest.FixtureRequest) -> None:
    """The number of scores above the detector's limit is zero, small or very large.

    So it returns no box, some boxes, or as many boxes as it can.
    """
    if is_poisoned:
        request.getfixturevalue("poison")
    model = counted_nets.detector()
    given = [counted_nets.feeds(seed, scale) for seed, scale in enumerate((0.3, 0.6, 1.0, 2.0))]
    _check(_module(model), model, *given)


_ROWS = """agraph (float[8, 4] x, float[8, 4] y) => ({results}) {{
    zero = Constant <value = float {{0}}> ()
    none = Constant <value = int64 {{0}}> ()
    first = Constant <value_ints = [0]> ()
    second = Constant <value_ints = [1]> ()
    three = Constant <value_ints = [3]> ()
    flat = Constant <value_ints = [-1]> ()
    pairs = Constant <value_ints = [-1, 2]> ()
    halves = Constant <value_ints = [2, 2]> ()
    matrix = Constant <value = float[4, 2] {{1, 2, 3, 4, 5, 6, 7, 8}}> ()
    column = Gather <axis = 1> (x, none)
    mask = Greater(column, zero)
    places = NonZero(mask)
    index = Squeeze(places, first)
    rows = Gather <axis = 0> (y, index)
    {uses}
}}"""

_USES = {
    "positions of all elements": ("int64[a, b] z", "z = NonZero(x)"),
    "positions as rows": ("int64[a, b] z", "n = NonZero(x)  z = Transpose <perm = [1, 0]> (n)"),
    "elements of a mask": (
        "float[a] z",
        "m = Greater(x, zero)  n = NonZero(m)  t = Transpose <perm = [1, 0]> (n)"
        " z = GatherND(y, t)",
    ),
    "Compress": ("float[a, 4] z", "z = Compress <axis = 0> (y, mask)"),
    "Compress along columns": (
        "float[8, a] z",
        "r = Gather <axis = 0> (x, none)  m = Greater(r, zero)  z = Compress <axis = 1> (y, m)",
    ),
    "Compress of all": (
        "float[a] z",
        "l = Reshape(x, flat)  m = Greater(l, zero)  z = Compress (y, m)",
    ),
    "Compress of counted rows": (
        "float[a, 4] z",
        "c = Gather <axis = 1> (rows, none)  m = Greater(c, zero)"
        " z = Compress <axis = 0> (rows, m)",
    ),
    "indices counted twice": (
        "float[a, 4] z, int64[b] w",
        "c = Gather <axis = 1> (rows, none)  m = Greater(c, zero)  n = NonZero(m)"
        " w = Squeeze(n, first)  z = Gather <axis = 0> (rows, w)",
    ),
    "rows of counted rows": (
        "float[a, 4] z",
        "c = Gather <axis = 1> (rows, none)  m = Greater(c, zero)  n = NonZero(m)"
        " t = Transpose <perm = [1, 0]> (n)  z = GatherND(rows, t)",
    ),
    "an If with two sizes": (
        "float[a, 4] z",
        "m = Less(column, zero)  n = NonZero(m)  i = Squeeze(n, first)"
        " o = Gather <axis = 0> (y, i)  p = ReduceMax <keepdims = 0> (x)  c = Less(p, zero)"
        " z = If (c) <then_branch = t () => (float[b, 4] t) { t = Neg(o) },"
        " else_branch = e () => (float[d, 4] e) { e = Abs(rows) }>",
    ),
    "indices from the end": (
        "float[a, 4] z",
        "n = Neg(index)  l = Constant <value = int64 {1}> ()"
        " s = Shape(rows)  g = Gather(s, none)  o = Sub(index, index)  e = Sub(o, l)"
        " z = Gather <axis = 0> (rows, e)",
    ),
    "the first ones": ("float[a, 4] z", "z = Slice(rows, first, three, first)"),
    "all but the first": (
        "float[a, 4] z",
        "e = Constant <value_ints = [9223372036854775807]> ()  z = Slice(rows, second, e, first)",
    ),
    "columns": ("float[a, 2] z, float[a, 2] w", "z, w = Split <axis = 1> (rows, halves)"),
    "elements": ("float[a] z", "z = Reshape(rows, flat)"),
    "pairs by rows": (
        "float[a, 2, 2] z",
        "s = Constant <value_ints = [0, 2, 2]> ()  z = Reshape(rows, s)",
    ),
    "pairs": ("float[a, 2] z", "z = Reshape(rows, pairs)"),
    "one after another": (
        "float[a, 4] z",
        "t = Slice(rows, first, three, first)  z = Concat <axis = 0> (t, x, rows)",
    ),
    "side by side": ("float[a, 8] z", "n = Neg(rows)  z = Concat <axis = 1> (rows, n)"),
    "columns first": ("float[4, a] z", "z = Transpose <perm = [1, 0]> (rows)"),
    "products": ("float[a, 2] z", "z = MatMul(rows, matrix)"),
    "sums of rows": ("float[a] z", "z = ReduceSum <keepdims = 0> (rows, second)"),
    "the best of each row": (
        "float[a, 1] z, int64[a, 1] w",
        "z, w = TopK <axis = 1> (rows, second)",
    ),
    "the best rows": (
        "float[a] z, int64[a] w",
        "c = Gather <axis = 1> (rows, none)  s = Shape(c)  k = Min(s, three)"
        " z, w = TopK <axis = 0> (c, k)",
    ),
    "the worst rows": (
        "float[a] z, int64[a] w",
        "c = Gather <axis = 1> (rows, none)  s = Shape(c)  g = Gather(s, none)"
        " u = Unsqueeze(g, first)  j = Concat <axis = 0> (u, three)"
        " k = ReduceMin <keepdims = 1> (j)  z, w = TopK <axis = 0, largest = 0> (c, k)",
    ),
    "sums": ("float[4] z", "z = ReduceSum <keepdims = 0> (rows, first)"),
    "means": ("float[4] z", "z = ReduceMean <axes = [0], keepdims = 0> (rows)"),
    "sizes": ("int64[2] z, int64 w", "z = Shape(rows)  w = Size(rows)"),
    "a constant for each row": (
        "int64[a, 4] z",
        "s = Shape(rows)  z = ConstantOfShape <value = int64[1] {7}> (s)",
    ),
    "a row for each row": (
        "float[a, 4] z",
        "r = Constant <value = float[4] {1, 2, 3, 4}> ()  s = Shape(rows)  z = Expand(r, s)",
    ),
    "its own shape": (
        "float[a, 2, 2] z",
        "s = Shape <start = 0, end = 1> (rows)  j = Concat <axis = 0> (s, halves)"
        " z = Reshape(rows, j)",
    ),
    "elementwise": (
        "float[a, 4] z, bool[a, 4] w",
        "e = Exp(rows)  z = Add(e, rows)  w = Less(rows, zero)",
    ),
    "integers that are divided": (
        "int64[a] z, int64[a] w",
        "one = Constant <value = int64 {1}> ()  d = Add(index, one)  z = Div(index, d)"
        " w = Mod(d, d)",
    ),
    "rows that are added up": (
        "float[8, 4] z",
        "h = Div(index, second)  u = Unsqueeze(h, second)  s = Shape(rows)  e = Expand(u, s)"
        ' z = ScatterElements <axis = 0, reduction = "add"> (y, e, rows)',
    ),
    "rows that are added up in pairs": (
        "float[8, 4] z",
        "two = Constant <value = int64 {2}> ()  h = Div(index, two)"
        " f = Add(h, flat)  u = Unsqueeze(f, second)  s = Shape(rows)  e = Expand(u, s)"
        ' z = ScatterElements <axis = 0, reduction = "add"> (y, e, rows)',
    ),
    "elements that are written": (
        "float[8, 4] z",
        "m = Constant <value = int64 {3}> ()  w = Mod(index, m)  u = Unsqueeze(w, second)"
        " c = Slice(rows, first, second, second)  z = ScatterElements <axis = 1> (y, u, c)",
    ),
    "rows that are written": (
        "float[8, 4] z",
        "n = Neg(index)  f = Add(n, flat)  u = Unsqueeze(f, second)  z = ScatterND(y, u, rows)",
    ),
    "elements at pairs of places": (
        "float[8, 4] z",
        "h = Sub(index, index)  u = Unsqueeze(index, second)  v = Unsqueeze(h, second)"
        " p = Concat <axis = 1> (u, v)  c = Gather <axis = 1> (rows, none)"
        ' z = ScatterND <reduction = "mul"> (y, p, c)',
    ),
    "elements of a mask that are written": (
        "float[a] z",
        "c = Gather <axis = 1> (rows, none)  m = Greater(c, zero)  n = NonZero(m)"
        " t = Transpose <perm = [1, 0]> (n)  r = Reshape(m, flat)  i = Cast <to = 7> (r)"
        " k = ReduceSum <keepdims = 1> (i)  v = Constant <value = float[1] {5}> ()"
        " e = Expand(v, k)  z = ScatterND(c, t, e)",
    ),
    "counted rows that are written from the end": (
        "float[a, 4] z",
        "n = NonZero(column)  i = Squeeze(n, first)  h = Sub(index, index)  f = Add(h, flat)"
        " u = Unsqueeze(f, second)  d = Sub(rows, rows)  o = Exp(d)"
        " z = ScatterND(rows, u, o)",
    ),
    "a constant for each row and for all": (
        "int64[a] z",
        "all = Concat <axis = 0> (rows, y)  c = Gather <axis = 1> (all, none)"
        " s = Shape <start = 0, end = 1> (rows)  eight = Constant <value_ints = [8]> ()"
        " n = Add(eight, s)  t = ConstantOfShape <value = int64[1] {7}> (n)"
        " l = Cast <to = 7> (c)  h = Sub(l, l)  z = Add(t, h)",
    ),
    "a probability": ("float[a, 4] z", "z = Softmax <axis = 1> (rows)"),
    "an If": (
        "float[a, 4] z",
        "s = Size(rows)  c = Equal(s, none)"
        " z = If (c) <then_branch = t () => (float[0, 4] t) {"
        " t = Constant <value = float[0, 4] {}> () },"
        " else_branch = e () => (float[b, 4] e) { e = Abs(rows) }>",
    ),
}


def _model(results: str, uses: str, opset: int = 17) -> onnx.ModelProto:
    text = _ROWS.format(results=results, uses=uses)
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type.lower()}_{i}"
    return model


def _feeds(inputs: Any) -> list[dict[str, np.ndarray]]:
    """Inputs in which the first element is above 0 in no row, in some rows, and in all rows."""
    rng, given = np.random.default_rng(1), []
    for shift in (-9, -0.5, 0, 9):
        feed = {name: rng.standard_normal((8, 4)).astype(np.float32) for name in inputs}
        feed["x"] += np.float32(shift)
        given.append(feed)
    return given


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("use", _USES)
def test_an_operator_reads_counted_rows(use: str) -> None:
    model = _model(*_USES[use])
    module = _module(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for feed in _feeds(("x", "y")):
        wanted = session.run(None, feed)
        for got, want in zip(module(**feed), wanted, strict=True):
            assert (got.numpy().shape, got.numpy().dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got.numpy(), want, 1e-5, 1e-6)


_REFUSED = {
    "another count": "m = Less(column, zero)  n = NonZero(m)  i = Squeeze(n, first)"
    " o = Gather <axis = 0> (y, i)  z = Add(rows, o)",
    "a tensor of the largest size": "z = Add(rows, x)",
    "a row that may not exist": "z = Gather <axis = 0> (rows, none)",
    "the last row": "z = Slice(rows, flat, three, first)",
    "another step": "two = Constant <value_ints = [2]> ()"
    " z = Slice(rows, first, three, first, two)",
    "columns of another count": "m = Less(column, zero)  n = NonZero(m)  i = Squeeze(n, first)"
    " o = Gather <axis = 0> (y, i)  z = Concat <axis = 1> (rows, o)",
    "side by side with all rows": "z = Concat <axis = 1> (rows, x)",
    "a softmax over rows": "z = Softmax <axis = 0> (rows)",
    "a fixed shape": "s = Constant <value_ints = [8, 4]> ()  z = Reshape(rows, s)",
    "rows that mix": "s = Constant <value_ints = [2, -1]> ()  z = Reshape(rows, s)",
    "dimensions of size 1": "z = Squeeze(rows)",
    "a product of columns": "t = Transpose <perm = [1, 0]> (rows)  z = MatMul(t, y)",
    "a constant number of the best": "c = Gather <axis = 1> (rows, none)"
    " z, w = TopK <axis = 0> (c, three)",
    "the best of another count": "m = Less(column, zero)  n = NonZero(m)  i = Squeeze(n, first)"
    " s = Shape(i)  k = Min(s, three)  c = Gather <axis = 1> (rows, none)"
    " z, w = TopK <axis = 0> (c, k)",
    "the shape of another count": "m = Less(column, zero)  n = NonZero(m)  i = Squeeze(n, first)"
    " s = Shape(i)  j = Concat <axis = 0> (s, halves)  z = Reshape(rows, j)",
    "rows as columns": "t = Transpose <perm = [1, 0]> (rows)  z = Concat <axis = 1> (t, rows)",
    "two counts": "r = Gather <axis = 0> (x, none)  m = Greater(r, zero)  n = NonZero(m)"
    " i = Squeeze(n, first)  z = Gather <axis = 1> (rows, i)",
    "boxes without their scores": "f = Gather <axis = 0> (x, index)"
    " b = Unsqueeze(f, first)  s = Constant <value_ints = [1, 1, 8]> ()"
    " l = Reshape(column, s)  z = NonMaxSuppression(b, l, three)",
    "written rows of another count": "m = Less(column, zero)  n = NonZero(m)"
    " t = Transpose <perm = [1, 0]> (n)  z = ScatterND(y, t, rows)",
    "elements written to counted rows": "u = Unsqueeze(index, second)"
    " s = Shape(rows)  e = Expand(u, s)  z = ScatterElements <axis = 0> (rows, e, rows)",
    "more columns than there are": "t = Transpose <perm = [1, 0]> (rows)"
    " d = Slice(y, first, second, second)  h = Transpose <perm = [1, 0]> (d)"
    " i = Slice(h, first, three, second)  v = Slice(t, first, second, first)"
    " u = Unsqueeze(index, first)  z = ScatterElements <axis = 0> (i, u, v)",
    "a cumulative sum": "z = CumSum(rows, none)",
    "padding": "p = Constant <value_ints = [0, 0, 1, 0]> ()  z = Pad(rows, p)",
    "the largest row": "z = ArgMax <axis = 0> (rows)",
    "an If with other rows": "s = Size(rows)  c = Equal(s, none)"
    " z = If (c) <then_branch = t () => (float[8, 4] t) { t = Abs(y) },"
    " else_branch = e () => (float[b, 4] e) { e = Abs(rows) }>",
}


@pytest.mark.parametrize("use", _REFUSED)
def test_what_may_read_rows_beyond_the_count_is_refused(use: str) -> None:
    with pytest.raises(
        UnsupportedModelError,
        match=r"depends on the numbers in the inputs of node|is computed as the model runs",
    ):
        load_model(_model("float[a, b] z", _REFUSED[use]))


@pytest.mark.usefixtures("poison")
def test_boxes_that_are_counted_themselves() -> None:
    """As in torchvision, `NonMaxSuppression` reads a number of boxes that depends on the data: only
    boxes with a high score."""
    net = Net()
    boxes, scores = net.input("boxes", [12, 4]), net.input("scores", [12])
    above = net.op("Greater", [scores, net.constant(np.array(0.3, np.float32))], "above")
    places = net.op("NonZero", [above], "places")
    index = net.op("Squeeze", [places, net.constant(ints(0))], "index")
    chosen = [net.op("Gather", [x, index], f"{x}_chosen") for x in (boxes, scores)]
    wide = [
        net.op("Unsqueeze", [x, net.constant(ints(*axes))], f"{x}_wide")
        for x, axes in zip(chosen, ((0,), (0, 1)), strict=True)
    ]
    suppression(net, *wide, most=2**62, least=None)
    kept = net.op("Gather", ["rows", net.constant(np.array(2, np.int64))], "kept", axis=1)
    results = [net.op("Gather", [x, kept], f"{x}_kept") for x in chosen]
    model = net.model(*results, check=False)
    rng, given = np.random.default_rng(0), []
    for scale in (0.2, 0.5, 1.0, 4.0):
        numbers = rng.random((12, 4)), rng.random(12) * scale
        named = zip(("boxes", "scores"), numbers, strict=True)
        given.append({name: array.astype(np.float32) for name, array in named})
    _check(_module(model), model, *given)


def test_counted_rows_of_a_loop_are_refused() -> None:
    body = (
        "z = Loop <body = l (int64 i, bool c, float[8, 4] v) => (bool d, float[8, 4] w)"
        " { d = Identity(c)  w = Add(v, v) }> (trips, go, rows)"
    )
    uses = "trips = Constant <value = int64 {2}> ()  go = Constant <value = bool {1}> ()" + body
    with pytest.raises(UnsupportedModelError, match=r"depends on the numbers"):
        load_model(_model("float[a, 4] z", uses))


def test_integer_boxes_stay_refused() -> None:
    net = Net()
    boxes = net.input("boxes", [1, 6, 5])
    suppression(net, boxes, net.input("scores", [1, 1, 6], TensorProto.FLOAT))
    with pytest.raises(UnsupportedModelError, match=r"the boxes must be"):
        load_model(net.model("rows", check=False))
