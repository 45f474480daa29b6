"""Tests that parts of products and convolutions compute the same as the whole operator.

The parts in these tests read bytes that do not lie together. These are columns of a matrix, for the
product of a single row, and rows of an image.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from tests.unit.test_split_operators import BLOCKED, arguments, assert_cut, assert_whole, one
from tvm_interop._native import cpu as _runtime
from tvm_interop._native.operators import BoundOperator
from tvm_interop.compiler.cpu import BF16_FEATURE
from tvm_interop.execution.cpu import as_tensor
from tvm_interop.lowering.split_operators import split_operators
from tvm_interop.machine.cpu_features import host_features
from tvm_interop.machine.kernel_libraries import why_missing, why_unsupported
from tvm_interop.program.host_memory import aligned_empty
from tvm_interop.program.library_op import LibraryOp, library_op
from tvm_interop.program.program import Operator, Program, Value
from tvm_interop.program.storage import Layout, span, stored_shape

Shape = tuple[int, ...]

needs_onednn = pytest.mark.skipif(
    why_missing("onednn") is not None, reason=f"no oneDNN: {why_missing('onednn')}"
)


def program_of(op: LibraryOp) -> Program:
    """Return a program whose only operator is `op`, which reads the program's inputs."""
    values = [
        Value(f"v{i}", shape, dtype, layout=layout)
        for i, (shape, dtype, layout) in enumerate(
            zip(op.shapes, op.stored_types, op.layouts, strict=True)
        )
    ]
    last = len(values) - 1
    operator = Operator("op", "k", tuple(range(last)), (last,), op, "onednn")
    return Program(values, [operator], (0,), (last,))


def described(op: str, shapes: Sequence[Shape], **fields: Any) -> LibraryOp:
    fields.setdefault("layouts", ("plain",) * len(shapes))
    return library_op(op=op, shapes=tuple(shapes), **fields)


def row(k: int, n: int, *, bias: bool = False, added: bool = False, **fields: Any) -> LibraryOp:
    """A product of a single row."""
    shapes = [(1, k), (k, n), *[(n,)] * bias, *[(1, n)] * added, (1, n)]
    return described("matmul", shapes, has_bias=bias, has_sum=added, **fields)


def quantised_row(k: int, n: int) -> LibraryOp:
    return described(
        "quantised_matmul",
        [(1, k), (k, n), (n,), (n,), (1, n)],
        dtype="int8",
        stored=("uint8", "int8", "float32", "float32", "int8"),
        has_bias=True,
    )


