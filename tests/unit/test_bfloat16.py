"""Tests models whose tensors are bfloat16: they compute in float32, and casts to bfloat16 round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import tirx

import tvm_interop
from tests.one_node import computed, one_node
from tvm_interop import GraphModule, InputError, Session, UnsupportedModelError
from tvm_interop.cli.app import run_app
from tvm_interop.frontend import bfloat16_types
from tvm_interop.kernels.bfloat16_words import nearest, widened, word_of
from tvm_interop.lowering.bfloat16_ports import conversion_of

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EPS = 2.0**-7
"""The distance from 1 to the next number of bfloat16."""
EVERY = np.arange(2**16, dtype=np.uint16).view(BFLOAT16)
"""Every number of bfloat16, infinities and NaN included."""
QUICK: dict[str, Any] = {"scheduler": "sequential", "time_budget": 0}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Casting NaN warns.


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(BFLOAT16)


def bits(array: np.ndarray) -> np.ndarray:
    """The bits of the numbers in an array. All NaN of the same sign get the same bits."""
    wide = array.astype(np.float32) if array.dtype == BFLOAT16 else array
    nan = np.where(np.signbit(wide), -np.inf, np.inf)
    plain = np.where(np.isnan(wide), nan.astype(wide.dtype), wide)
    return np.stack([plain.view(f"u{plain.itemsize}"), np.isnan(wide)])


def cast(array: np.ndarray, to: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the result of a `Cast` that we compiled, and the result of ONNX's reference."""
    model, feeds = one_node("Cast", [array], to=to, opset=21)
    (got,) = computed(model, feeds)
    (want,) = ReferenceEvaluator(model).run(None, feeds)
    assert got.dtype == want.dtype
    return got, want


def hard() -> np.ndarray:
    """Float32 numbers of every exponent and sign. Some lie exactly halfway between two numbers of
    bfloat16, some a little below, and some a little above."""
    high = np.arange(2**16, dtype=np.uint32) << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (high[:, None] | low).ravel().view(np.float32)


def test_float32_is_rounded_to_nearest_even() -> None:
    got, want = cast(hard(), TensorProto.BFLOAT16)
    assert np.array_equal(bits(got), bits(want))


@pytest.mark.parametrize("to", ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16"])
def test_every_number_is_cast_to_other_floats(to: str) -> None:
    got, want = cast(EVERY, getattr(TensorProto, to))
    assert np.array_equal(bits(got), bits(want))


@pytest.mark.parametrize(("to", "most"), [("INT8", 127), ("INT32", 2e9), ("INT64", 9e18)])
def test_numbers_are_cast_to_integers(to: str, most: float) -> None:
    given = EVERY[np.abs(EVERY.astype(np.float64)) < most]
    got, want = cast(given, getattr(TensorProto, to))
    assert np.array_equal(got, want)


def test_every_number_is_cast_to_booleans() -> None:
    got, want = cast(EVERY, TensorProto.BOOL)
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    "given",
    [
        np.random.default_rng(0).integers(-(2**62), 2**62, 5000),
        np.random.default_rng(1).integers(-(2**31), 2**31, 5000).astype(np.int32),
        np.arange(2**16, dtype=np.uint16).view(np.float16),
        np.nextafter(hard()[hard() == hard()].astype(np.float64), 1),
        np.array([True, False]),
    ],
    ids=["int64", "int32", "float16", "float64", "bool"],
)
def test_other_types_are_rounded(given: np.ndarray) -> None:
    got, want = cast(given, TensorProto.BFLOAT16)
    assert np.array_equal(bits(got), bits(want))


