"""Tests convolutions by Winograd's algorithm: when it is chosen, the size of its rounding errors,
and that each run gives the same bits.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_interop
from tests import nets
from tests.kind_variants import laid_out, plain
from tests.kind_windows import convolved
from tests.made_up_latency import MadeUp, Microseconds
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.unit.test_onednn import needs_bf16
from tests.unit.test_parts_of_products import program_of, run, run_again
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.compiler.kernel_choice import choose_kernels
from tvm_interop.compiler.time_budget import TimeBudget
from tvm_interop.compiler.winograd_choice import winograd_us, with_winograd
from tvm_interop.errors import OutOfTimeError
from tvm_interop.frontend import load_model
from tvm_interop.machine.kernel_libraries import why_missing
from tvm_interop.program.concat_in_place import concat_in_place
from tvm_interop.program.kinds.winograd_conv2d import WinogradConv2d, as_winograd
from tvm_interop.program.library_op import LibraryOp, library_op
from tvm_interop.program.program import Operator, Program
from tvm_interop.program.storage import Layout
from tvm_interop.session.session import Session
from tvm_interop.transform import LowerToUnits, extract

pytestmark = pytest.mark.skipif(
    why_missing("onednn") is not None, reason=f"no oneDNN: {why_missing('onednn')}"
)


def conv(
    channels: int = 32, made: int = 32, size: int = 20, window: int = 3, **fields: Any
) -> LibraryOp:
    pad = window // 2
    shapes = ((1, channels, size, size), (made, channels, window, window), (1, made, size, size))
    usual = {"strides": (1, 1), "padding": (pad,) * 4, "dilation": (1, 1)}
    window_fields = {"window": (window, window), **usual, **fields}
    return library_op(op="conv2d", shapes=shapes, layouts=("plain",) * 3, **window_fields)


def program(op: LibraryOp, *, is_constant: bool = True) -> Program:
    made = program_of(op)
    weight = np.zeros(op.shapes[1], np.float32)
    return dataclasses.replace(made, weights={1: weight} if is_constant else {})


def chosen(given: Program, us: Microseconds, budget: TimeBudget | None = None) -> bool:
    """Whether Winograd's algorithm is chosen for the program's operator, with these latencies."""
    taken = with_winograd(given, lambda p: MadeUp(p, us), budget or TimeBudget())
    (op,) = taken.operators
    if isinstance(op.description, WinogradConv2d):
        return True
    assert taken.operators == given.operators
    return False


def taking(direct_us: float, winograd_us: float) -> Microseconds:
    def us(op: Operator) -> float:
        return winograd_us if isinstance(op.description, WinogradConv2d) else direct_us

    return us


def test_the_faster_kernel_is_chosen() -> None:
    assert chosen(program(conv()), taking(100, 50))
    assert not chosen(program(conv()), taking(100, 95))
    assert not chosen(program(conv()), taking(50, 100))


@needs_bf16
def test_with_bf16_the_tensors_stay_bfloat16() -> None:
    stored = ("bfloat16", "float32", "bfloat16")
    given = program(conv().with_fields(dtype="bfloat16", stored=stored))
    (op,) = with_winograd(given, lambda p: MadeUp(p, taking(100, 50)), TimeBudget()).operators
    assert isinstance(op.description, WinogradConv2d)
    assert (op.description.dtype, op.description.stored) == ("float32", stored)
    assert not chosen(given, taking(50, 50))


def test_more_weights_are_counted() -> None:
    # The transformed weights of 512 x 512 windows take 28 MB more than the plain weights.
    # Reading the 28 MB takes 2.4 ms.
    large = program(conv(512, 512, 7))
    assert not chosen(large, taking(3000, 1000))
    assert chosen(large, taking(6000, 1000))


def test_layouts_are_chosen_by_the_fastest_kernels() -> None:
    def us(op: Operator) -> float:
        if op.library is None:
            return 100.0
        assert op.description is not None
        if op.description.op == "reorder":
            return 5.0
        is_plain = set(op.description.layouts) == {"plain"}
        if isinstance(op.description, WinogradConv2d):
            return 60.0 if is_plain else 10.0
        return 40.0 if is_plain else 45.0

    lowered = LowerToUnits(libraries=("onednn",))(load_model(net()))
    given = concat_in_place(extract(lowered))

    def latency_of(program: Program) -> MadeUp:
        return MadeUp(program, us)

    def layouts(**options: Any) -> set[str]:
        chosen = choose_kernels(given, ("tvm", "onednn"), latency_of, **options)
        return {value.layout for value in chosen.values}

    assert layouts() == {"plain"}
    with_others = layouts(other_kernels=partial(winograd_us, latency_of=latency_of))
    assert with_others == {"plain", "blocked16"}


@pytest.mark.parametrize(
    "op",
    [
        conv(window=1),
        conv(window=5),
        conv().with_fields(strides=(2, 2), shapes=((1, 32, 39, 39), *conv().shapes[1:])),
        conv(4, 32),
        conv(32, 4),
        conv(8, 8, 6),
        conv().with_fields(groups=2, shapes=((1, 64, 20, 20), *conv().shapes[1:])),
        conv().with_fields(activation="tanh"),
        conv().with_fields(dtype="float16"),
    ],
)
def test_other_convolutions_stay(op: LibraryOp) -> None:
    assert not chosen(program(op), taking(1000, 1))


def test_a_weight_that_is_not_constant_stays() -> None:
    assert not chosen(program(conv(), is_constant=False), taking(1000, 1))


def test_time_budgets() -> None:
    assert not chosen(program(conv()), taking(1000, 1), TimeBudget.of(0))
    budget = TimeBudget()

    def too_late(_: Operator) -> float:
        raise OutOfTimeError("the time is over")

    assert not chosen(program(conv()), too_late, budget)
    assert any("Winograd" in step for step in budget.not_tried)


def kinds(model: onnx.ModelProto, **options: Any) -> list[str]:
    # If TVM's kernels were allowed too, a disturbed measurement could choose them.
    options = {"providers": ["onednn"], "latency_db": ":memory:", **options}
    operators = Compilation(model, CompileOptions(**options)).program.operators
    return [op.description.op for op in operators if op.description is not None]


def test_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_interop.compiler.winograd_choice._FASTER", 1e9)
    model = net()
    assert "winograd_conv2d" in kinds(model)
    assert "winograd_conv2d" not in kinds(model, winograd=False)
    # CPUs for which the target compiles may lack the instructions of the Winograd kernels.
    assert "winograd_conv2d" not in kinds(model, target="llvm -mcpu=x86-64-v2")


def net() -> onnx.ModelProto:
    made = nets.Net()
    x = made.input("x", [1, 16, 33, 29])
    for name, channels in (("a", 16), ("b", 32), ("c", 32)):
        x = made.op("Relu", [made.conv(x, name, (channels, 32), 3)], name + "r")
    return made.model(x)


def test_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sequential and scheduled runs, and runs without Python's TVM, give the same bits."""
    monkeypatch.setattr("tvm_interop.compiler.winograd_choice._FASTER", 1e9)
    model = net()
    x = np.random.default_rng(0).standard_normal((1, 16, 33, 29)).astype(np.float32)
    (wanted,) = run_onnxruntime(model, {"x": x}).values()
    results = []
    known = tmp_path / "latency.db"  # Both compilations choose equal kernels.
    for scheduler in ("sequential", "greedy"):
        path = tmp_path / f"{scheduler}.tar"
        tvm_interop.compile(
            model, out=path, scheduler=scheduler, keep_slower=True, latency_db=known, streams=2
        )
        (got,) = Session(path).run(None, {"x": x})
        np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max())
        results.append(got.tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("layout", ["plain", "blocked16", "blocked8"])
def test_bits_do_not_depend_on_layouts(layout: Layout) -> None:
    op = as_winograd(conv(40, 24, 19))
    assert op is not None
    arrays = inputs(op, 1)
    usual = run(program_of(op), arrays)
    assert np.abs(usual).max() > 0
    laid = op.with_fields(layouts=(layout, "plain", "plain"))
    blocked = run(program_of(laid), [laid_out(arrays[0], layout), arrays[1]])
    assert blocked.tobytes() == usual.tobytes()


def test_weights_that_change() -> None:
    op = as_winograd(conv())
    assert op is not None
    data, weight = inputs(op, 1)
    other = inputs(op, 2)[1]
    results = run_again(program_of(op), [data, weight], other, constant=False)
    for got, factors in zip(results, (weight, other), strict=True):
        exact = exact_sums(op, [data, factors])
        np.testing.assert_allclose(got.reshape(exact.shape), exact, atol=1e-4)


def inputs(op: LibraryOp, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in op.shapes[:-1]]


@pytest.mark.parametrize("channels", [8, 64, 256])
def test_the_error_is_like_that_of_direct_sums(channels: int) -> None:
    """The error is at most five times the error of direct sums, and 2e-6 of the largest result."""
    direct = conv(channels, 32, 24)
    op = as_winograd(direct)
    assert op is not None
    arrays = inputs(direct, channels)
    exact = exact_sums(direct, arrays)
    errors = [np.abs(computed(each, arrays) - exact).max() for each in (direct, op)]
    assert errors[1] <= 5 * errors[0], errors
    assert errors[1] <= 2e-6 * np.abs(exact).max()


def computed(op: LibraryOp, arrays: list[np.ndarray]) -> np.ndarray:
    return plain(run(program_of(op), arrays), op.shapes[-1], "plain")


def exact_sums(op: LibraryOp, arrays: list[np.ndarray]) -> np.ndarray:
    data, weight = (array.astype(np.float64) for array in arrays)
    return convolved(op, data, weight)


SIZES = (1, 4, 5, 8, 13)


@pytest.mark.parametrize("width", SIZES)
def test_edges(width: int) -> None:
    """Tiles at the right and lower edge write nothing beyond the image, and read zeros there."""
    for height in SIZES:
        shapes = ((1, 9, height, width), (11, 9, 3, 3), (1, 11, height, width))
        op = as_winograd(conv().with_fields(shapes=shapes))
        assert op is not None
        arrays = inputs(op, height)
        got = computed(op, arrays)
        np.testing.assert_allclose(got, exact_sums(op, arrays), atol=1e-4)
