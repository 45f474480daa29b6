"""Compares quantised kernels of oneDNN and TVM, one at a time, with sums of integers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm

from tvm_interop._native import cpu as _runtime
from tvm_interop._native.operators import BoundOperator
from tvm_interop.compiler.cpu import INT8_FEATURE
from tvm_interop.execution.cpu import as_tensor
from tvm_interop.lowering.quantised_kernels import quantised_kernel
from tvm_interop.machine.cpu_features import host_features
from tvm_interop.machine.kernel_libraries import why_missing, why_unsupported
from tvm_interop.program.host_memory import aligned_copy, aligned_empty
from tvm_interop.program.library_op import LibraryOp, library_op

needs_int8 = pytest.mark.skipif(
    why_missing("onednn") is not None or INT8_FEATURE not in host_features(),
    reason="needs oneDNN and a CPU with AVX512-VNNI",
)

STRIDED = {"stride": 2, "padding": (0, 0, 1, 1)}
CONVS: dict[str, tuple[tuple[int, ...], int, int, dict[str, Any]]] = {
    "image": ((1, 9, 8, 3), 20, 7, {"stride": 2, "padding": (3, 3, 3, 3)}),
    "blocks": ((1, 14, 14, 64), 64, 3, {"padding": (1, 1, 1, 1)}),
    "batch, odd": ((2, 9, 7, 5), 7, 3, {"padding": (1, 0, 2, 1)}),
    "pointwise": ((1, 8, 8, 32), 48, 1, {"stride": 2}),
    "depthwise": ((1, 10, 10, 24), 24, 3, {"groups": 24, **STRIDED}),
    "dilated groups": ((1, 12, 12, 12), 18, 3, {"groups": 3, "dilation": 2, "padding": (2,) * 4}),
}


def conv(name: str, data_type: str, result_type: str, zero: int, **more: Any) -> LibraryOp:
    data, channels, window, given = CONVS[name]
    given = {"stride": 1, "padding": (0, 0, 0, 0), "dilation": 1, "groups": 1, **given}
    stride, padding, dilation = given["stride"], given["padding"], given["dilation"]
    result = [
        (data[1 + a] + padding[a] + padding[2 + a] - (window - 1) * dilation - 1) // stride + 1
        for a in (0, 1)
    ]
    each = data[3] // given["groups"]
    return library_op(
        op="quantised_conv2d",
        shapes=(
            data,
            (channels, each, window, window),
            (channels,),
            (channels,),
            (data[0], *result, channels),
        ),
        layouts=("plain",) * 5,
        dtype="int8",
        stored=(data_type, "int8", "float32", "float32", result_type),  # type: ignore[arg-type]
        window=(window, window),
        strides=(stride, stride),
        padding=padding,
        dilation=(dilation, dilation),
        groups=given["groups"],
        has_bias=True,
        data_zero=zero,
        **more,
    )


def matmul(
    left: Sequence[int], right: Sequence[int], types: tuple[str, str], zeros: tuple[int, int]
) -> LibraryOp:
    channels = (right[-1],)
    return library_op(
        op="quantised_matmul",
        shapes=(tuple(left), tuple(right), channels, channels, (*left[:-1], right[-1])),
        layouts=("plain",) * 5,
        dtype="int8",
        stored=(types[0], "int8", "float32", "float32", types[1]),  # type: ignore[arg-type]
        has_bias=True,
        data_zero=zeros[0],
        weight_zero=zeros[1],
    )


def numbers(op: LibraryOp) -> list[np.ndarray]:
    """Random integers of their whole range, and a scale that spreads the result over a byte."""
    rng = np.random.default_rng(0)

    def drawn(shape: tuple[int, ...], t: str) -> np.ndarray:
        return rng.integers(np.iinfo(t).min, np.iinfo(t).max + 1, shape).astype(t)

    integers = [drawn(*each) for each in zip(op.shapes[:2], op.stored[:2], strict=True)]
    terms = np.prod(op.shapes[1][1:]) if op.op == "quantised_conv2d" else op.shapes[0][-1]
    scale = rng.uniform(0.5, 1.5, op.shapes[2]) * 60 / (74 * 147 * np.sqrt(terms))
    bias = rng.normal(scale=10, size=op.shapes[3]) + (128 if op.stored[-1] == "uint8" else 0)
    added = [drawn(op.shapes[-2], op.stored[-2])] if op.has_sum else []
    return [*integers, scale.astype(np.float32), bias.astype(np.float32), *added]


def expected(op: LibraryOp, arrays: list[np.ndarray]) -> np.ndarray:
    fields = SimpleNamespace(**op.fields())
    data, weight = arrays[0].astype(np.int64) - fields.data_zero, arrays[1].astype(np.int64)
    weight = weight - fields.weight_zero
    total = data @ weight if op.op == "quantised_matmul" else conv_sums(op, data, weight)
    result = total.astype(np.float32) * arrays[2] + arrays[3]
    for kind, a, b in fields.steps:
        if kind == "clip":
            result = np.clip(result, a, b)
        elif kind == "round":
            result = np.rint(result)
        else:
            result = result * a + b if kind == "linear" else result + arrays[-1]
    if fields.activation == "clip":
        result = np.clip(result, fields.clip_low, fields.clip_high)
    if op.stored[-1] == "float32":
        return np.asarray(result)
    bounds = np.iinfo(op.stored[-1])
    return np.asarray(np.clip(np.rint(result), bounds.min, bounds.max))


def conv_sums(op: LibraryOp, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    fields = SimpleNamespace(**op.fields())
    top, left, bottom, right = fields.padding
    padded = np.pad(data, ((0, 0), (top, bottom), (left, right), (0, 0)))
    result = np.zeros(op.shapes[-1], np.int64)
    made, each = weight.shape[0] // fields.groups, weight.shape[1]
    (_, rows, columns, _), (sy, sx) = op.shapes[-1], fields.strides
    ey, ex = fields.dilation
    for group in range(fields.groups):
        out = slice(group * made, (group + 1) * made)
        for dy, dx in np.ndindex(*weight.shape[2:]):
            y, x = dy * ey, dx * ex
            part = padded[:, y : y + (rows - 1) * sy + 1 : sy, x : x + (columns - 1) * sx + 1 : sx]
            part = part[..., group * each : (group + 1) * each]
            result[..., out] += part @ weight[out, :, dy, dx].T
    return result


def by_onednn(op: LibraryOp, arrays: list[np.ndarray], constants: bool = True) -> np.ndarray:
    assert why_unsupported("onednn", op) == ""
    out = aligned_empty(op.shapes[-1], op.stored[-1])
    kept = [*map(aligned_copy, arrays), out]
    tensors = [as_tensor(array) for array in kept]
    is_constant = [constants and 0 < i < len(arrays) for i in range(len(tensors))]
    kernel = _runtime.prepare_kernel("onednn", op.fields(), 1, tensors, is_constant)
    operator = BoundOperator("op", kernel, range(len(tensors)))
    _runtime.run(_runtime.make_executor(1, 1, tensors, [operator]))
    return out


def by_tvm(op: LibraryOp, arrays: list[np.ndarray]) -> np.ndarray:
    out = tvm.runtime.empty(op.shapes[-1], op.stored[-1])
    kernel = quantised_kernel(op).with_attr("global_symbol", "main")
    tvm.compile(kernel, target="llvm")(*map(tvm.runtime.tensor, arrays), out)
    return np.asarray(out.numpy())


def check(op: LibraryOp, got: np.ndarray, wanted: np.ndarray) -> None:
    """Check results. Sums must be exact, but the scale and the bias may be rounded differently."""
    if op.stored[-1] == "float32":
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)
        return
    assert wanted.max() - wanted.min() > 30
    difference = np.abs(got.astype(np.int64) - wanted.astype(np.int64))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01


@needs_int8
@pytest.mark.parametrize("zero", [0, 37])
@pytest.mark.parametrize("result_type", ["uint8", "int8", "float32"])
@pytest.mark.parametrize("data_type", ["uint8", "int8"])
@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name: str, data_type: str, result_type: str, zero: int) -> None:
    op = conv(name, data_type, result_type, zero)
    arrays = numbers(op)
    check(op, by_onednn(op, arrays), expected(op, arrays))


PRODUCTS = {
    "rows": ((5, 32), (32, 48)),
    "one row": ((1, 100), (100, 10)),
    "many rows": ((2, 7, 33), (33, 20)),
    "matrices": ((2, 3, 16, 32), (2, 3, 32, 16)),
}


@needs_int8
@pytest.mark.parametrize("zeros", [(0, 0), (37, 0), (37, 11), (37, -20)])
@pytest.mark.parametrize("types", [("uint8", "uint8"), ("int8", "int8"), ("uint8", "float32")])
@pytest.mark.parametrize("name", PRODUCTS)
def test_matrix_products(name: str, types: tuple[str, str], zeros: tuple[int, int]) -> None:
    op = matmul(*PRODUCTS[name], types, zeros)
    arrays = numbers(op)
    for constants in (True, False):
        check(op, by_onednn(op, arrays, constants), expected(op, arrays))


@needs_int8
def test_a_clip_is_in_steps() -> None:
    op = conv("blocks", "uint8", "uint8", 3, activation="clip", clip_low=100.0, clip_high=140.0)
    arrays = numbers(op)
    got = by_onednn(op, arrays)
    assert (got.min(), got.max()) == (100, 140)
    assert np.abs(got.astype(int) - expected(op, arrays)).max() <= 1


def summed(op: LibraryOp, added: str) -> LibraryOp:
    """`op` with steps that round its result and add another tensor."""
    steps = (
        ("clip", float(np.iinfo(added).min), float(np.iinfo(added).max)),
        ("round", 0.0, 0.0),
        ("linear", 0.7, -3.5),
        ("add_tensor", 0.0, 0.0),
        ("linear", 0.6, 20.0),
    )
    more = {
        "shapes": (*op.shapes, op.shapes[-1]),
        "layouts": ("plain",) * 6,
        "stored": (*op.stored[:-1], added, op.stored[-1]),
    }
    return library_op(**op.fields() | more | {"has_sum": True, "steps": steps})


SUMS = {
    "blocks": summed(conv("blocks", "uint8", "uint8", 37), "uint8"),
    "odd, to int8": summed(conv("batch, odd", "uint8", "int8", 3), "uint8"),
    "pointwise, of int8": summed(conv("pointwise", "uint8", "uint8", 0), "int8"),
    "depthwise": summed(conv("depthwise", "int8", "uint8", -5), "uint8"),
    "clipped": summed(
        conv("blocks", "uint8", "uint8", 0, activation="clip", clip_low=60.0, clip_high=140.0),
        "uint8",
    ),
    "product": summed(matmul(*PRODUCTS["many rows"], ("uint8", "uint8"), (37, 0)), "uint8"),
    "one row": summed(matmul(*PRODUCTS["one row"], ("uint8", "uint8"), (37, 0)), "int8"),
    "matrices": summed(matmul(*PRODUCTS["matrices"], ("int8", "int8"), (3, 0)), "int8"),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_after_a_rounding(name: str) -> None:
    op = SUMS[name]
    assert LibraryOp.from_json(op.to_json()) == op
    arrays = numbers(op)
    wanted = expected(op, arrays)
    check(op, by_tvm(op, arrays), wanted)
    if why_missing("onednn") is None and INT8_FEATURE in host_features():
        check(op, by_onednn(op, arrays), wanted)


def test_a_sum_needs_a_step_that_adds() -> None:
    if why_missing("onednn") is not None:
        pytest.skip("needs oneDNN")
    op = SUMS["blocks"]
    without = library_op(**op.fields() | {"steps": op.fields()["steps"][:3]})
    assert "must add its tensor in a single step" in why_unsupported("onednn", without)
    stored = (*op.stored[:4], "float32", op.stored[-1])
    wide = library_op(**op.fields() | {"stored": stored})
    assert "adds a tensor that is not of 8 bits" in why_unsupported("onednn", wide)
    empty = library_op(**op.fields() | {"steps": (("clip", 3.0, 1.0), *op.fields()["steps"][1:])})
    assert "clips to an empty range" in why_unsupported("onednn", empty)
    floats = library_op(**conv("blocks", "uint8", "uint8", 0).fields() | {"op": "conv2d"})
    assert why_unsupported("onednn", floats) != ""


@pytest.mark.parametrize(
    "op",
    [
        conv("batch, odd", "uint8", "uint8", 37),
        conv("dilated groups", "int8", "float32", 5),
        matmul(*PRODUCTS["many rows"], ("uint8", "int8"), (37, 0)),
        matmul(*PRODUCTS["matrices"], ("int8", "float32"), (3, 11)),
    ],
    ids=lambda op: op.op,
)
def test_kernels_of_tvm(op: LibraryOp) -> None:
    arrays = numbers(op)
    check(op, by_tvm(op, arrays), expected(op, arrays))


def pool(data: tuple[int, ...], made: tuple[int, ...], dtype: str) -> LibraryOp:
    return library_op(
        op="quantised_max_pool2d",
        shapes=(data, made),
        layouts=("plain", "plain"),
        dtype="int8",
        stored=(dtype, dtype),  # type: ignore[arg-type]
        window=(3, 3),
        strides=(2, 2),
        padding=(1, 1, 1, 1),
        dilation=(1, 1),
    )


@needs_int8
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_max_pools_agree(dtype: str) -> None:
    op = pool((1, 12, 10, 20), (1, 6, 5, 20), dtype)
    rng = np.random.default_rng(0)
    data = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, op.shapes[0]).astype(dtype)
    least = np.iinfo(dtype).min
    padded = np.pad(data, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=least)
    windows = [padded[:, y : y + 11 : 2, x : x + 9 : 2] for y in range(3) for x in range(3)]
    wanted = np.max(windows, axis=0)
    np.testing.assert_array_equal(by_onednn(op, [data]), wanted)
    np.testing.assert_array_equal(by_tvm(op, [data]), wanted)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("name", ["windows", "whole image", "rounded up"])
def test_means_agree(name: str, counts: bool, dtype: str) -> None:
    of_windows = pool((2, 9, 10, 20), (2, 5, 5, 20), dtype)
    whole = pool((1, 7, 9, 33), (1, 1, 1, 33), dtype)
    more: dict[str, Any] = {"op": "quantised_avg_pool2d", "counts_padding": counts}
    if name == "whole image":
        more |= {"window": (7, 9), "strides": (1, 1), "padding": (0,) * 4}
    if name == "rounded up":
        if counts:
            pytest.skip("oneDNN would count the part of the window beyond the image")
        more |= {"shapes": ((1, 8, 10, 20), (1, 4, 5, 20)), "padding": (0,) * 4}
    more["steps"] = (("linear", 1.7, -11.25),)
    op = library_op(**(whole if name == "whole image" else of_windows).fields() | more)
    rng = np.random.default_rng(0)
    data = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, op.shapes[0]).astype(dtype)
    fields = op.fields()
    (top, left, bottom, right), (ky, kx) = fields["padding"], fields["window"]
    sy, sx = fields["strides"]
    over = 1 if name == "rounded up" else 0
    sides = ((0, 0), (top, bottom + over), (left, right + over), (0, 0))
    padded = np.pad(data.astype(np.int64), sides)
    inside = np.pad(np.ones(data.shape, np.int64), sides)
    mean = np.zeros(op.shapes[-1])
    for y, x in np.ndindex(*op.shapes[-1][1:3]):
        window = np.s_[:, y * sy : y * sy + ky, x * sx : x * sx + kx]
        count = ky * kx if counts else inside[window].sum(axis=(1, 2))
        mean[:, y, x] = padded[window].sum(axis=(1, 2)) / count
    bounds = np.iinfo(dtype)
    wanted = np.clip(np.rint(mean * 1.7 - 11.25), bounds.min, bounds.max)
    check(op, by_tvm(op, [data]), wanted)
    if why_missing("onednn") is None and INT8_FEATURE in host_features():
        check(op, by_onednn(op, [data]), wanted)


@needs_int8
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_may_begin_at_any_row_of_integers(parts: int) -> None:
    op = conv("image", "uint8", "uint8", 37)
    shapes = ((1, 28, 21, 3), *op.shapes[1:4], (1, 14, 11, 20))
    op = library_op(**op.fields() | {"shapes": shapes})
    arrays = numbers(op)
    pieces = []
    for begin in range(0, 14, 14 // parts + 1):
        end = min(begin + 14 // parts + 1, 14)
        low, high = max(begin * 2 - 3, 0), min(end * 2 + 2, 28)
        fields = op.fields() | {
            "shapes": ((1, high - low, 21, 3), *shapes[1:4], (1, end - begin, 11, 20)),
            "padding": (max(3 - begin * 2, 0), 3, max(end * 2 + 2 - 28, 0), 3),
            "cut": (0, 1, low, 28),
        }
        pieces.append(by_onednn(library_op(**fields), arrays))
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), by_onednn(op, arrays))


@needs_int8
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(
    "op",
    [
        conv("blocks", "uint8", "uint8", 37),
        conv("blocks", "int8", "float32", 0),
        pool((1, 16, 16, 64), (1, 8, 8, 64), "uint8"),
    ],
    ids=["conv", "conv to floats", "pool"],
)
def test_parts_by_rows_give_the_same_bits(op: LibraryOp, parts: int) -> None:
    cuts = op.row_cuts(parts)
    assert len(cuts) == parts
    arrays = numbers(op) if op.has_bias else [numbers(conv("blocks", "uint8", "uint8", 0))[0]]
    if not op.has_bias:
        arrays = [np.resize(arrays[0], op.shapes[0])]
    _, left, _, right = op.fields()["padding"]
    rows = []
    for cut in cuts:
        data = arrays[0][:, slice(*cut.read)]
        shape = (1, cut.made[1] - cut.made[0], *op.shapes[-1][2:])
        fields = op.fields() | {
            "shapes": (data.shape, *op.shapes[1:-1], shape),
            "padding": (cut.top, left, cut.bottom, right),
        }
        rows.append(by_onednn(library_op(**fields), [data, *arrays[1:]]))
    np.testing.assert_array_equal(np.concatenate(rows, axis=1), by_onednn(op, arrays))


def test_wrong_types_are_named() -> None:
    if why_missing("onednn") is not None:
        pytest.skip("needs oneDNN")
    op = conv("blocks", "uint8", "uint8", 0)
    for i, dtype, message in [
        (0, "float32", "data that is not of 8 bits"),
        (1, "uint8", "a weight that is not int8"),
        (2, "int8", "scales not of float32"),
        (4, "bfloat16", "a result of another type"),
    ]:
        stored = list(op.stored)
        stored[i] = dtype  # type: ignore[call-overload]
        assert message in why_unsupported("onednn", library_op(**op.fields() | {"stored": stored}))
