"""Tests `If`, `Loop` and `Scan`, and errors for models that cannot be imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from tvm_interop import GraphModule, onnx_backend
from tvm_interop import compile as compile_model
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import control_flow, load_model


def _model(text: str) -> ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type.lower()}_{i}"
    return model


def _check(model: ModelProto, inputs: Sequence[np.ndarray]) -> None:
    names = [value.name for value in model.graph.input]
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    wanted = session.run(None, dict(zip(names, inputs, strict=True)))
    for got, want in zip(onnx_backend.prepare(model).run(inputs), wanted, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, 1e-5, 1e-6)


_X = np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)

_IF = """
agraph (float[4, 6] x{inputs}) => (float[4, 6] y) {{
    {condition}
    w = If (c) <
        then_branch = g1 () => (float[4, 6] t) {{ t = Relu(x) }},
        else_branch = g2 () => (float[4, 6] e) {{ z = Neg(x)  e = Exp(z) }}
    >
    y = Add(w, x)
}}"""

_LOOP = """
agraph (float[4, 6] x) => (float[4, 6] y, float[3, 4, 6] all) {
    turns = Constant <value = int64 {3}> ()
    go = Constant <value = bool {1}> ()
    y, all = Loop (turns, go, x) <
        body = b (int64 i, bool c, float[4, 6] s) => (bool d, float[4, 6] n, float[4, 6] o) {
            f = Cast <to = 1> (i)
            n = Add(s, f)
            o = Mul(n, x)
            d = Identity(c)
        }
    >
}"""

_SCAN = """
agraph (float[4] s0, float[4, 6] x) => (float[4] s, float[4, 6] y) {
    s, y = Scan (s0, x) <
        num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
        scan_input_directions = [1], scan_output_directions = [1],
        body = b (float[4] a, float[4] e) => (float[4] n, float[4] o) {
            n = Add(a, e)
            o = Tanh(n)
        }
    >
}"""


@pytest.mark.parametrize("value", [0, 1])
def test_constant_condition_takes_one_branch(value: int) -> None:
    condition = f"c = Constant <value = bool {{{value}}}> ()"
    model = _model(_IF.format(inputs="", condition=condition))
    _check(model, [_X])
    names = {b.var.name for block in load_model(model)["main"].body.blocks for b in block.bindings}
    assert ("t" in names, "e" in names) == (bool(value), not value)


@pytest.mark.parametrize("value", [False, True])
def test_condition_known_late_selects_of_both_branches(value: bool) -> None:
    model = _model(_IF.format(inputs=", bool c", condition=""))
    _check(model, [_X, np.array(value)])


def test_branches_of_two_shapes_are_refused() -> None:
    model = _model(
        """agraph (float[4, 6] x, bool c) => (float y) {
            w = If (c) <
                then_branch = g1 () => (float[4, 6] t) { t = Relu(x) },
                else_branch = g2 () => (float e) { e = ReduceSum <keepdims = 0> (x) }
            >
            y = ReduceSum <keepdims = 0> (w)
        }"""
    )
    with pytest.raises(UnsupportedModelError, match=r"`if_0` .* branches give"):
        load_model(model)


def test_loop() -> None:
    _check(_model(_LOOP), [_X])


def test_scan() -> None:
    _check(_model(_SCAN), [_X[:, 0].copy(), _X])


def test_the_numbers_of_iterations_are_vectors_if_the_body_says_so() -> None:
    text = _LOOP.replace("int64 i, bool c", "int64[1] i, bool[1] c").replace(
        "bool d,", "bool[1] d,"
    )
    text = text.replace("bool {1}", "bool[1] {1}")
    text = text.replace("float[3, 4, 6] all", "int64[3, 1] all").replace(
        "float[4, 6] o)", "int64[1] o)"
    )
    _check(_model(text.replace("o = Mul(n, x)", "o = Identity(i)")), [_X])


_DISTANCES = """
agraph (float[4, 6] x, float[rows, 6] z) => (float[4, 6] s, float[4, rows] y, float[4, rows] w) {
    s, all, more = Scan (x, z) <
        num_scan_inputs = 1, scan_output_axes = [0, 1],
        body = b (float[m, 6] a, float[6] e) => (float[m, 6] n, float[m] o, float[m] p) {
            n = Identity(a)
            axes = Constant <value = int64[1] {1}> ()
            d = Sub(a, e)
            o = ReduceSumSquare <keepdims = 0> (d, axes)
            f = Abs(d)
            last = Constant <value = int64[1] {-1}> ()
            k = ReduceSum <keepdims = 0> (f, last)
            t = Neg(k)
            p = Add(k, t)
        }
    >
    y = Transpose(all)
    w = Identity(more)
}"""


def test_iterations_that_do_not_depend_on_each_other_are_computed_together() -> None:
    """skl2onnx writes such a `Scan` for distances to each row of the training data."""
    rows = np.random.default_rng(3).standard_normal((3000, 6)).astype(np.float32)
    _check(_model(_DISTANCES.replace("rows", "3000")), [_X, rows])


def test_iterations_that_change_a_state_are_computed_in_turn() -> None:
    text = _DISTANCES.replace("n = Identity(a)", "n = Add(a, e)").replace("rows", "5")
    _check(_model(text), [_X, np.random.default_rng(3).standard_normal((5, 6)).astype(np.float32)])


def test_loop_of_unknown_length_is_refused() -> None:
    text = _LOOP.replace("float[4, 6] x)", "float[4, 6] x, int64 turns)", 1)
    model = _model(text.replace("turns = Constant <value = int64 {3}> ()", ""))
    with pytest.raises(
        UnsupportedModelError, match=r"`loop_1` .* number of iterations is computed"
    ):
        load_model(model)


def test_loop_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # 3 iterations of 4 operators are 12 operators.
    monkeypatch.setattr(control_flow, "MOST_OPERATORS", 11)
    with pytest.raises(
        UnsupportedModelError, match=r"`loop_2` .* 3 or more iterations of 4 operators"
    ):
        load_model(_model(_LOOP))


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "linear", "antialias": 1},
        {"mode": "cubic", "antialias": 1},
        {"mode": "linear"},
        {"mode": "cubic", "cubic_coeff_a": -0.5},
        {"mode": "nearest"},
    ],
)
def test_resize_by_a_factor_that_leaves_a_rest(attributes: dict[str, Any]) -> None:
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [4], [1, 1, 0.6, 1.7])
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)],
        "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, 7, 9))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 2, 4, 15))],
        [scales],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    _check(model, [np.random.default_rng(0).standard_normal((1, 2, 7, 9)).astype(np.float32)])


def test_quantised_operators_are_named_with_a_way_out() -> None:
    node = helper.make_node("QOrderedGelu", ["x"], ["y"], name="heads", domain="com.microsoft")
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 2))],
    )
    with pytest.raises(UnsupportedModelError, match=r"QOrderedGelu` \(node `heads`\).*QDQ"):
        load_model(helper.make_model(graph, ir_version=8))


def test_operators_of_other_domains_are_named() -> None:
    node = helper.make_node("Magic", ["x"], ["y"], name="spell", domain="my.domain")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2,))],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("my.domain", 1)]
    )
    with pytest.raises(UnsupportedModelError, match=r"`my\.domain\.Magic` \(node `spell`\)"):
        load_model(model)


def test_shape_computed_as_the_model_runs_is_refused() -> None:
    model = _model(
        "agraph (float[4, 6] x, int64[2] shape) => (float[6, 4] y) { y = Reshape(x, shape) }"
    )
    with pytest.raises(UnsupportedModelError, match=r"`reshape_0` .* `shape` is computed"):
        load_model(model)


def test_size_that_depends_on_numbers_is_refused() -> None:
    model = _model("agraph (float[4, 6] x) => (float[n, 6] y) { y = Unique<axis = 0>(x) }")
    with pytest.raises(UnsupportedModelError, match=r"`unique_0` .* depends on the numbers"):
        load_model(model)


def test_a_branch_for_inputs_of_other_shapes_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """If a model chooses a branch that was left out, its results are NaN."""
    bodies = []
    for name, width in (("then", 3), ("otherwise", 4)):
        weight = numpy_helper.from_array(np.ones((width, 2), "float32"), f"w_{name}")
        node = helper.make_node("MatMul", ["x", f"w_{name}"], [f"y_{name}"])
        y = helper.make_tensor_value_info(f"y_{name}", TensorProto.FLOAT, None)
        bodies.append(helper.make_graph([node], name, [], [y], [weight]))
    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1], name="choice"
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    artifact = compile_model(model, scheduler="sequential", latency_db=":memory:")
    assert "without its else branch" in caplog.text
    module = GraphModule(artifact)
    for chosen, wanted in ((True, 3.0), (False, np.nan)):
        module.run(c=np.array(chosen), x=np.ones((1, 3), "float32"))
        np.testing.assert_array_equal(module.get_output(0).numpy(), [[wanted, wanted]])


@pytest.mark.parametrize(
    "misfit",
    [
        "zeros = Constant <value = float[1, 4, 3] {0,0,0,0,0,0,0,0,0,0,0,0}> () "
        "again = Constant <value = float[1, 4, 1] {0,0,0,0}> () "
        "one, e, cell = LSTM <hidden_size = 1> (x, zeros, again)",
        "far = Constant <value_int = 9> () e = Gather(x, far)",
        "e, rest = Split <axis = 7> (x)",
    ],
    ids=["dimensions", "index", "axis"],
)
def test_a_branch_that_does_not_fit_by_our_own_checks_is_left_out(
    misfit: str, caplog: pytest.LogCaptureFixture
) -> None:
    load_model(
        _model(
            "agraph (bool c, float[2, 3] x) => (float y) { y = If (c) < "
            "then_branch = g1 () => (t) { t = Relu(x) }, "
            f"else_branch = g2 () => (e) {{ {misfit} }} > }}"
        )
    )
    assert "without its else branch" in caplog.text


_BAGS = """
agraph (float[6, 3] x, int64[4] places) => (float[3, 3] y) {{
    none = SequenceEmpty ()
    turns = Constant <value = int64 {{3}}> ()
    go = Constant <value = bool {{1}}> ()
    zeros = Constant <value = float[1, 3] {{0, 0, 0}}> ()
    first = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    bags = Loop (turns, go, none) <
        body = b (int64 i, bool c, s) => (bool d, n) {{
            k = Reshape(i, one)  m = Add(k, one)  m2 = Add(m, one)
            start = Slice(places, k, m)  end = Slice(places, m, m2)
            is_empty = Equal(start, end)
            bag = If (is_empty) <
                then_branch = g1 () => (t) {{ t = Identity(zeros) }},
                else_branch = g2 () => (e) {{ part = Slice(x, start, end)  e = {use} }}
            >
            n = SequenceInsert(s, bag)
            d = Identity(c)
        }}
    >
    y = ConcatFromSequence <axis = 0> (bags)
}}"""


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Max"])
def test_reductions_of_parts_whose_bounds_are_computed(kind: str) -> None:
    """PyTorch exports `EmbeddingBag` as a loop that reduces slices of `x`. A NaN outside of a slice
    must not change its result."""
    model = _model(_BAGS.format(use=f"Reduce{kind}(part, first)"))
    x = _X.reshape(-1, 3)[:6].copy()
    x[5] = np.nan
    for places in ([0, 2, 2, 5], [1, 3, 5, 5], [0, 1, -2, -1]):
        _check(model, [x, np.array(places)])


@pytest.mark.parametrize("use", ["Relu(part)", "ReduceSum(part, one)", "Concat<axis = 0>(part)"])
def test_parts_whose_bounds_are_computed_are_refused_elsewhere(use: str) -> None:
    """A branch that is invalid for the given shapes is left out. But this branch would be refused
    for any shapes, so the whole model is refused."""
    with pytest.raises(UnsupportedModelError, match=r"`part` .*`starts` is computed"):
        load_model(_model(_BAGS.format(use=use)))


def test_a_part_of_a_fixed_size_that_begins_anywhere(caplog: pytest.LogCaptureFixture) -> None:
    """Covers JAX's `dynamic_slice` and TensorFlow's `slice`. A slice partly outside of `x` is
    NaN."""
    model = _model("""
