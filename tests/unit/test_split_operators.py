"""Tests which large operators are divided into parts, and where the bytes of each part lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop import GraphModule
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.lowering.split_operators import parts_in, split_operators
from tvm_interop.machine.kernel_libraries import why_missing
from tvm_interop.program.library_op import library_op
from tvm_interop.program.program import Operator, Program, Value
from tvm_interop.program.storage import ALIGNMENT, Layout, span, stored_nbytes

Shape = tuple[int, ...]
BLOCKED: Layout = "blocked16"


def one(op: str, *shapes: Shape, layouts: Sequence[Layout] = (), **fields: Any) -> Program:
    """A program of one operator of a library. From the second argument on, inputs are weights."""
    layouts = tuple(layouts) or ("plain",) * len(shapes)
    description = library_op(op=op, shapes=shapes, layouts=layouts, **fields)
    values = [
        Value(f"v{i}", shape, "float32", layout=layout)
        for i, (shape, layout) in enumerate(zip(shapes, layouts, strict=True))
    ]
    last = len(values) - 1
    operator = Operator("op", "k", tuple(range(last)), (last,), description, "onednn")
    return Program(values, [operator], (0,), (last,))


def conv(
    channels: tuple[int, int], size: int = 28, kernel: int = 3, groups: int = 1, **fields: Any
) -> Program:
    batch = fields.pop("batch", 1)
    output = (batch, channels[1], size, size)
    shapes: list[Shape] = [
        (batch, channels[0], size, size),
        (channels[1], channels[0] // groups, kernel, kernel),
    ]
    shapes += [(channels[1],)] if fields.get("has_bias") else []
    shapes += [output] if fields.get("has_sum") else []
    half = kernel // 2
    return one(
        "conv2d",
        *shapes,
        output,
        window=(kernel, kernel),
        strides=(1, 1),
        padding=(half,) * 4,
        dilation=(1, 1),
        groups=groups,
        **fields,
    )


def pool(op: str, channels: int, size: int, layouts: Sequence[Layout] = ()) -> Program:
    shape = (1, channels, size, size)
    window = {"window": (3, 3), "strides": (1, 1), "padding": (1,) * 4, "dilation": (1, 1)}
    return one(op, shape, shape, layouts=layouts, **window)


def arguments(program: Program) -> list[list[Shape]]:
    """The shapes of the arguments of each operator, which must agree with its description."""
    found = []
    for op in program.operators:
        shapes = [program.values[v].shape for v in (*op.inputs, *op.outputs)]
        assert op.description is not None
        assert list(op.description.shapes) == shapes
        assert op.description.layouts == tuple(
            program.values[v].layout for v in (*op.inputs, *op.outputs)
        )
        found.append(shapes)
    return found


def assert_cut(program: Program, argument: int, value: int) -> None:
    """Check how the value with the index `value` is divided among the operators of `program`.

    The argument with the index `argument` of each operator is a part of the value. The parts must
    be disjoint, aligned, in the order of the operators, and cover the whole value.
    """
    reached = 0
    for op in program.operators:
        root, begin, end = span(program.values, (*op.inputs, *op.outputs)[argument])
        assert root == value
        assert begin == reached
        assert begin % ALIGNMENT == 0
        assert end > begin
        reached = end
    assert reached == program.values[value].nbytes


def assert_whole(program: Program, argument: int) -> None:
    for op in program.operators:
        assert (*op.inputs, *op.outputs)[argument] == argument


def channels_of(program: Program) -> list[int]:
    return [shapes[-1][1] for shapes in arguments(program)]


@pytest.mark.parametrize(
    ("channels", "parts", "expected"),
    [
        (64, 2, [32, 32]),
        (64, 3, [16, 16, 32]),
        (48, 2, [16, 32]),
        (40, 2, [16, 24]),
        (40, 3, [16, 16, 8]),
        (40, 8, [16, 16, 8]),
        (17, 2, [16, 1]),
    ],
)
def test_convolutions_by_blocks_of_channels(channels: int, parts: int, expected: list[int]) -> None:
    whole = conv((64, channels), has_bias=True, has_sum=True)
    divided = split_operators(whole, parts)
    assert channels_of(divided) == expected
    assert_whole(divided, 0)
    for argument in (1, 2, 3, 4):
        assert_cut(divided, argument, argument)
    assert whole.operators[0].name == "op"
    assert len(whole.values) == 5


def test_names() -> None:
    divided = split_operators(conv((64, 64)), 3)
    assert [op.name for op in divided.operators] == ["op[1/3]", "op[2/3]", "op[3/3]"]
    assert {op.whole for op in divided.operators} == {"op"}
    assert divided.is_divided
    assert not conv((64, 64)).is_divided
    assert len({value.name for value in divided.values}) == len(divided.values)
    assert split_operators(divided, 1) is divided


def test_parts_in_names() -> None:
    assert parts_in(["a", "b[1/2]", "b[2/2]", "c[3/12]", "d[1/40]x"]) == 12
    assert parts_in(["a[1]", "b"]) == parts_in([]) == 1


def test_depthwise_convolutions() -> None:
    divided = split_operators(conv((136, 136), size=56, groups=136, has_bias=True), 2)
    assert channels_of(divided) == [64, 72]
    assert [op.description.fields()["groups"] for op in divided.operators if op.description] == [
        64,
        72,
    ]
    for argument in range(4):
        assert_cut(divided, argument, argument)


@pytest.mark.parametrize(
    ("dtype", "channels", "expected"),
    [
        ("float32", 40, [16, 24]),
        ("float32", 24, [16, 8]),
        ("bfloat16", 24, [24]),
        ("bfloat16", 40, [16, 24]),
        ("bfloat16", 56, [16, 40]),
        ("bfloat16", 64, [32, 32]),
    ],
)
def test_parts_of_depthwise_convolutions_in_bf16_have_a_whole_block_at_least(
    dtype: str, channels: int, expected: list[int]
) -> None:
    program = conv((channels, channels), groups=channels, size=56, dtype=dtype)
    assert channels_of(split_operators(program, 2)) == expected


def test_depthwise_convolutions_by_what_they_read() -> None:
    """A depthwise convolution is divided because it reads many bytes.

    It has too few floating-point operations to be divided for that reason.
    """
    whole = conv((112, 112), groups=112)
    assert sum(op.description.flops for op in whole.operators if op.description) < 2_000_000
    assert channels_of(split_operators(whole, 2)) == [48, 64]


@pytest.mark.parametrize(("parts", "expected"), [(2, [64, 64]), (3, [32, 32, 64]), (9, [32] * 4)])
def test_convolutions_by_groups(parts: int, expected: list[int]) -> None:
    whole = conv((64, 128), groups=4, has_bias=True, has_sum=True)
    divided = split_operators(whole, parts)
    assert channels_of(divided) == expected
    groups = [op.description.fields()["groups"] for op in divided.operators if op.description]
    assert groups == [channels // 32 for channels in expected]
    for argument in range(5):
        assert_cut(divided, argument, argument)


def test_blocked_convolutions_by_groups() -> None:
    layouts: list[Layout] = [BLOCKED, "plain", BLOCKED]
    assert channels_of(split_operators(conv((64, 64), groups=4, layouts=layouts), 2)) == [32, 32]
    within_a_block = conv((96, 96), groups=4, layouts=layouts)
    assert split_operators(within_a_block, 2).operators == within_a_block.operators


@pytest.mark.parametrize("layouts", [("plain", "plain"), (BLOCKED, BLOCKED), ("plain", BLOCKED)])
@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
def test_pools(op: str, layouts: Sequence[Layout]) -> None:
    divided = split_operators(pool(op, 40, 32, layouts), 2)
    assert channels_of(divided) == [16, 24]
    assert_cut(divided, 0, 0)
    assert_cut(divided, 1, 1)


def test_blocked_convolutions() -> None:
    layouts: list[Layout] = [BLOCKED, "plain", BLOCKED]
    whole = conv((40, 40), layouts=layouts)
    divided = split_operators(whole, 3)
    assert channels_of(divided) == [16, 16, 8]
    assert_cut(divided, 2, 2)
    assert whole.values[2].nbytes == stored_nbytes((1, 48, 28, 28), "float32", "plain")


def test_what_is_in_another_tensor_is_divided_there() -> None:
    """The operator's output is a part of the result of a concatenation."""
    program = conv((64, 32))
    result = Value("result", (1, 64, 28, 28), "float32")
    begin = stored_nbytes((1, 32, 28, 28), "float32", "plain")
    values = [*program.values[:2], replace(program.values[2], alias_of=3, offset=begin), result]
    divided = split_operators(replace(program, values=values, outputs=(3,)), 2)
    places = [span(divided.values, op.outputs[0]) for op in divided.operators]
    assert places == [(3, begin, begin * 3 // 2), (3, begin * 3 // 2, begin * 2)]


def test_matrix_products_by_rows() -> None:
    shapes = [(130, 256), (256, 64), (64,), (130, 64), (130, 64)]
    divided = split_operators(one("matmul", *shapes, has_bias=True, has_sum=True), 2)
    assert [found[-1] for found in arguments(divided)] == [(65, 64), (65, 64)]
    for argument in (0, 3, 4):
        assert_cut(divided, argument, argument)
    assert_whole(divided, 1)
    assert_whole(divided, 2)


def test_matrix_products_by_rows_of_one_matrix() -> None:
    divided = split_operators(one("matmul", (1, 128, 256), (256, 256), (1, 128, 256)), 3)
    assert [found[-1] for found in arguments(divided)] == [(1, 42, 256), (1, 43, 256), (1, 43, 256)]
    assert_cut(divided, 0, 0)
    assert_whole(divided, 1)
    assert_cut(divided, 2, 2)


@pytest.mark.parametrize("right", [(4, 128, 128), (128, 128)])
def test_matrix_products_by_matrices(right: Shape) -> None:
    divided = split_operators(one("matmul", (4, 128, 128), right, (4, 128, 128)), 2)
    assert [found[-1] for found in arguments(divided)] == [(2, 128, 128)] * 2
    assert_cut(divided, 0, 0)
    assert_cut(divided, 2, 2)
    if len(right) == 3:
        assert_cut(divided, 1, 1)
    else:
        assert_whole(divided, 1)


WHOLE = {
    "few numbers": one("matmul", (6, 100, 64), (6, 64, 1), (6, 100, 1)),
    "small convolution": conv((16, 32), size=14),
    "few channels": conv((64, 16)),
    "small convolution of two images": conv((16, 32), size=10, batch=2),
    "small depthwise": conv((64, 64), size=8, groups=64),
    "small pool": pool("max_pool2d", 64, 8),
    "small product": one("matmul", (64, 64), (64, 64), (64, 64)),
    "normalisation": one("lrn", (1, 64, 56, 56), (1, 64, 56, 56), lrn_size=5),
}


@pytest.mark.parametrize("program", WHOLE.values(), ids=WHOLE)
def test_what_stays_whole(program: Program) -> None:
    assert split_operators(program, 2).operators == program.operators


def images_of(program: Program) -> list[int]:
    return [shapes[-1][0] for shapes in arguments(program)]


@pytest.mark.parametrize("groups", [1, 2, 64])
def test_several_images_by_images(groups: int) -> None:
    divided = split_operators(
        conv((64, 64), groups=groups, batch=5, has_bias=True, has_sum=True), 2
    )
    assert images_of(divided) == [2, 3]
    for argument in (0, 3, 4):
        assert_cut(divided, argument, argument)
    for argument in (1, 2):
        assert_whole(divided, argument)
    assert all(
        op.description.fields()["groups"] == groups for op in divided.operators if op.description
    )


def test_several_images_with_blocks_of_channels() -> None:
    layouts: list[Layout] = [BLOCKED, "plain", BLOCKED]
    divided = split_operators(conv((20, 24), batch=3, layouts=layouts), 2)
    assert images_of(divided) == [1, 2]
    assert_cut(divided, 0, 0)
    assert_cut(divided, 2, 2)


@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
def test_pools_of_several_images(op: str) -> None:
    shape = (4, 64, 28, 28)
    window = {"window": (3, 3), "strides": (1, 1), "padding": (1,) * 4, "dilation": (1, 1)}
    divided = split_operators(one(op, shape, shape, **window), 3)
    assert images_of(divided) == [1, 1, 2]
    assert_cut(divided, 0, 0)
    assert_cut(divided, 1, 1)


@pytest.mark.parametrize("of_each", [True, False])
def test_factors_go_with_their_images_where_each_has_its_own(of_each: bool) -> None:
    shape, factors = (4, 64, 28, 28), (4 if of_each else 1, 64, 1, 1)
    divided = split_operators(one("scale", shape, factors, shape), 2)
    assert images_of(divided) == [2, 2]
    if of_each:
        assert_cut(divided, 1, 1)
    else:
        assert_whole(divided, 1)


def test_images_that_would_not_be_aligned() -> None:
    # An image has 51 * 7 * 7 numbers, so only every 16th image begins at an aligned address.
    window = {"window": (7, 7), "strides": (1, 1), "padding": (3,) * 4, "dilation": (1, 1)}
    shape = (32, 51, 7, 7)
    assert images_of(split_operators(one("max_pool2d", shape, shape, **window), 4)) == [16, 16]


def test_parts_that_would_not_be_aligned() -> None:
    program = one("matmul", (128, 8000), (8000, 5), (128, 5))
    # A row has 20 bytes. Three equal parts would begin at rows 42 and 85, which are not at
    # multiples of 64 bytes. So the parts begin at rows near 42 and 85.
    parts = split_operators(program, 3)
    rows = [parts.values[op.outputs[0]].shape[0] for op in parts.operators]
    assert sum(rows) == 128
    assert all(n * 20 % 64 == 0 for n in rows)
    assert len(split_operators(program, 2).operators) == 2  # Each part has 64 rows of 20 bytes.


def test_no_more_parts_than_are_worth_it() -> None:
    # There are 2 * 128 * 64 * 9 operations for each pixel. So an image of 784 pixels may be divided
    # into about a hundred parts, and one of 25 pixels into about three.
    assert len(split_operators(conv((64, 128), size=28), 9).operators) == 8
    assert len(split_operators(conv((64, 128), size=5), 9).operators) == 3


def test_few_pixels_are_worth_as_many_parts_as_their_weight_is_long() -> None:
    # The weight has 144 * 576 numbers, each multiplied once. Reading takes longer than multiplying.
    assert len(split_operators(conv((576, 144), size=1, kernel=1), 9).operators) == 2
    assert len(split_operators(conv((576, 96), size=1, kernel=1), 9).operators) == 1


# The next tests are about the results of divided operators.


def large(batch: int = 1) -> onnx.ModelProto:
    """A model with every kind of operator that can be divided, one of them in a concatenation."""
    net = nets.Net()
    x = net.input("x", [batch, 32, 48, 48])
    net.op("Relu", [net.conv(x, "a", (32, 48), 3)], "a_relu")
    window: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [1, 1]}
    net.op("MaxPool", ["a_relu"], "largest", **window)
    net.op("AveragePool", ["a_relu"], "mean", **window)
    net.conv("a_relu", "depth", (48, 48), 5, group=48)
    net.conv("largest", "b", (48, 40), 3)
    net.conv("mean", "c", (48, 40), 3)
    net.op("Add", ["b", "c"], "sum")
    net.op("Concat", ["depth", "sum"], "cat", axis=1)
    net.op("Relu", [net.conv("cat", "d", (88, 32), 1)], "d_relu")
    net.conv("d_relu", "groups", (32, 64), 3, group=4)
    net.op("Sigmoid", ["cat"], "gate")
    net.op("Mul", ["gate", "cat"], "swish")
    net.op("Reshape", ["d_relu", net.constant(np.array([-1, 48 * 48], np.int64))], "rows")
    net.op("MatMul", ["rows", net.weight(48 * 48, 64, scale=0.02)], "product")
    net.op("MatMul", [net.input("row", [1, 500]), net.weight(500, 261)], "columns")
    net.op("Relu", [net.conv("sum", "narrow", (40, 16), 3)], "narrow_relu")
    net.op("Relu", [net.conv("narrow_relu", "block", (16, 16), 3)], "block_relu")
    net.conv("block_relu", "last", (16, 32), 1)
    matrices = net.input("matrices", [4, 128, 128])
    net.op("MatMul", [matrices, net.weight(4, 128, 128)], "products")
    return net.model("swish", "product", "products", "groups", "columns", "last")


def outputs(compilation: Compilation, scheduler: str, feeds: dict[str, Any]) -> list[np.ndarray]:
    module = GraphModule(compilation.artifact(compilation.schedule(scheduler)))
    for _ in range(3):  # The streams interleave differently in each run.
        module.run(**feeds)
    return [module.get_output(i).numpy() for i in range(len(module.plan.outputs))]


def compiled(model: onnx.ModelProto, provider: str, parts: int) -> Compilation:
    options = CompileOptions(
        streams=2, threads=1, parts=parts, providers=[provider], latency_db=":memory:"
    )
    return Compilation(model, options)


@pytest.mark.parametrize(("batch", "parts"), [(1, 2), (1, 3), (3, 2)])
@pytest.mark.parametrize("provider", ["tvm", "onednn"])
def test_numbers_are_right_and_bits_the_same(provider: str, batch: int, parts: int) -> None:
    if provider != "tvm" and why_missing(provider) is not None:
        pytest.skip(f"no {provider}: {why_missing(provider)}")
    model = large(batch)
    compilation = compiled(model, provider, parts)
    operators = compilation.program.operators
    divided = {op.whole.split("/")[0] for op in operators if op.whole}
    assert divided >= {"a", "b", "c", "largest", "mean", "depth", "product", "products"}
    assert "groups" in divided
    if provider == "onednn":
        assert "columns" in divided
        # If measured times choose a blocked result, the operator `block` is divided by rows.
        # Otherwise a single image is not divided.
        block = next(op for op in operators if op.name.startswith("block/"))
        layout = compilation.program.values[block.outputs[0]].layout
        assert (layout == BLOCKED or batch > 1) == ("block" in divided)
    assert parts_in(op.name for op in operators) == parts
    feeds = nets.feeds(model)
    results = {name: outputs(compilation, name, feeds) for name in ("sequential", "greedy", "lios")}
    for got, want in zip(
        results["sequential"], run_onnxruntime(model, feeds).values(), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * abs(want).max())
    for name in ("greedy", "lios"):
        for got, want in zip(results[name], results["sequential"], strict=True):
            np.testing.assert_array_equal(got, want, err_msg=name)


def test_shares_of_tvms_kernels_give_the_whole_ones_bits() -> None:
    model = large()
    feeds = nets.feeds(model)
    whole = outputs(compiled(model, "tvm", 1), "sequential", feeds)
    compilation = compiled(model, "tvm", 3)
    assert any(op.share == (1, 3) for op in compilation.program.operators)
    for got, want in zip(outputs(compilation, "greedy", feeds), whole, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.skipif(why_missing("onednn") is not None, reason="no oneDNN")
def test_new_weights_and_inputs_reach_every_part() -> None:
    """Each part of the operator reads a view of the weight and of the input, not a copy."""
    net = nets.Net()
    x = net.input("x", [1, 128, 56, 56])
    net.conv(x, "y", (128, 128), 3, group=128)
    model = net.model("y")
    compilation = compiled(model, "onednn", 2)
    assert [op.name for op in compilation.program.operators] == ["y/Conv[1/2]", "y/Conv[2/2]"]
    module = GraphModule(compilation.artifact(compilation.sequential()))
    module.run(**nets.feeds(model))
    before = module.get_output(0).numpy()
    doubled = {
        module.plan.values[v].name: tvm.runtime.tensor(array * 2)
        for v, array in compilation.program.weights.items()
    }
    module.load_params(tvm.runtime.save_param_dict(doubled))
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), 2 * before)
    module.set_input_zero_copy("x", tvm.runtime.tensor(np.zeros((1, 128, 56, 56), np.float32)))
    module.run()
    after = module.get_output(0).numpy()
    np.testing.assert_array_equal(after, np.broadcast_to(after[:, :, :1, :1], after.shape))


@pytest.mark.skipif(why_missing("onednn") is not None, reason="no oneDNN")
def test_new_weights_reach_the_columns_of_every_part() -> None:
    """Each part packs its own columns of the same weight."""
    net = nets.Net()
    net.op("MatMul", [net.input("x", [1, 300]), net.weight(300, 1000)], "y")
    model = net.model("y")
    compilation = compiled(model, "onednn", 3)
    assert len(compilation.program.operators) == 3
    module = GraphModule(compilation.artifact(compilation.sequential()))
    module.run(**nets.feeds(model))
    before = module.get_output(0).numpy()
    ((v, weight),) = compilation.program.weights.items()
    assert weight.shape == (300, 1000)
    changed = weight.copy()
    changed[:, 700] *= 2
    name = module.plan.values[v].name
    module.load_params(tvm.runtime.save_param_dict({name: tvm.runtime.tensor(changed)}))
    module.run()
    expected = before.copy()
    expected[:, 700] *= 2
    np.testing.assert_array_equal(module.get_output(0).numpy(), expected)
