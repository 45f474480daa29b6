"""Tests attention that is computed as one operator: the operators that it replaces, and its
results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_interop
from tests import nets
from tests.kinds.attention import attend, reference
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.unit.test_parts_of_products import program_of, run
from tvm_interop import GraphModule
from tvm_interop.frontend import load_model
from tvm_interop.lowering.narrow_storage import NarrowStorage
from tvm_interop.lowering.recognise import attention as recognise
from tvm_interop.machine.cpu_features import runs_own_kernels
from tvm_interop.machine.cpu_target import cpu_target
from tvm_interop.machine.kernel_libraries import why_missing
from tvm_interop.program.kinds.attention import Attention
from tvm_interop.program.library_op import LibraryOp
from tvm_interop.session.session import Session
from tvm_interop.transform import LowerToUnits, extract

pytestmark = [
    pytest.mark.skipif(
        why_missing("onednn") is not None, reason=f"no oneDNN: {why_missing('onednn')}"
    ),
    pytest.mark.skipif(
        not runs_own_kernels(cpu_target("llvm")), reason="this CPU has no AVX2 and FMA"
    ),
]

HEADS, QUERIES, POSITIONS, DEPTH = (2, 3), 20, 33, 8
SCORES = (*HEADS, QUERIES, POSITIONS)


@pytest.fixture(autouse=True)
def few_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make attention with few scores one operator too, so that small models are enough."""
    monkeypatch.setattr(recognise, "FEWEST_SCORES", 1)


class Model(nets.Net):
    """A network with one attention. Tests change parts of this attention."""

    def attend(
        self,
        scaled: Callable[[str], str] = str,
        softmaxed: Callable[[str], str] = str,
        *,
        axis: int = -1,
        queries: int = QUERIES,
        values: tuple[int, ...] = (*HEADS, POSITIONS, 5),
    ) -> onnx.ModelProto:
        q = self.input("q", [*HEADS, queries, DEPTH])
        k = self.input("k", [*HEADS, POSITIONS, DEPTH])
        v = self.input("v", values)
        keys = self.op("Transpose", [k], "keys", perm=[0, 1, 3, 2])
        scores = scaled(self.op("MatMul", [q, keys], "scores"))
        self.op("Softmax", [scores], "softmax", axis=axis)
        self.op("MatMul", [softmaxed("softmax"), v], "y")
        return self.model("y")


def found(model: onnx.ModelProto, **options: Any) -> Attention | None:
    """The operator that computes the model's attention; None if no single operator does."""
    lower = LowerToUnits(cpu_target("llvm"), libraries=("onednn",), **options)
    program = extract(lower(load_model(model)))
    kinds = [op.description for op in program.operators]
    return next((kind for kind in kinds if isinstance(kind, Attention)), None)


def number(net: Model, value: float) -> str:
    return net.constant(np.float32(value))


def test_the_transposed_keys_are_taken() -> None:
    op = found(Model().attend())
    assert op is not None
    assert (op.keys_by_position, op.has_mask, op.scale) == (True, False, 1)
    assert op.shapes[1] == (*HEADS, POSITIONS, DEPTH)


@pytest.mark.parametrize(
    ("kind", "factor", "first"), [("Mul", 0.25, False), ("Mul", 0.25, True), ("Div", 4.0, False)]
)
def test_scales(kind: str, factor: float, first: bool) -> None:
    net = Model()

    def scaled(scores: str) -> str:
        both = [scores, number(net, factor)]
        return net.op(kind, both[::-1] if first else both, "scaled")

    model = net.attend(scaled)
    op = found(model)
    assert op is not None
    assert op.scale == 0.25
    agrees(model)


def test_a_number_divided_by_the_scores_is_not_a_scale() -> None:
    net = Model()
    model = net.attend(lambda scores: net.op("Div", [number(net, 1.0), scores], "divided"))
    assert found(model) is None


@pytest.mark.parametrize(
    "shape", [SCORES, (QUERIES, POSITIONS), (2, 1, 1, POSITIONS), (3, QUERIES, 1), (1,)]
)
@pytest.mark.parametrize("first", [False, True])
def test_masks(shape: tuple[int, ...], first: bool) -> None:
    net = Model()

    def masked(scores: str) -> str:
        scaled = net.op("Div", [scores, number(net, 3.0)], "scaled")
        mask = net.input("mask", shape)
        return net.op("Add", [mask, scaled] if first else [scaled, mask], "masked")

    model = net.attend(masked)
    op = found(model)
    assert op is not None
    assert op.shapes[3] == (1,) * (4 - len(shape)) + shape
    agrees(model)


def test_a_product_as_the_mask() -> None:
    """With relative positions, two products are added, and either of them may be the scores."""
    net = Model()

    def masked(scores: str) -> str:
        other = net.op("MatMul", [net.input("a", (QUERIES, 4)), net.weight(4, POSITIONS)], "other")
        return net.op("Add", [other, scores], "masked")

    model = net.attend(masked)
    assert found(model) is None
    agrees(model)