def checked(model: onnx.ModelProto, feeds: dict[str, np.ndarray], most: float = 2 * EPS) -> None:
    """Compare the model's outputs with those of ONNX's reference, which rounds each operator."""
    got = computed(model, feeds)
    want = ReferenceEvaluator(model).run(None, feeds)
    for mine, theirs in zip(got, want, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        wide, exact = mine.astype(np.float64), theirs.astype(np.float64)
        assert np.abs(wide - exact).max() <= most * max(1.0, float(np.abs(exact).max()))


OPERATORS: dict[str, tuple[str, Sequence[np.ndarray | None], dict[str, Any]]] = {
    "add": ("Add", [numbers(2, 3), numbers(3, seed=1)], {}),
    "matmul": ("MatMul", [numbers(2, 8), numbers(8, 4, seed=1)], {}),
    "gemm": ("Gemm", [numbers(2, 8), numbers(4, 8, seed=1), numbers(4)], {"transB": 1}),
    "conv": ("Conv", [numbers(1, 3, 6, 6), numbers(4, 3, 3, 3, seed=1)], {}),
    "softmax": ("Softmax", [numbers(2, 9)], {}),
    "gelu": ("Gelu", [numbers(2, 9)], {}),
    "layer norm": ("LayerNormalization", [numbers(2, 9), numbers(9, seed=1), numbers(9)], {}),
    "mean": ("ReduceMean", [numbers(2, 9)], {}),
    "gather": ("Gather", [numbers(5, 3), np.array([4, 0])], {}),
    "where": ("Where", [np.array([True, False]), numbers(2), numbers(2, seed=1)], {}),
    "less": ("Less", [numbers(50), numbers(50, seed=1)], {}),
    "equal": ("Equal", [numbers(9), numbers(9)], {}),
    "maximum": ("ArgMax", [numbers(2, 50)], {}),
    "pool": ("MaxPool", [numbers(1, 2, 4, 4)], {"kernel_shape": [2, 2]}),
    "transpose": ("Transpose", [numbers(2, 3)], {}),
    "clip": ("Clip", [numbers(9), np.array(-0.5, BFLOAT16), np.array(0.5, BFLOAT16)], {}),
    "like": ("CastLike", [np.arange(3, dtype=np.float32) / 3, numbers(1)], {}),
    "isnan": ("IsNaN", [EVERY], {}),
}


@pytest.mark.parametrize("case", OPERATORS)
def test_operators(case: str) -> None:
    kind, inputs, attributes = OPERATORS[case]
    checked(*one_node(kind, inputs, opset=20, **attributes))
    if len(inputs) > 1:
        checked(*one_node(kind, inputs, (1,), opset=20, **attributes))


def test_numbers_are_quantised_by_scales_of_bfloat16() -> None:
    x, scale, zero = numbers(4, 6), np.array(0.0625, BFLOAT16), np.array(3, np.int8)
    model, feeds = one_node("QuantizeLinear", [x, scale, zero], (1, 2), opset=23)
    checked(model, feeds, 0)
    whole = np.arange(-128, 128).astype(np.int8)
    checked(*one_node("DequantizeLinear", [whole, scale, zero], (1, 2), opset=23), 0)


def test_only_casts_round_between_operators() -> None:
    """The sum 1 + 2**-9 is not a number of bfloat16. Without a cast, the next operator reads it
    unrounded."""
    x, small = np.ones(1, BFLOAT16), np.full(1, 2.0**-9, BFLOAT16)

    def result(*, with_cast: bool) -> float:
        nodes = [helper.make_node("Add", ["x", "small"], ["sum"])]
        if with_cast:
            nodes.append(helper.make_node("Cast", ["sum"], ["cast"], to=TensorProto.BFLOAT16))
        read = "cast" if with_cast else "sum"
        nodes += [
            helper.make_node("Sub", [read, "x"], ["difference"]),
            helper.make_node("Cast", ["difference"], ["y"], to=TensorProto.FLOAT),
        ]
        model = _model(nodes, {"x": x, "small": small}, {"y": TensorProto.FLOAT})
        (found,) = computed(model, {"x": x, "small": small})
        return float(found[0])

    assert result(with_cast=False) == 2.0**-9
    assert result(with_cast=True) == 0


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, np.ndarray],
    outputs: dict[str, int],
    weights: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype
    given = [helper.make_tensor_value_info(n, kind(a.dtype), a.shape) for n, a in inputs.items()]
    results = [helper.make_tensor_value_info(name, t, None) for name, t in outputs.items()]
    tensors = [numpy_helper.from_array(a, name) for name, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", given, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_bodies_of_control_flow() -> None:
    state = helper.make_tensor_value_info("s", TensorProto.BFLOAT16, [3])
    after = helper.make_tensor_value_info("t", TensorProto.BFLOAT16, [3])
    each = helper.make_tensor_value_info("e", TensorProto.BFLOAT16, [3])
    half = numpy_helper.from_array(np.array(0.5, BFLOAT16), "half")
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["s", "half"], ["m"]),
            helper.make_node("Add", ["m", "e"], ["t"]),
        ],
        "body",
        [state, each],
        [after],
        [half],
    )
    branches = {
        name: helper.make_graph([helper.make_node(op, ["last"], [name])], name, [], [
            helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [3])
        ])
        for name, op in (("then_branch", "Neg"), ("else_branch", "Abs"))
    }  # fmt: skip
    nodes = [
        helper.make_node("Scan", ["first", "rows"], ["last"], body=body, num_scan_inputs=1),
        helper.make_node("If", ["chosen"], ["y"], **branches),
    ]
    feeds = {"first": numbers(3), "rows": numbers(4, 3, seed=1), "chosen": np.array(True)}
    model = _model(nodes, feeds, {"y": TensorProto.BFLOAT16})
    for chosen in (True, False):
        checked(model, {**feeds, "chosen": np.array(chosen)})


