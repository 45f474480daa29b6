"""Tests the judge of random graphs: it must find faults, and must accept rounding errors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.random_graphs import judge
from tests.random_graphs.blame import blamed, with_all_outputs
from tests.random_graphs.conditioning import within_rounding
from tests.random_graphs.oracles import Arrays, by_nodes, by_onnxruntime, by_reference, reads

pytestmark = pytest.mark.filterwarnings("ignore")


def model_of(text: str, opset: int = 20) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {text}')


FUSED = model_of("g (float[8] x) => (float[8] y) { a = Neg(x) b = Abs(a) y = Relu(b) }")
X = {"x": np.linspace(-2, 3, 8, dtype=np.float32)}


def played(monkeypatch: pytest.MonkeyPatch, error: dict[str, float]) -> None:
    """Replace the compiler by onnxruntime, and add errors to the outputs that `error` names.

    The errors stand for a fault of fused kernels. If every value of the graph is an output, no
    kernels are fused, so no errors are added.
    """

    def run_all(
        model: onnx.ModelProto, feeds: list[Arrays], seed: int, record: object
    ) -> list[dict[str, np.ndarray]]:
        found = [by_onnxruntime(model, feed) or by_nodes(model, feed) for feed in feeds]
        opened = len(model.graph.output) > 1
        return [
            {n: a if opened else (a + error.get(n, 0.0)).astype(a.dtype) for n, a in each.items()}
            for each in found
            if each is not None
        ]

    monkeypatch.setattr(judge, "run_all", run_all)


def verdict(model: onnx.ModelProto, feed: Arrays) -> dict[str, object]:
    (ours,) = judge.run_all(model, [feed], 0, {})
    return judge.looked_into(model, feed, ours, by_onnxruntime(model, feed), 0)


def test_a_fault_of_a_fused_kernel_alone_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of each single node is right, and only their fused kernel is wrong."""
    played(monkeypatch, {"y": 0.01})
    assert verdict(FUSED, X) == {"wrong": ["fused into y"]}


def test_rounding_that_grows_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of nearly equal numbers is multiplied by 1e6, so an error of 1e-7 is 0.1."""
    grown = model_of("""g (float[8] x, float[8] z) => (float[8] y)
        <float[1] million = {1000000.0}> { a = Sub(x, z) y = Mul(a, million) }""")
    x = np.linspace(1, 2, 8, dtype=np.float32)
    feed = {"x": x, "z": x + np.float32(1e-6)}
    played(monkeypatch, {"y": 0.2})
    assert verdict(grown, feed) == {"noise": True}
    played(monkeypatch, {"y": 1000.0})
    assert verdict(grown, feed) == {"wrong": ["fused into y"]}


def test_a_choice_that_rounding_tips_over_is_noise_and_another_is_not() -> None:
    floor = model_of("g (float[2] x) => (float[2] y) { a = Sin(x) b = Asin(a) y = Floor(b) }")
    feed = {"x": np.asarray([1.0, 0.5], np.float32)}
    wanted = {"y": np.asarray([1.0, 0.0], np.float32)}
    tipped = {"y": np.asarray([0.0, 0.0], np.float32)}
    assert within_rounding(floor, feed, tipped, wanted) == {"y": True}
    far_off = {"x": np.asarray([1.2, 0.5], np.float32)}
    assert within_rounding(floor, far_off, tipped, wanted) == {"y": False}


def test_a_graph_that_no_oracle_runs_whole_is_judged_by_its_nodes() -> None:
    """onnxruntime has no `Mean` of float64, and the reference's `Mean` does not broadcast."""
    model = model_of(
        "g (double[1,3] x, double[3] z) => (double[1,3] y) { m = Mean(z, x) y = Neg(m) }"
    )
    feed = {"x": np.ones((1, 3)), "z": np.arange(3.0)}
    assert by_onnxruntime(model, feed) is None
    right = {"m": np.asarray([[0.5, 1.0, 1.5]]), "y": np.asarray([[-0.5, -1.0, -1.5]])}
    assert blamed(model, feed, right) == {}
    assert blamed(model, feed, right | {"m": right["m"] + 0.1, "y": right["y"] - 0.1}) == {
        "wrong": ["Mean m"]
    }


def test_what_a_normalisation_makes_of_the_rounding_of_a_mean_is_no_fault() -> None:
    """A normalisation turns 16 equal numbers into 0, or into the rounding error of their mean,
    divided by the root of epsilon."""
    model = model_of("""g (float[2,16] x) => (float[2,16] y)
        <float[16] scale = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}>
        { y = LayerNormalization(x, scale) }""")
    equal = {"x": np.full((2, 16), -26.12, np.float32)}
    spread = {"x": np.linspace(-30, -20, 32, dtype=np.float32).reshape(2, 16)}
    for feed, expected in ((equal, "rounded"), (spread, "wrong")):
        right = by_onnxruntime(model, feed)
        assert right is not None
        assert blamed(model, feed, right) == {}
        off = {"y": right["y"] + np.float32(4e-4)}
        assert blamed(model, feed, off) == {expected: ["LayerNormalization y"]}