agraph (float[5, 4] x, int64[2] starts) => (float[2, 3] y, float[3, 2] z) {
    sizes = Constant <value_ints = [2, 3]> ()
    ends = Add(starts, sizes)
    y = Slice(x, starts, ends)
    axes = Constant <value_ints = [-1, 0]> ()
    z = Slice(x, starts, ends, axes)
}""")
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    module = GraphModule(compile_model(model, scheduler="sequential", time_budget=0))
    assert "`slice_2` (`Slice`) takes a part" in caplog.text
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for starts in ([0, 0], [2, 1], [-4, -4]):
        feed = {"x": x, "starts": np.array(starts)}
        for part, wanted in zip(module(*feed.values()), session.run(None, feed), strict=True):
            np.testing.assert_array_equal(part.numpy(), wanted)
    for starts in ([4, 0], [-2, 0], [0, 3], [-6, 0]):
        for part in module(x, np.array(starts)):
            assert np.isnan(part.numpy()).all(), starts


def test_the_count_of_a_loop_has_64_bits() -> None:
    model = _model("""
agraph (int64[2] x) => (int64[2] y, int64[3] all) {
    turns = Constant <value = int64 {3}> ()
    go = Constant <value = bool {1}> ()
    y, all = Loop (turns, go, x) <
        body = b (int64 i, bool c, int64[2] s) => (bool d, int64[2] n, int64 o) {
            n = Add(s, i)
            o = Identity(i)
            d = Identity(c)
        }
    >
}""")
    _check(model, [np.array([1, 2])])


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
@pytest.mark.parametrize("size", ["", "[1]", "[0, 3]"])
def test_a_condition_with_axes_leaves_the_shape_of_the_result(
    shape: tuple[int, ...], size: str
) -> None:
    model = _model(f"""
