"""Compares oneDNN's kernels with onnxruntime, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop._native import cpu as _runtime
from tvm_interop._native.operators import BoundOperator
from tvm_interop.compiler.cpu import BF16_FEATURE
from tvm_interop.errors import ArtifactError, ExecutionError, InputError
from tvm_interop.execution.cpu import as_tensor
from tvm_interop.machine.cpu_features import host_features
from tvm_interop.machine.kernel_libraries import (
    available_providers,
    is_supported,
    why_missing,
    why_unsupported,
)
from tvm_interop.program.host_memory import aligned_copy, aligned_empty
from tvm_interop.program.library_op import LibraryOp, library_op
from tvm_interop.program.storage import Layout, block_of

needs_onednn = pytest.mark.skipif(
    why_missing("onednn") is not None, reason=f"no oneDNN: {why_missing('onednn')}"
)

needs_bf16 = pytest.mark.skipif(
    why_missing("onednn") is not None or BF16_FEATURE not in host_features(),
    reason="needs oneDNN and a CPU with AVX512-BF16",
)

Arrays = list[np.ndarray]


def random(*shapes: Sequence[int]) -> Arrays:
    rng = np.random.default_rng(0)
    return [aligned_copy(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


def plain(op: str, shapes: Sequence[Sequence[int]], **fields: Any) -> LibraryOp:
    return library_op(
        op=op,  # type: ignore[arg-type]
        shapes=tuple(map(tuple, shapes)),
        layouts=("plain",) * len(shapes),
        **fields,
    )


def run(
    op: LibraryOp,
    arrays: Arrays,
    threads: int = 1,
    constants: bool = True,
    out_type: str = "float32",
) -> np.ndarray:
    """Return what oneDNN computes for `op`. `constants` says whether the weight and the bias are
    constants."""
    out = aligned_empty(op.shapes[-1], out_type)
    out.fill(np.nan)
    tensors = [as_tensor(array) for array in (*map(aligned_copy, arrays), out)]
    is_constant = [constants and 0 < i < 2 + op.has_bias for i in range(len(tensors))]
    kernel = _runtime.prepare_kernel("onednn", op.fields(), threads, tensors, is_constant)
    operator = BoundOperator("op", kernel, range(len(tensors)))
    executor = _runtime.make_executor(1, threads, tensors, [operator])
    _runtime.run(executor)
    first = out.copy()
    _runtime.run(executor)
    assert out.tobytes() == first.tobytes()
    return out


def conv(
    data: tuple[int, ...],
    channels: int,
    window: tuple[int, int],
    *,
    stride: int = 1,
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: int = 1,
    groups: int = 1,
    **fields: Any,
) -> LibraryOp:
    output = [
        (data[2 + a] + padding[a] + padding[2 + a] - (window[a] - 1) * dilation - 1) // stride + 1
        for a in (0, 1)
    ]
    result = (data[0], channels, *output)
    shapes: list[tuple[int, ...]] = [data, (channels, data[1] // groups, *window)]
    shapes += [(channels,)] if fields.get("has_bias") else []
    shapes += [result] if fields.get("has_sum") else []
    return plain(
        "conv2d",
        [*shapes, result],
        window=window,
        strides=(stride, stride),
        padding=padding,
        dilation=(dilation, dilation),
        groups=groups,
        **fields,
    )


CONVS = {
    "pointwise": conv((1, 16, 9, 9), 32, (1, 1)),
    "odd channels": conv((1, 5, 9, 11), 7, (3, 3), padding=(1, 1, 1, 1), has_bias=True),
    "uneven padding": conv((1, 8, 6, 7), 16, (3, 2), padding=(0, 1, 2, 0)),
    "one by seven": conv((1, 24, 8, 17), 12, (1, 7), padding=(0, 3, 0, 3), activation="relu"),
    "stride": conv((1, 3, 23, 23), 64, (7, 7), stride=2, padding=(3, 3, 3, 3), has_bias=True),
    "dilation": conv((1, 8, 12, 12), 8, (3, 3), padding=(2, 2, 2, 2), dilation=2),
    "groups": conv((1, 9, 7, 7), 15, (3, 3), groups=3, padding=(1, 1, 1, 1), has_bias=True),
    "depthwise": conv((1, 20, 10, 10), 20, (3, 3), groups=20, stride=2, padding=(1, 1, 1, 1)),
    "multiplier": conv((1, 4, 7, 7), 12, (3, 3), groups=4, padding=(1, 1, 1, 1)),
    "batch": conv((3, 16, 5, 5), 16, (3, 3), padding=(1, 1, 1, 1), has_bias=True),
    "sum": conv((1, 16, 8, 8), 24, (1, 1), has_bias=True, has_sum=True),
    "sum and relu": conv(
        (1, 7, 8, 8), 9, (3, 3), padding=(1, 1, 1, 1), has_sum=True, activation="relu"
    ),
    "clip": conv(
        (1, 16, 6, 6), 16, (3, 3), activation="clip", clip_low=-1.0, clip_high=6.0, has_bias=True
    ),
    "one pixel": conv((1, 64, 1, 1), 10, (1, 1), has_bias=True),
}


@needs_onednn
@pytest.mark.parametrize("constants", [True, False], ids=["constant", "variable"])
@pytest.mark.parametrize("op", CONVS.values(), ids=CONVS)
def test_convolutions(op: LibraryOp, constants: bool) -> None:
    arrays = random(*op.shapes[:-1])
    np.testing.assert_allclose(
        run(op, arrays, constants=constants), expected_conv(op, arrays), rtol=1e-4, atol=1e-4
    )


def expected_conv(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    fields = SimpleNamespace(**op.fields())
    net = nets.Net()
    inputs = [net.input("x", op.shapes[0])]
    inputs += [net.constant(array) for array in arrays[1 : 2 + op.has_bias]]
    y = net.op(
        "Conv",
        inputs,
        "conv",
        strides=fields.strides,
        pads=fields.padding,
        dilations=fields.dilation,
        group=fields.groups,
    )
    (result,) = run_onnxruntime(net.model(y), {"x": arrays[0]}).values()
    result = result + arrays[-1] if op.has_sum else result
    if fields.activation == "clip":
        return np.clip(result, fields.clip_low, fields.clip_high)
    return np.maximum(result, 0) if fields.activation == "relu" else result


@needs_onednn
@pytest.mark.parametrize("kind", ["max", "average", "average with padding"])
@pytest.mark.parametrize(
    ("size", "window", "stride", "padding", "ceil"),
    [
        (9, 3, 2, (0, 0, 0, 0), False),
        (12, 3, 2, (0, 0, 0, 0), True),
        (12, 3, 2, (1, 1, 1, 1), True),
        (7, 2, 1, (0, 1, 1, 0), False),
        (6, 6, 1, (0, 0, 0, 0), False),
        (13, 5, 3, (2, 2, 2, 2), False),
    ],
)
def test_pools(
    kind: str, size: int, window: int, stride: int, padding: tuple[int, ...], ceil: bool
) -> None:
    net = nets.Net()
    x = net.input("x", (2, 19, size, size))
    attributes: dict[str, Any] = {
        "kernel_shape": [window] * 2,
        "strides": [stride] * 2,
        "pads": padding,
        "ceil_mode": int(ceil),
    }
    counts = kind == "average with padding"
    if kind == "max":
        net.op("MaxPool", [x], "y", **attributes)
    else:
        net.op("AveragePool", [x], "y", count_include_pad=int(counts), **attributes)
    arrays = random((2, 19, size, size))
    (expected,) = run_onnxruntime(net.model("y", opset=19), {"x": arrays[0]}).values()
    op = plain(
        "max_pool2d" if kind == "max" else "avg_pool2d",
        [arrays[0].shape, expected.shape],
        window=(window, window),
        strides=(stride, stride),
        padding=padding,
        dilation=(1, 1),
        counts_padding=counts,
    )
    hangs_over = (expected.shape[2] - 1) * stride + window > size + padding[0] + padding[2]
    if counts and hangs_over:
        assert not is_supported("onednn", op)
        with pytest.raises(ExecutionError, match="rounds its output up and counts padding"):
            run(op, arrays)
    else:
        np.testing.assert_allclose(run(op, arrays), expected, rtol=1e-5, atol=1e-6)


MATMULS = {
    "vector": [(1, 37), (37, 10), (1, 10)],
    "matrix": [(33, 70), (70, 19), (33, 19)],
    "shared right side": [(2, 6, 16), (16, 32), (2, 6, 32)],
    "batch": [(1, 2, 6, 8), (1, 2, 8, 6), (1, 2, 6, 6)],
}


@needs_onednn
@pytest.mark.parametrize("constants", [True, False], ids=["constant", "variable"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"has_bias": True, "activation": "relu"},
        {"has_bias": True, "has_sum": True},
        {"has_sum": True, "activation": "clip", "clip_low": -0.5, "clip_high": 0.5},
    ],
    ids=["bare", "bias relu", "bias sum", "sum clip"],
)
@pytest.mark.parametrize("shapes", MATMULS.values(), ids=MATMULS)
def test_matrix_products(
    shapes: list[tuple[int, ...]], fields: dict[str, Any], constants: bool
) -> None:
    left, right, result = shapes
    bias = [(result[-1],)] if fields.get("has_bias") else []
    addend = [result] if fields.get("has_sum") else []
    op = plain("matmul", [left, right, *bias, *addend, result], **fields)
    arrays = random(*op.shapes[:-1])
    expected = arrays[0] @ arrays[1]
    for array in arrays[2:]:
        expected = expected + array
    ending = op.fields()
    if ending["activation"] == "relu":
        expected = np.maximum(expected, 0)
    elif ending["activation"] == "clip":
        expected = np.clip(expected, ending["clip_low"], ending["clip_high"])
    np.testing.assert_allclose(run(op, arrays, constants=constants), expected, rtol=1e-4, atol=1e-4)


NARROW = {
    "conv": plain(
        "conv2d",
        [(1, 24, 9, 9), (40, 24, 3, 3), (40,), (1, 40, 9, 9), (1, 40, 9, 9)],
        window=(3, 3),
        strides=(1, 1),
        padding=(1, 1, 1, 1),
        dilation=(1, 1),
        has_bias=True,
        has_sum=True,
        activation="relu",
    ),
    "matmul": plain(
        "matmul", [(5, 24), (24, 40), (40,), (5, 40), (5, 40)], has_bias=True, has_sum=True
    ),
    "batched": plain("matmul", [(3, 5, 24), (3, 24, 7), (3, 5, 7)]),
}


def as_words(array: np.ndarray) -> np.ndarray:
    return aligned_copy(array.astype("bfloat16"))


@needs_bf16
@pytest.mark.parametrize("kept", ["all", "inputs", "result", "none"])
@pytest.mark.parametrize("op", NARROW.values(), ids=NARROW)
def test_products_of_bfloat16(op: LibraryOp, kept: str) -> None:
    """For all stored types, factors are rounded to bfloat16, and sums are not."""
    arrays = random(*op.shapes[:-1])
    factors = [as_words(array).astype(np.float32) for array in arrays[:2]]
    exact = run(op, [*factors, *arrays[2:]])
    narrow = {0, len(op.shapes) - 2} if kept in ("all", "inputs") else set()
    narrow -= {1, 2 * op.has_bias}
    narrow |= {len(op.shapes) - 1} if kept in ("all", "result") else set()
    stored = tuple("bfloat16" if i in narrow else "float32" for i in range(len(op.shapes)))
    typed = op.with_fields(dtype="bfloat16", stored=stored)
    given = [as_words(a) if i in narrow else a for i, a in enumerate(arrays)]
    got = run(typed, given, out_type=stored[-1]).astype(np.float32)
    # A rounded addend or result is off by at most one part in 256.
    np.testing.assert_allclose(got, exact, rtol=2**-8, atol=2**-7 if narrow else 1e-4)


@needs_bf16
@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d", "softmax", "layer_norm", "scale"])
def test_other_operators_take_tensors_of_bfloat16(op: str) -> None:
    image, extra = (1, 20, 6, 6), {"layer_norm": [(6,), (6,)], "scale": [(1, 20, 1, 1)]}
    window = {"window": (3, 3), "strides": (1, 1), "padding": (1,) * 4, "dilation": (1, 1)}
    described = plain(
        op,
        [image, *extra.get(op, []), image],
        **(window if "pool" in op else {}),
        **({"epsilon": 1e-5} if op == "layer_norm" else {}),
    )
    data, *others = random(*described.shapes[:-1])
    exact = run(described, [data.astype("bfloat16").astype(np.float32), *others])
    stored = ("bfloat16", *["float32"] * len(others), "bfloat16")
    typed = described.with_fields(stored=stored)
    got = run(typed, [as_words(data), *others], out_type="bfloat16").astype(np.float32)
    np.testing.assert_allclose(got, exact, rtol=2**-8, atol=1e-6)


@needs_onednn
@pytest.mark.parametrize("stored", ["float32", pytest.param("bfloat16", marks=needs_bf16)])
@pytest.mark.parametrize("columns", [1, 5, 64, 200])
def test_nan_and_infinity_make_the_whole_row_of_a_softmax_nan(stored: str, columns: int) -> None:
    (data,) = random((7, columns))
    data[1, 0] = np.nan
    data[2, -1] = np.nan
    data[3, columns // 2] = np.inf
    data[4] = -np.inf
    data[5, 0] = -np.inf
    wrong = [1, 2, 3, 4, *([5] if columns == 1 else [])]
    op = plain("softmax", [data.shape, data.shape]).with_fields(stored=(stored, stored))
    given = data if stored == "float32" else as_words(data)
    got = run(op, [given], out_type=stored).astype(np.float32)
    assert np.isnan(got[wrong]).all()
    right = np.setdiff1d(np.arange(7), wrong)
    powers = np.exp(data[right] - data[right].max(-1, keepdims=True))
    np.testing.assert_allclose(got[right], powers / powers.sum(-1, keepdims=True), atol=2**-7)


@needs_onednn
def test_types_are_checked() -> None:
    matmul = NARROW["matmul"]
    words = ("bfloat16",) * len(matmul.shapes)
    for wrong, message in (
        ({"stored": words}, "bias or scale that is not of float32"),
        ({"stored": words[:2]}, "5 tensors, and types of 2"),
        ({"dtype": "float16"}, "is not of float32 or bfloat16"),
    ):
        op = matmul.with_fields(**wrong)
        assert message in why_unsupported("onednn", op)
    softmax = plain("softmax", [(2, 3), (2, 3)], dtype="bfloat16")
    assert "no factors to round" in why_unsupported("onednn", softmax)


@needs_onednn
@pytest.mark.parametrize("channels", [16, 32, 5, 20])
@pytest.mark.parametrize("layout", ["blocked8", "blocked16"])
def test_layouts(layout: Layout, channels: int) -> None:
    """A tensor is blocked and made plain again. The rest of the last block is zeros."""
    shape = (2, channels, 3, 4)
    block = block_of(layout)
    blocks = -(-channels // block)
    (data,) = random(shape)
    physical = aligned_empty((2, blocks, 3, 4, block), np.float32)
    back = aligned_empty(shape, np.float32)
    for layouts, source, target in (
        (("plain", layout), data, physical),
        ((layout, "plain"), physical, back),
    ):
        op = library_op(op="reorder", shapes=(shape, shape), layouts=layouts)
        tensors = [as_tensor(source), as_tensor(target)]
        kernel = _runtime.prepare_kernel("onednn", op.fields(), 1, tensors, [False, False])
        operator = BoundOperator("r", kernel, [0, 1])
        _runtime.run(_runtime.make_executor(1, 1, tensors, [operator]))
    np.testing.assert_array_equal(back, data)
    padded = np.zeros((2, blocks * block, 3, 4), np.float32)
    padded[:, :channels] = data
    np.testing.assert_array_equal(
        physical, padded.reshape(2, blocks, block, 3, 4).transpose(0, 1, 3, 4, 2)
    )


WIDE = {
    **CONVS,
    **{name: plain("matmul", shapes) for name, shapes in MATMULS.items()},
    "wide": conv((1, 512, 7, 7), 512, (3, 3), padding=(1, 1, 1, 1), has_bias=True),
    "wide pointwise": conv((1, 1024, 14, 14), 256, (1, 1), has_bias=True, activation="relu"),
    "deep": plain("matmul", [(1, 25088), (25088, 64), (1, 64)]),
    "tall": plain("matmul", [(128, 768), (768, 768), (128, 768)]),
    "pool": plain(
        "avg_pool2d",
        [(1, 64, 14, 14), (1, 64, 1, 1)],
        window=(14, 14),
        strides=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
    ),
}


@needs_onednn
@pytest.mark.parametrize("constants", [True, False], ids=["constant", "variable"])
@pytest.mark.parametrize("op", WIDE.values(), ids=WIDE)
def test_bits_do_not_depend_on_the_team(op: LibraryOp, constants: bool) -> None:
    """If threads divided a sum, the order of additions would depend on the number of threads."""
    arrays = random(*op.shapes[:-1])
    alone = run(op, arrays, threads=1, constants=constants)
    for threads in (2, 3, 4):
        np.testing.assert_array_equal(run(op, arrays, threads, constants), alone)


@needs_onednn
def test_a_wrong_description_is_refused() -> None:
    op = conv((1, 16, 9, 9), 32, (1, 1))
    wrong = op.with_fields(strides=(2, 2))
    with pytest.raises(ExecutionError, match=r"`conv2d` cannot make \(1, 32, 9, 9\)"):
        run(wrong, random(*op.shapes[:-1]))


def test_descriptions_are_strict() -> None:
    op = CONVS["clip"]
    assert LibraryOp.from_json(op.to_json()) == op
    for text in ("", "[]", op.to_json().replace("conv2d", "conv9d"), '{"op": "conv2d"}'):
        with pytest.raises(ArtifactError, match="does not describe an operator"):
            LibraryOp.from_json(text)
    with pytest.raises(ArtifactError, match="mood"):
        LibraryOp.from_json(op.to_json().replace("{", '{"mood": 1, ', 1))


def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(InputError, match="no kernel provider `magic`: choose among tvm, onednn"):
        available_providers(["tvm", "magic"])