def conv(
    data: Shape,
    channels: int,
    kernel: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    padding: tuple[int, int, int, int] | None = None,
    layouts: tuple[Layout, Layout] = ("plain", BLOCKED),
    added: bool = False,
    **fields: Any,
) -> LibraryOp:
    pads = padding or (kernel // 2 * dilation,) * 4
    reach = (kernel - 1) * dilation + 1
    made = [(data[2 + a] + pads[a] + pads[2 + a] - reach) // stride + 1 for a in (0, 1)]
    result = (data[0], channels, *made)
    each = data[1] // fields.get("groups", 1)
    return described(
        "conv2d",
        [data, (channels, each, kernel, kernel), (channels,), *[result] * added, result],
        layouts=(layouts[0], "plain", "plain", *[layouts[1]] * added, layouts[1]),
        window=(kernel, kernel),
        strides=(stride, stride),
        padding=pads,
        dilation=(dilation, dilation),
        has_bias=True,
        has_sum=added,
        **fields,
    )


def arrays_of(op: LibraryOp) -> list[np.ndarray]:
    """Random inputs, in the layout and type in which the operator reads them from memory.

    The rest of the last block of a blocked tensor is zeros.
    """
    rng = np.random.default_rng(0)
    arrays = []
    for shape, dtype, layout in zip(
        op.shapes[:-1], op.stored_types[:-1], op.layouts[:-1], strict=True
    ):
        numbers = rng.standard_normal(shape)
        if layout == BLOCKED:
            n, used, height, width = shape
            channels = -(-used // 16) * 16
            padded = np.zeros((n, channels, height, width))
            padded[:, :used] = numbers
            numbers = padded.reshape(n, channels // 16, 16, height, width).transpose(0, 1, 3, 4, 2)
        arrays.append(numbers.astype(dtype))
    return arrays


def run(
    program: Program, arrays: Sequence[np.ndarray], streams: int = 2, constant: bool = True
) -> np.ndarray:
    """Run a program of independent operators, and return the bytes of its result.

    `arrays` holds the arrays for the program's values, in the order of `program.values`, without
    the result.
    """
    (result,) = run_again(program, arrays, streams=streams, constant=constant)
    return result


def run_again(
    program: Program,
    arrays: Sequence[np.ndarray],
    *others: np.ndarray,
    streams: int = 2,
    constant: bool = False,
    before_each: Callable[[], None] = lambda: None,
) -> list[np.ndarray]:
    """Run a program on `arrays`.

    Then run it once for each array in `others`, in place of the second array. Return the bytes of
    each run's result.

    Parameters
    ----------
    constant: whether weights are constants. Otherwise they are read in each run.
    before_each: a function that is called before each run.
    """
    roots = []
    for value, array in zip(program.values, [*arrays, None], strict=False):
        root = aligned_empty((value.nbytes,), "uint8")
        root[:] = 0xFF if array is None else np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        roots.append(root)
    tensors = []
    for v, value in enumerate(program.values):
        at, begin, end = span(program.values, v)
        shape = stored_shape(value.shape, value.layout)
        tensors.append(as_tensor(roots[at][begin:end].view(value.dtype).reshape(shape)))
    operators = []
    for i, op in enumerate(program.operators):
        assert op.description is not None
        used = [*op.inputs, *op.outputs]
        are_constant = [constant and 0 < a < 2 + op.description.has_bias for a in range(len(used))]
        kernel = _runtime.prepare_kernel(
            "onednn", op.description.fields(), 1, [tensors[v] for v in used], are_constant
        )
        operators.append(BoundOperator(op.name, kernel, used, i % streams, (), op.share))
    executor = _runtime.make_executor(streams, 1, tensors, operators)
    results = []
    for right in (None, *others):
        if right is not None:
            roots[1][:] = np.ascontiguousarray(right).reshape(-1).view(np.uint8)
        before_each()
        _runtime.run(executor)
        results.append(roots[len(arrays)].view(program.values[len(arrays)].dtype).copy())
    return results


ROWS = {
    "even": row(512, 256),
    "bias": row(300, 1000, bias=True),
    "a last step that is not full": row(500, 261, bias=True, activation="relu"),
    "sum and activation": row(257, 1031, bias=True, added=True, activation="hardswish"),
    "few numbers each": row(4096, 40, bias=True),
    "one number each": row(70_000, 33),
    "one factor": row(1, 200_001, bias=True),
    "axes of one": described("matmul", [(1, 1, 256), (256, 512), (1, 1, 512)]),
    "a matrix of three axes": described("matmul", [(1, 1, 256), (1, 256, 518), (1, 1, 518)]),
}

IMAGES = {
    "first": conv((1, 3, 144, 141), 16, 3, stride=2, activation="hardswish"),
    "odd": conv((1, 3, 71, 53), 12, 5, activation="relu"),
    "large window": conv((1, 3, 80, 80), 16, 7, stride=2, padding=(3, 3, 2, 2)),
    "uneven padding": conv((1, 2, 301, 200), 16, 3, stride=3, padding=(2, 0, 1, 1)),
    "dilated": conv((1, 4, 64, 64), 16, 3, dilation=3),
    "block to block": conv((1, 16, 64, 65), 16, 1, layouts=(BLOCKED, BLOCKED)),
    "sum": conv((1, 16, 50, 50), 10, 3, layouts=(BLOCKED, BLOCKED), added=True, activation="relu"),
    "depthwise": conv((1, 16, 63, 63), 16, 5, stride=2, groups=16, layouts=(BLOCKED, BLOCKED)),
    "one channel": conv((1, 4, 65, 128), 1, 9, layouts=("plain", "plain")),
    "grey": conv((1, 1, 225, 225), 16, 3),
    "several blocks": conv((1, 64, 40, 33), 16, 3, dilation=2, layouts=(BLOCKED, BLOCKED)),
    "a block that is not full": conv(
        (1, 40, 63, 61), 9, 5, stride=2, layouts=(BLOCKED, BLOCKED), added=True
    ),
    "blocks to one channel": conv((1, 48, 65, 128), 1, 3, layouts=(BLOCKED, "plain")),
    "blocks of 8": conv((1, 24, 50, 50), 7, 3, layouts=("blocked8", "blocked8")),
}


@needs_onednn
@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize("op", [*ROWS.values(), *IMAGES.values()], ids=[*ROWS, *IMAGES])
def test_parts_compute_what_the_whole_does(op: LibraryOp, parts: int) -> None:
    whole = program_of(op)
    divided = split_operators(whole, parts)
    assert 2 <= len(divided.operators) <= parts
    for part in divided.operators:
        assert part.description is not None
        assert why_unsupported("onednn", part.description) == ""
        assert part.description.given_shapes == tuple(
            divided.values[v].shape for v in (*part.inputs, *part.outputs)
        )
    assert_cut(divided, len(op.shapes) - 1, len(op.shapes) - 1)
    arrays = arrays_of(op)
    np.testing.assert_allclose(run(divided, arrays), run(whole, arrays), rtol=1e-5, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["bias", "a matrix of three axes"])
def test_columns_of_a_matrix_that_is_computed(name: str, dtype: str) -> None:
    """A computed matrix is not packed beforehand, so each run reads its present content."""
    if dtype == "bfloat16" and BF16_FEATURE not in host_features():
        pytest.skip("needs AVX512-BF16")
    stored = ("float32",) * len(ROWS[name].shapes)
    op = ROWS[name].with_fields(dtype=dtype, stored=stored)
    divided = split_operators(program_of(op), 3)
    assert len(divided.operators) == 3
    first, second = arrays_of(op), arrays_of(op)
    second[1] = second[1][..., ::-1].copy()
    runs = run_again(divided, first, second[1])
    wanted = [run(program_of(op), arrays, constant=False) for arrays in (first, second)]
    for got, want in zip(runs, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize(
    "op",
    [ROWS["bias"], IMAGES["first"], IMAGES["several blocks"]],
    ids=["columns", "rows", "rows of several blocks"],
)
@pytest.mark.parametrize("by", [-1, 1])
def test_a_part_that_begins_one_off_is_noticed(op: LibraryOp, by: int) -> None:
    """If a part begins one row or column off, its results differ from the results of the whole
    operator."""
    divided = split_operators(program_of(op), 3)
    middle = divided.operators[1]
    assert middle.description is not None
    argument, axis, begin, size = middle.description.cut
    off = middle.description.with_fields(cut=(argument, axis, begin + by, size))
    arrays = arrays_of(op)
    right = run(divided, arrays)
    divided.operators[1] = replace(middle, description=off)
    assert not np.allclose(run(divided, arrays), right, rtol=1e-2, atol=1e-2)


@needs_onednn
@pytest.mark.skipif(BF16_FEATURE not in host_features(), reason="needs AVX512-BF16")
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(
    ("op", "narrow"),
    [
        (ROWS["bias"], {0, 1, 3}),
        (ROWS["sum and activation"], {3, 4}),
        (IMAGES["first"], {0, 3}),
        (IMAGES["several blocks"], {0, 3}),
    ],
    ids=["all", "result", "image", "image of several blocks"],
)
def test_parts_of_bfloat16(op: LibraryOp, narrow: set[int], parts: int) -> None:
    stored = tuple("bfloat16" if i in narrow else "float32" for i in range(len(op.shapes)))
    typed = op.with_fields(dtype="bfloat16", stored=stored)
    divided = split_operators(program_of(typed), parts)
    assert len(divided.operators) == parts
    arrays = arrays_of(typed)
    got, want = (run(p, arrays).astype(np.float32) for p in (divided, program_of(typed)))
    np.testing.assert_allclose(got, want, rtol=2**-8, atol=1e-4)


def test_columns() -> None:
    op = row(1024, 1000, bias=True, added=True)
    divided = split_operators(program_of(op), 3)
    cuts = [part.description.cut for part in divided.operators if part.description]
    assert cuts == [(1, 1, 0, 1000), (1, 1, 336, 1000), (1, 1, 672, 1000)]
    made = [part.description.shapes[-1] for part in divided.operators if part.description]
    assert made == [(1, 336), (1, 336), (1, 328)]
    assert_whole(divided, 0)
    assert_whole(divided, 1)
    for argument in (2, 3, 4):
        assert_cut(divided, argument, argument)


def test_rows_of_an_image_of_one_block() -> None:
    op = conv((1, 16, 64, 64), 16, 3, layouts=(BLOCKED, BLOCKED), added=True)
    divided = split_operators(program_of(op), 2)
    assert [found[0] for found in arguments(divided)] == [(1, 16, 33, 64)] * 2
    assert [found[-1] for found in arguments(divided)] == [(1, 16, 32, 64)] * 2
    paddings = [
        part.description.fields()["padding"] for part in divided.operators if part.description
    ]
    assert paddings == [(1, 1, 0, 1), (0, 1, 1, 1)]
    row_bytes = 64 * 16 * 4
    read = [span(divided.values, part.inputs[0])[1:] for part in divided.operators]
    assert read == [(0, 33 * row_bytes), (31 * row_bytes, 64 * row_bytes)]
    assert_cut(divided, 3, 3)
    assert_cut(divided, 4, 4)


@needs_onednn
@pytest.mark.parametrize("channels", [16, 32])
@pytest.mark.parametrize("layouts", list(itertools.product(("plain", BLOCKED), repeat=3)))
def test_every_mix_of_layouts(layouts: tuple[Layout, Layout, Layout], channels: int) -> None:
    """Each of image, addend and result has one of two layouts.

    In each layout, the bytes that one part reads or writes are contiguous.
    """
    op = conv((1, 16, 48, 64), channels, 3, added=True)
    data, added, made = layouts
    op = op.with_fields(layouts=(data, "plain", "plain", added, made))
    divided = split_operators(program_of(op), 2)
    arrays = arrays_of(op)
    np.testing.assert_allclose(run(divided, arrays), run(program_of(op), arrays), atol=1e-4)


@pytest.mark.parametrize(
    "image",
    [(3, ("plain", BLOCKED)), (48, (BLOCKED, BLOCKED))],
    ids=["plain", "several blocks"],
)
def test_rows_that_lie_apart_are_read_out_of_the_whole(image: tuple[int, Any]) -> None:
    channels, layouts = image
    op = conv((1, channels, 112, 112), 16, 3, stride=2, layouts=layouts)
    divided = split_operators(program_of(op), 2)
    assert_whole(divided, 0)
    cuts = [part.description.cut for part in divided.operators if part.description]
    assert cuts == [(0, 2, 0, 112), (0, 2, 55, 112)]
    shapes = [part.description.shapes[0] for part in divided.operators if part.description]
    assert shapes == [(1, channels, 56, 112), (1, channels, 57, 112)]


STILL_WHOLE = {
    "a small row": row(200, 300),
    "a row of integers": quantised_row(1024, 1024),
    "a row of one step": row(1 << 17, 16),
    "a small image of several blocks": conv((1, 32, 8, 8), 16, 3, layouts=(BLOCKED, BLOCKED)),
    "a plain result": conv((1, 3, 64, 64), 16, 3, layouts=("plain", "plain")),
    "a plain tensor that is added": conv(
        (1, 16, 64, 64), 16, 3, layouts=(BLOCKED, BLOCKED), added=True
    ).with_fields(
        layouts=(BLOCKED, "plain", "plain", "plain", BLOCKED),
    ),
    "a single row of pixels": conv((1, 16, 1, 4096), 16, 1, layouts=(BLOCKED, BLOCKED)),
}


@pytest.mark.parametrize("op", STILL_WHOLE.values(), ids=STILL_WHOLE)
def test_what_stays_whole(op: LibraryOp) -> None:
    program = program_of(op)
    assert split_operators(program, 2).operators == program.operators


def test_rows_that_share_the_weight_are_divided_by_their_operations_alone() -> None:
    """Each part would read the whole weight, so dividing the product saves no reading.

    It also has too few operations to gain from a division. So it is not divided.
    """
    several = described("matmul", [(16, 512), (512, 96), (16, 96)])
    assert several.flops < 2_000_000
    assert prod(several.shapes[1]) > 1 << 15
    program = program_of(several)
    assert split_operators(program, 2).operators == program.operators


def test_rows_of_a_quantised_image_share_the_weight() -> None:
    shapes = [(1, 2, 2, 256), (256, 256, 1, 1), (256,), (1, 2, 2, 256)]
    few = described(
        "quantised_conv2d", shapes, dtype="int8", stored=("uint8", "int8", "float32", "int8"),
        window=(1, 1), strides=(1, 1), padding=(0,) * 4, dilation=(1, 1),
    )  # fmt: skip
    assert few.flops < 2_000_000
    assert prod(shapes[1]) > 1 << 15
    program = program_of(few)
    assert split_operators(program, 2).operators == program.operators


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ((1, 1, 0), "four numbers"),
        ((0, 1, 0, 900), "cannot cut argument 0 along axis 1"),
        ((1, 0, 0, 900), "cannot cut argument 1 along axis 0"),
        ((1, 1, 401, 900), "cuts 500 elements, beginning with element 401, from an axis of 900"),
        ((1, 1, -1, 900), "cuts 500 elements, beginning with element -1, from an axis of 900"),
        ((1, 1, 0, 499), "cuts 500 elements, beginning with element 0, from an axis of 499"),
    ],
)
@needs_onednn
def test_cuts_that_are_none_are_refused(cut: tuple[int, ...], message: str) -> None:
    op = row(300, 500)
    assert why_unsupported("onednn", op.with_fields(cut=(1, 1, 400, 900))) == ""
    assert message in why_unsupported("onednn", op.with_fields(cut=cut))


@pytest.mark.parametrize(
    "shapes",
    [
        ((6, 1024, 64), (6, 64, 1), (6, 1024, 1)),
        ((6, 1, 1024), (6, 1024, 64), (6, 1, 64)),
    ],
    ids=["keys", "values"],
)
def test_few_products_of_many_numbers_by_matrices(shapes: tuple[Shape, ...]) -> None:
    """The product takes as long as reading its large factor. So the product is divided, and each
    part reads one half of this factor."""
    divided = split_operators(one("matmul", *shapes), 2)
    assert [found[-1][0] for found in arguments(divided)] == [3, 3]
    for argument in range(3):
        assert_cut(divided, argument, argument)


def test_few_columns_by_rows() -> None:
    divided = split_operators(one("matmul", (1, 4096, 64), (64, 1), (1, 4096, 1)), 2)
    assert [found[-1] for found in arguments(divided)] == [(1, 2048, 1)] * 2