agraph (bool[{", ".join(map(str, shape))}] c, float{size} x) => (float{size} y) {{
    y = If (c) <
        then_branch = g1 () => (float{size} t) {{ t = Exp(x) }},
        else_branch = g2 () => (float{size} e) {{ e = Neg(x) }}
    >
}}""")
    sizes = tuple(int(n) for n in size.strip("[]").split(",") if n)
    for condition in (True, False):
        _check(model, [np.full(shape, condition), np.full(sizes, 2, np.float32)])


def test_branches_may_give_sequences() -> None:
    model = _model("""
agraph (bool c, float[3] a, float[3] b) => (float[3] y) {
    s = If (c) <
        then_branch = g1 () => (seq(float[3]) t) { t = SequenceConstruct(a, b) },
        else_branch = g2 () => (seq(float[3]) e) { e = SequenceConstruct(b, a) }
    >
    first = Constant <value = int64 {0}> ()
    y = SequenceAt(s, first)
}""")
    a, b = _X[0, :3], _X[1, :3]
    for condition in (True, False):
        _check(model, [np.array(condition), a, b])


def test_sequences_of_different_lengths_are_refused() -> None:
    model = _model("""
agraph (bool c, float[3] a) => (float[3] y) {
    s = If (c) <
        then_branch = g1 () => (seq(float[3]) t) { t = SequenceConstruct(a, a) },
        else_branch = g2 () => (seq(float[3]) e) { e = SequenceConstruct(a) }
    >
    first = Constant <value = int64 {0}> ()
    y = SequenceAt(s, first)
}""")
    with pytest.raises(UnsupportedModelError, match="sequences of 2 and 1 tensors"):
        load_model(model)


def test_a_loop_of_no_iterations_collects_an_empty_tensor() -> None:
    text = _LOOP.replace("int64 {3}", "int64 {0}").replace("[3, 4, 6]", "[0, 4, 6]")
    _check(_model(text), [_X])


@pytest.mark.parametrize("opset", [18, 20])
def test_definitions_that_depend_on_types_in_branches(opset: int) -> None:
    model = _model("""