def test_weights_in_other_files(tmp_path: Path) -> None:
    weight, x = numbers(1024, 600), numbers(2, 1024, seed=1)
    feeds, nodes = {"x": x}, [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = _model(nodes, feeds, {"y": TensorProto.BFLOAT16}, {"w": weight})
    want = computed(model, feeds)[0]
    inside, outside = tmp_path / "inside.onnx", tmp_path / "outside.onnx"
    onnx.save(model, inside)
    onnx.save(model, outside, save_as_external_data=True, size_threshold=0)
    assert outside.stat().st_size < weight.nbytes
    for path in (inside, outside):
        assert np.array_equal(computed(path, feeds)[0], want)
    exact = x.astype(np.float64) @ weight.astype(np.float64)
    assert np.abs(want.astype(np.float64) - exact).max() <= EPS * np.abs(exact).max()


def test_weights_in_memory_that_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, _ = product()
    monkeypatch.setattr(bfloat16_types, "_MOST_BYTES", 4 * 8 * 4)
    with pytest.raises(UnsupportedModelError, match=r"GiB as float32, .*give the path of its file"):
        tvm_interop.compile(model, **QUICK)
    monkeypatch.setattr(bfloat16_types, "_MOST_BYTES", 4 * 8 * 4 + 1)
    tvm_interop.compile(model, **QUICK)


def test_outputs_that_are_inputs_or_constants() -> None:
    x, w = numbers(3), numbers(3, seed=1)
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["w"], ["fixed"]),
        helper.make_node("Reshape", ["x", "shape"], ["column"]),
    ]
    kinds = dict.fromkeys(("same", "fixed", "column"), TensorProto.BFLOAT16)
    model = _model(nodes, {"x": x}, kinds, {"w": w, "shape": np.array([3, 1])})
    same, fixed, column = computed(model, {"x": x})
    assert [a.dtype for a in (same, fixed, column)] == [BFLOAT16] * 3
    assert np.array_equal(same, x)
    assert np.array_equal(fixed, w)
    assert np.array_equal(column[:, 0], x)


def test_reinterpreted_bits_are_refused() -> None:
    model, _ = one_node("BitCast", [numbers(3)], to=TensorProto.UINT16, opset=26)
    with pytest.raises(UnsupportedModelError, match=r"`the_node` \(`BitCast`\) reinterprets"):
        tvm_interop.compile(model, **QUICK)


def product(rows: int | str = 2) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """Return three things: a model that multiplies its input by a matrix, an input for it, and the
    expected output."""
    w, x = numbers(8, 4), numbers(2, 8, seed=1)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = _model(nodes, {"x": x}, {"y": TensorProto.BFLOAT16}, {"w": w})
    if rows != 2:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = str(rows)
    want = (x.astype(np.float32) @ w.astype(np.float32)).astype(BFLOAT16)
    return model, x, want