def test_every_feed_that_differs_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []
    monkeypatch.setattr(
        judge, "looked_into", lambda model, feed, *_: looked.append(feed["x"].sum()) or {}
    )

    class Graph:
        def build(self) -> onnx.ModelProto:
            return FUSED

        def feeds(self, seed: int) -> Arrays:
            return {"x": X["x"] + np.float32(seed)}

    monkeypatch.setattr(judge, "random_graph", lambda seed: Graph())

    def right_but_for_the_last(
        model: onnx.ModelProto, feeds: list[Arrays], seed: int, record: object
    ) -> list[dict[str, np.ndarray]]:
        first, last = (by_onnxruntime(model, feed) for feed in feeds)
        assert first is not None
        assert last is not None
        return [first, {name: array + 1 for name, array in last.items()}]

    monkeypatch.setattr(judge, "run_all", right_but_for_the_last)
    judge.judged(0)
    assert looked == [(X["x"] + np.float32(1)).sum()]


def test_what_onnx_leaves_open_is_no_fault() -> None:
    model = model_of("g (float[2] x) => (int32[2] y) { y = Cast<to = 6>(x) }")
    feed = {"x": np.asarray([np.nan, 1.0], np.float32)}
    assert blamed(model, feed, {"y": np.asarray([7, 1], np.int32)}) == {}
    inside = {"x": np.asarray([3.0, 1.0], np.float32)}
    assert "wrong" in blamed(model, inside, {"y": np.asarray([7, 1], np.int32)})


def test_the_fourier_transform_of_an_infinity_is_no_fault() -> None:
    model = model_of("""g (float[1,4,1] x) => (float[1,4,2] y)
        <int64 axis = {1}> { y = DFT(x, , axis) }""")
    x = np.asarray([1.0, np.inf, 2.0, 3.0], np.float32).reshape(1, 4, 1)
    ours = {"y": np.full((1, 4, 2), np.nan, np.float32)}
    assert blamed(model, {"x": x}, ours) == {}
    assert "wrong" in blamed(model, {"x": np.ones_like(x)}, ours)


def test_a_recurrent_layer_keeps_the_nan_of_opposite_infinities() -> None:
    """The sum of opposite infinities is NaN. But with a bias, onnxruntime clips the NaN to a
    number."""
    model = model_of("""g (float[1,1,2] x) => (float[1,1,1,1] y)
        <float[1,4,2] w = {1, -1, 1, -1, 1, -1, 1, -1}, float[1,4,1] r = {1, 1, 1, 1},
         float[1,8] b = {1, 1, 1, 1, 1, 1, 1, 1}>
        { y = LSTM<hidden_size = 1>(x, w, r, b) }""")
    nan = {"y": np.full((1, 1, 1, 1), np.nan, np.float32)}
    opposite = {"x": np.full((1, 1, 2), np.inf, np.float32)}
    assert blamed(model, opposite, nan) == {"settled": ["LSTM y"]}
    assert "wrong" in blamed(model, {"x": np.ones((1, 1, 2), np.float32)}, nan)


def test_zeros_less_their_mean_are_0_and_not_nan() -> None:
    """The deviation of zeros is 0. ONNX adds 1e-9 to it, but onnxruntime divides 0 by 0."""
    model = model_of(
        "g (float[1,1,2,2] x) => (float[1,1,2,2] y) { y = MeanVarianceNormalization(x) }"
    )
    zeros = {"x": np.zeros((1, 1, 2, 2), np.float32)}
    assert blamed(model, zeros, {"y": zeros["x"]}) == {"settled": ["MeanVarianceNormalization y"]}
    assert "wrong" in blamed(model, zeros, {"y": zeros["x"] / np.float32(0)})


def test_a_node_reads_what_its_subgraphs_read() -> None:
    model = model_of("""g (bool c, float[2] x, float[2] z) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] a) { a = Neg(x) },
                   else_branch = e () => (float[2] b) { b = Abs(z) }> }""")
    assert reads(model.graph.node[0]) == ["c", "x", "z"]
    feed = {"c": np.asarray(True), "x": np.ones(2, np.float32), "z": np.ones(2, np.float32)}
    assert blamed(model, feed, {"y": -feed["x"]}) == {}
    assert "wrong" in blamed(model, feed, {"y": feed["x"]})


def test_all_values_become_outputs_once() -> None:
    names = [output.name for output in with_all_outputs(FUSED).graph.output]
    assert names == ["y", "a", "b"]


@pytest.mark.parametrize(
    ("size", "start", "end", "step", "wanted"),
    [
        (1, -3, -(2**31), -1, [0]),  # In Python, x[-3::-1] would be empty.
        (3, -5, -9, -1, [0]),
        (3, 9, -9, -2, [2, 0]),
        (3, 2, 9, -1, []),
        (3, -9, 9, 1, [0, 1, 2]),
        (3, 5, 9, 1, []),
        (0, 0, -9, -1, []),
    ],
)
def test_the_reference_slices_by_the_text(
    size: int, start: int, end: int, step: int, wanted: list[int]
) -> None:
    model = model_of(
        "g (float[N] x, int64[1] start, int64[1] end, int64[1] axes, int64[1] step)"
        " => (float[M] y) { y = Slice(x, start, end, axes, step) }"
    )
    numbers = {"start": start, "end": end, "axes": 0, "step": step}
    feed = {name: np.array([number]) for name, number in numbers.items()}
    found = by_reference(model, {"x": np.arange(size, dtype=np.float32), **feed})
    assert found is not None
    assert found["y"].tolist() == wanted