agraph (bool c, float[4, 6] x) => (float[5, 6] y) {
    size = Constant <value_ints = [5]> ()
    y = If (c) <
        then_branch = g1 () => (float[5, 6] t) {
            r = Exp(x)  t = CenterCropPad <axes = [0]> (r, size) },
        else_branch = g2 () => (float[5, 6] e) {
            r = Neg(x)  here = Constant <value_ints = [5]> ()
            e = CenterCropPad <axes = [0]> (r, here) }
    >
}""")
    model.opset_import[0].version = opset
    for condition in (True, False):
        _check(model, [np.array(condition), _X])


_WHILE = """
agraph (float[3] x, bool go) => (float[3] y) {
    most = Constant <value = int64 {6}> ()
    y = Loop (most, go, x) <
        body = b (int64 i, bool c, float[3] s) => (bool d, float[3] n) {
            n = Add(s, s)
            total = ReduceSum <keepdims = 0> (n)
            limit = Constant <value = float {20}> ()
            d = Less(total, limit)
        }
    >
}"""


def test_a_loop_ends_when_the_model_runs() -> None:
    model = _model(_WHILE)
    for first in (0.01, 1.0, 5.0, 30.0):
        for goes_on in (True, False):
            _check(model, [np.full(3, first, np.float32), np.array(goes_on)])


def test_a_loop_that_ends_when_the_model_runs_has_a_size() -> None:
    with pytest.raises(UnsupportedModelError, match=r"`loop_1` .*5000 or more iterations"):
        load_model(_model(_WHILE.replace("int64 {6}", "int64 {5000}")))


@pytest.mark.parametrize("most", ["", "most"])
def test_a_loop_without_a_largest_number_is_refused(most: str) -> None:
    """PyTorch and TensorFlow export loops without a largest number of iterations, or with the
    largest integer in its place."""
    text = _WHILE.replace("int64 {6}", f"int64 {{{2**63 - 1}}}").replace("(most,", f"({most},")
    with pytest.raises(UnsupportedModelError, match=r"`loop_1` .*no largest number of iterations"):
        load_model(_model(text))


def test_a_loop_of_unknown_length_collects_nothing() -> None:
    text = _WHILE.replace("float[3] y) {", "float[3] y, float[N, 3] all) {").replace(
        "y = Loop", "y, all = Loop"
    )
    text = text.replace("float[3] n) {", "float[3] n, float[3] o) {").replace(
        "n = Add(s, s)", "n = Add(s, s)  o = Neg(s)"
    )
    with pytest.raises(UnsupportedModelError, match=r"`loop_1` .*collects a tensor"):
        load_model(_model(text))


def test_a_state_of_a_loop_of_unknown_length_does_not_grow() -> None:
    text = _WHILE.replace("float[3] y)", "float[N] y)").replace("float[3] n)", "float[N] n)")
    text = text.replace("float[3] s)", "float[N] s)").replace("Add(s, s)", "Concat<axis = 0>(s, s)")
    with pytest.raises(UnsupportedModelError, match=r"`loop_1` .*grows from \(3,\) to \(6,\)"):
        load_model(_model(text))