def test_graph_module_takes_and_gives_bfloat16(tmp_path: Path) -> None:
    model, x, want = product()
    path = tmp_path / "model.tar"
    tvm_interop.compile(model, **QUICK).save(path)
    module = GraphModule(tvm_interop.load(path))
    assert module.get_input_info()[1] == {"x": "bfloat16"}
    assert module.get_output_info()[1] == {"y": "bfloat16"}
    for wrong in (x.astype(np.float32), x.view(np.uint16)):
        with pytest.raises(InputError, match="`x` must be bfloat16"):
            module.set_input("x", wrong)
    module.set_input("x", x)
    module.run()
    assert np.array_equal(module.get_output(0).numpy(), want)
    out = np.empty((2, 4), BFLOAT16)
    module.get_output(0, out)
    assert np.array_equal(out, want)
    given = tvm_interop.aligned_empty((2, 8), "bfloat16")
    given[...] = -x
    module.set_input_zero_copy("x", given)
    taken = module.set_output_zero_copy(0)
    module.run()
    assert np.array_equal(taken, -want)


def test_tensors_of_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
    model, x, want = product()
    module = GraphModule(tvm_interop.compile(model, **QUICK))
    tensor = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    module.set_input("x", tensor)
    module.run()
    out = torch.empty(2, 4, dtype=torch.bfloat16)
    module.get_output(0, out)
    shared = torch.from_dlpack(module.get_output_zero_copy(0))
    for found in (out, shared):
        assert found.dtype == torch.bfloat16
        assert np.array_equal(found.view(torch.int16).numpy().view(BFLOAT16), want)
    module.set_input("x", tensor.T.contiguous().T)  # The input is stored by columns.
    module.run()
    assert np.array_equal(module.get_output(0).numpy(), want)


def test_sessions() -> None:
    model, x, want = product("n")
    session = Session(model, **QUICK)
    assert session.get_inputs()[0].type == "tensor(bfloat16)"
    for given in (x, x.astype(np.float64).tolist()):
        (got,) = session.run(None, {"x": given})
        assert np.asarray(got).dtype == BFLOAT16
        assert np.array_equal(got, want)


def test_the_command_line(tmp_path: Path) -> None:
    model, x, want = product()
    artifact, inputs, outputs = (tmp_path / name for name in ("a.tar", "in.npz", "out.npz"))
    tvm_interop.compile(model, **QUICK).save(artifact)
    for given in (x, x.astype(np.float32)):
        np.savez(inputs, x=given)
        run_app(["run", str(artifact), "-i", str(inputs), "-o", str(outputs)])
        with np.load(outputs) as found:
            assert found["y"].dtype == np.float32
            assert np.array_equal(found["y"].astype(BFLOAT16), want)
    run_app(["run", str(artifact)])  # On random numbers.


def test_models_for_gpus_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"input `x` is bfloat16.* for GPUs"):
        tvm_interop.compile(product()[0], target="cuda -arch=sm_80")


def test_sizes_that_are_filled_up() -> None:
    """A range of sizes is compiled, because the proof that padding does not change results also
    covers the casts to bfloat16."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"]),
        helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["f"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    x, w = numbers(5, 8), numbers(8, 4, seed=1)
    model = _model(nodes, {"x": x}, {"y": TensorProto.BFLOAT16}, {"w": w})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    module = GraphModule(tvm_interop.compile(model, shapes={"n": (1, 6)}, **QUICK))
    module.run({"x": x})
    want = ReferenceEvaluator(model).run(None, {"x": x})[0].astype(np.float32)
    got = module.get_output(0).numpy().astype(np.float32)
    assert np.abs(got - want).max() <= 4 * EPS


def test_conversions_are_recognised() -> None:
    x, word = tirx.Var("x", "float32"), tirx.Var("word", "uint16")
    rounding = conversion_of(tirx.reinterpret("float32", nearest(x)))
    assert rounding is not None
    assert rounding.types == ("bfloat16", "float32")
    assert rounding.operand.same_as(x)
    narrowing, widening = conversion_of(word_of(nearest(x))), conversion_of(widened(word))
    assert (narrowing.types, widening.types) == (("bfloat16",), ("float32",))
    for other in (x + x, nearest(x), tirx.reinterpret("float32", tirx.Var("u", "uint32"))):
        assert conversion_of(other) is None
