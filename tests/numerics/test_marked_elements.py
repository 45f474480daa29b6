"""Tests models that read and write elements at which a mask is true, as PyTorch exports them."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, parser

from tvm_interop import GraphModule
from tvm_interop import compile as compile_model
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import load_model

_MASKED = """
    zero = Constant <value = float {0}> ()
    five = Constant <value = float {5}> ()
    flat = Constant <value_ints = [-1]> ()
    mask = Greater(x, zero)
    columns = NonZero(mask)
    places = Transpose <perm = [1, 0]> (columns)
    marks = Reshape(mask, flat)
    ones = Cast <to = 7> (marks)
    count = ReduceSum <keepdims = 1> (ones)
    taken = GatherND(y, places)
"""
"""PyTorch's `mask = x > 0`, and `y[mask]`."""

_ALL = (
    """agraph (float[3, 4] x, float[3, 4] y, float[4] row, float[2, 6] source)
    => (float[3, 4] a, float[3, 4] b, float[3, 4] c, float[3, 4] d, float s, float m, float n,
        float[3, 4] e)
{"""
    + _MASKED
    + """
    fives = Expand(five, count)
    flat_fives = Reshape(fives, flat)
    a = ScatterND(x, places, flat_fives)
    b = ScatterND <reduction = "add"> (y, places, flat_fives)
    twice = Mul(taken, five)
    expanded = Expand(twice, count)
    c = ScatterND(x, places, expanded)
    s = ReduceSum <keepdims = 0> (twice)
    m = ReduceMax <keepdims = 0> (taken)
    n = ReduceMean <keepdims = 0> (taken)

    first = Constant <value = int64 {0}> ()
    last = Constant <value_ints = [-1]> ()
    column = Gather <axis = 1> (y, first)
    of_rows = Greater(column, zero)
    narrow = Unsqueeze(of_rows, last)
    sizes = Constant <value_ints = [3, 4]> ()
    wide = Expand(narrow, sizes)
    row_columns = NonZero(wide)
    row_places = Transpose <perm = [1, 0]> (row_columns)
    row_marks = Cast <to = 7> (of_rows)
    row_count = ReduceSum <keepdims = 1> (row_marks)
    width = Constant <value_ints = [4]> ()
    wanted = Concat <axis = 0> (row_count, width)
    rows = Expand(row, wanted)
    flat_rows = Reshape(rows, flat)
    d = ScatterND(x, row_places, flat_rows)

    values = Reshape(source, flat)
    shape = Shape(places)
    zeroth = Constant <value_ints = [0]> ()
    end = Gather <axis = 0> (shape, zeroth)
    parts = Slice(values, zeroth, end, zeroth)
    e = ScatterND(x, places, parts)
}"""
)


def _model(text: str) -> ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type.lower()}_{i}"
    return model


def test_elements_at_which_a_mask_is_true() -> None:
    """NaN and infinity outside of the mask change nothing. An empty mask leaves all as it is."""
    model = _model(_ALL)
    module = GraphModule(compile_model(model, scheduler="sequential", time_budget=0))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    x, y = np.random.default_rng(3).standard_normal((2, 3, 4), np.float32)
    y[x <= 0] = np.nan
    y[:, 0] = [1, -1, 2]
    feed = {"x": x, "y": y, "row": y[0] + 1, "source": np.arange(12, dtype=np.float32)}
    feed["source"] = feed["source"].reshape(2, 6)
    for each in (x, -np.abs(x), np.abs(x)):
        feed["x"] = each
        feed["y"] = y if each is x else np.nan_to_num(y)
        # onnxruntime raises an error for the maximum of an empty tensor.
        names = [o.name for o in session.get_outputs() if (each > 0).any() or o.name != "m"]
        results = dict(zip("abcdsmne", module(*feed.values()), strict=True))
        for name, wanted in zip(names, session.run(names, feed), strict=True):
            np.testing.assert_allclose(results[name].numpy(), wanted, 1e-6, err_msg=name)


def test_values_that_a_mask_lacks_are_not_a_number(caplog: pytest.LogCaptureFixture) -> None:
    text = """agraph (float[3, 4] x, float[3, 4] y, float[5] source) => (float[3, 4] e) {"""
    text += _MASKED + _ALL[_ALL.index("    values =") :]
    module = GraphModule(compile_model(_model(text), scheduler="sequential", time_budget=0))
    assert "(`Slice`) gives one element for each position where a mask is true" in caplog.text
    x = np.array([[1, -1, 1, 1], [-1, 1, 1, 1], [1, -1, -1, 1]], np.float32)
    (result,) = module(x, x, np.arange(5, dtype=np.float32) + 10)
    nan = np.nan
    wanted = [[10, -1, 11, 12], [-1, 13, 14, nan], [nan, -1, -1, nan]]
    np.testing.assert_array_equal(result.numpy(), wanted)


@pytest.mark.parametrize(
    "use",
    [
        "more = Expand(row, count)  z = ScatterND(x, places, more)",
        "z = Add(taken, row)",
        "other = Less(x, y)  o = NonZero(other)  p = Transpose <perm = [1, 0]> (o)"
        " z = ScatterND(x, p, taken)",
        "z = ScatterND(x, columns, taken)",
    ],
)
def test_other_uses_are_refused(use: str) -> None:
    text = "agraph (float[3, 4] x, float[3, 4] y, float[4] row, float[4, 4] w) => (float[n, k] z) {"
    with pytest.raises(UnsupportedModelError, match=r"depends on the numbers|`shape` is computed"):
        load_model(_model(text + _MASKED + use + "\n}"))


@pytest.mark.parametrize(
    "use",
    [
        "z = ScatterND(w, places, taken)",
        'z = ScatterND <reduction = "max"> (x, places, taken)',
    ],
)
def test_elements_written_to_a_larger_tensor_or_with_a_maximum(use: str) -> None:
    text = "agraph (float[3, 4] x, float[3, 4] y, float[4, 4] w) => (float[n, k] z) {"
    model = _model(text + _MASKED + use + "\n}")
    module = GraphModule(compile_model(model, scheduler="sequential", time_budget=0))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    for shift in (-9, 0, 9):
        feed = {
            name: rng.standard_normal((rows, 4)).astype(np.float32) + np.float32(shift)
            for name, rows in (("x", 3), ("y", 3), ("w", 4))
        }
        used = {i.name: feed[i.name] for i in session.get_inputs()}
        np.testing.assert_array_equal(module(**feed)[0].numpy(), session.run(None, used)[0])


@pytest.mark.parametrize(
    "use",
    [
        "z = Identity(taken)",
        "z = ReduceSum(columns)",
        "z = Concat <axis = 0> (taken, taken)",
        "w = Mul(taken, five)  z = Abs(w)",
    ],
)
def test_elements_that_are_moved_together(use: str) -> None:
    """The elements at which a mask is true are moved together before an operator reads them. This
    is needed if the operator could not read the mask in their place."""
    text = "agraph (float[3, 4] x, float[3, 4] y) => (" + (
        "int64[a, b] z) {" if "columns" in use else "float[n] z) {"
    )
    model = _model(text + _MASKED + use + "\n}")
    module = GraphModule(compile_model(model, scheduler="sequential", time_budget=0))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    for shift in (-9, 0, 9):
        x, y = (rng.standard_normal((3, 4)).astype(np.float32) for _ in range(2))
        x += np.float32(shift)
        (want,) = session.run(None, {"x": x, "y": y})
        (got,) = module(x, y)
        np.testing.assert_array_equal(got.numpy(), want)