def refused() -> dict[str, onnx.ModelProto]:
    """Models whose attention cannot become one operator, by the reason."""
    models = {}
    for name in ("product", "scaled", "softmax"):
        net = Model()
        also = {"product": "scores", "scaled": "scaled", "softmax": "softmax"}[name]
        net.attend(lambda s, net=net: net.op("Mul", [s, number(net, 2.0)], "scaled"))
        net.op("Relu", [also], "also")
        models[f"the {name} is read twice"] = net.model("y", "also")
    models["another axis"] = Model().attend(axis=-2)
    models["few queries"] = Model().attend(queries=7)
    net = Model()
    models["a function after the softmax"] = net.attend(
        softmaxed=lambda s: net.op("Relu", [s], "relu")
    )
    wide = Model()
    models["a mask of more heads"] = wide.attend(
        lambda s: wide.op("Add", [s, wide.input("m", (4, 1, 1, 1, 1))], "masked"),
        values=(4, *HEADS, POSITIONS, 5),
    )
    shared = Model()
    models["values that heads share"] = shared.attend(values=(POSITIONS, 5))
    return models


@pytest.mark.parametrize("reason", sorted(refused()))
def test_what_is_not_taken(reason: str) -> None:
    model = refused()[reason]
    assert found(model) is None
    agrees(model)


def test_few_scores_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = int(np.prod(SCORES))
    monkeypatch.setattr(recognise, "FEWEST_SCORES", scores)
    assert found(Model().attend()) is not None
    monkeypatch.setattr(recognise, "FEWEST_SCORES", scores + 1)
    assert found(Model().attend()) is None


def test_long_keys_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognise, "MOST_NUMBERS", DEPTH + 5)
    assert found(Model().attend()) is not None
    monkeypatch.setattr(recognise, "MOST_NUMBERS", DEPTH + 4)
    assert found(Model().attend()) is None


def test_other_cpus_and_bfloat16() -> None:
    model = Model().attend()
    assert found(model, narrow=NarrowStorage()) is None
    lower = LowerToUnits({"kind": "llvm", "mcpu": "x86-64-v2"}, libraries=("onednn",))
    lowered = lower(load_model(model))
    described = [op.description for op in extract(lowered).operators]
    assert [op.op for op in described if op] == ["matmul", "softmax", "matmul"]


def agrees(model: onnx.ModelProto) -> None:
    """Check that the compiled model gives onnxruntime's results."""
    inputs = random_inputs(model)
    built = tvm_interop.compile(model, latency_db=":memory:", time_budget=0)
    results = run_onnxruntime(model, inputs).values()
    for got, wanted in zip(GraphModule(built)(**inputs), results, strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-5)


def random_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        given.name: rng.standard_normal(
            [dim.dim_value for dim in given.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for given in model.graph.input
    }


def test_bits_do_not_depend_on_the_schedule(tmp_path: Path) -> None:
    """A sequential run, a run on two streams and a run on three threads give the same bits."""
    model = Model().attend(queries=301)
    inputs = random_inputs(model)
    results = set()
    for i, options in enumerate(
        ({"scheduler": "sequential"}, {"streams": 2}, {"streams": 1, "threads": 3})
    ):
        path = tmp_path / f"{i}.tar"
        tvm_interop.compile(model, out=path, keep_slower=True, latency_db=":memory:", **options)
        (got,) = Session(path).run(None, inputs)
        results.add(got.tobytes())
    assert len(results) == 1


INFINITE = float("inf")


@pytest.mark.parametrize("positions", [5, 16, 37])
def test_masks_of_minus_infinity(positions: int) -> None:
    """Masked positions do not change the result. A row in which all positions are masked gives
    NaN, as a softmax does."""
    op = attend((), 9, positions, 8, mask=(9, positions))
    queries, keys, values, mask = random_arrays(op)
    mask[:] = 0
    mask[1, 1:] = -INFINITE
    mask[2, :-1] = -INFINITE
    mask[3] = -INFINITE
    got = run(program_of(op), [queries, keys, values, mask]).reshape(9, 8)
    np.testing.assert_array_equal(got[1], values[0])
    np.testing.assert_array_equal(got[2], values[-1])
    assert np.isnan(got[3]).all()
    rest = [0, *range(4, 9)]
    np.testing.assert_allclose(
        got[rest], reference(op, [queries, keys, values, mask])[rest], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("at", [0, 7, 8, 36])
@pytest.mark.parametrize("number", [float("nan"), INFINITE])
def test_numbers_that_are_not_finite(at: int, number: float) -> None:
    """A score that is NaN or infinite makes its row NaN, and no other row."""
    op = attend((), 9, 37, 8, mask=(9, 37))
    arrays = random_arrays(op)
    arrays[3][4, at] = number
    got = run(program_of(op), arrays).reshape(9, 8)
    assert np.isnan(got[4]).all()
    assert np.isfinite(np.delete(got, 4, axis=0)).all()


@pytest.mark.parametrize("size", [1.0, 1e3, 1e30])
def test_large_scores(size: float) -> None:
    op = attend((3,), 9, 37, 8)
    arrays = random_arrays(op)
    arrays[0] *= np.float32(size)
    got = run(program_of(op), arrays).reshape(op.shapes[-1])
    wanted = reference(op, [array.astype(np.float64) for array in arrays])
    np.testing.assert_allclose(got, wanted, atol=2e-6 * min(size, 100.0))


def random_arrays(op: LibraryOp) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape).astype(np.float32) for shape in op.shapes[:-1]]
