"""Small operators for cuDNN and cuBLASLt, with their expected results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tvm_interop import Schedule
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.library_op import LibraryOp, library_op
from tvm_interop.program.program import Operator, Program, Value


def conv2d(
    data: tuple[int, ...], weight: tuple[int, ...], output: tuple[int, ...], **fields: Any
) -> LibraryOp:
    extra = [(weight[0],)] * fields.get("has_bias", False) + [output] * fields.get("has_sum", False)
    shapes = (data, weight, *extra, output)
    given = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), **fields}
    layouts = ("plain",) * len(shapes)
    return library_op(op="conv2d", shapes=shapes, layouts=layouts, window=weight[2:], **given)


def matmul(left: tuple[int, ...], right: tuple[int, ...], **fields: Any) -> LibraryOp:
    output = (*left[:-1], right[-1])
    extra = [right[-1:]] * fields.get("has_bias", False) + [output] * fields.get("has_sum", False)
    shapes = (left, right, *extra, output)
    return library_op(op="matmul", shapes=shapes, layouts=("plain",) * len(shapes), **fields)


def reference(op: LibraryOp, arrays: list[np.ndarray]) -> np.ndarray:
    """The result of `op` for these inputs, in float64."""
    fields = SimpleNamespace(**op.fields())
    first, second, *extra = (array.astype(np.float64) for array in arrays)
    if op.op == "matmul":
        result = first @ second
    else:
        result = np.zeros(op.shapes[-1])
        top, left, bottom, right = fields.padding
        padded = np.pad(first, ((0, 0), (0, 0), (top, bottom), (left, right)))
        outputs, channels, height, width = second.shape
        per_group = outputs // fields.groups
        for o in range(outputs):
            begin = o // per_group * channels
            part = padded[:, begin : begin + channels]
            for y, x in np.ndindex(result.shape[2:]):
                rows = y * fields.strides[0] + np.arange(height) * fields.dilation[0]
                columns = x * fields.strides[1] + np.arange(width) * fields.dilation[1]
                window = part[:, :, rows][:, :, :, columns]
                result[:, o, y, x] = (window * second[o]).sum((1, 2, 3))
    if op.has_bias:
        bias = extra.pop(0)
        result = result + (bias[:, None, None] if op.op == "conv2d" else bias)
    if op.has_sum:
        result = result + extra.pop(0)
    return np.maximum(result, 0) if fields.activation == "relu" else result


def library_of(op: LibraryOp) -> str:
    return "cudnn" if op.op == "conv2d" else "cublaslt"


def plan_of(op: LibraryOp) -> Plan:
    """A plan whose only operator is `op`."""
    *inputs, _ = range(len(op.shapes))
    program = Program(
        values=[Value(f"v{i}", shape, op.dtype) for i, shape in enumerate(op.shapes)],
        operators=[Operator("op", "", tuple(inputs), (len(inputs),), op, library_of(op))],
        inputs=tuple(inputs),
        outputs=(len(inputs),),
    )
    return make_plan(program, Schedule("by hand", ("op",), streams=[[0]]), device="cuda:0")


def numbers(op: LibraryOp) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(op.dtype) for shape in op.shapes[:-1]]


IMAGE, OUTPUT = (2, 4, 6, 5), (2, 8, 6, 5)
CASES = {
    "conv2d": conv2d(IMAGE, (8, 4, 3, 3), OUTPUT),
    "bias": conv2d(IMAGE, (8, 4, 3, 3), OUTPUT, has_bias=True),
    "relu": conv2d(IMAGE, (8, 4, 3, 3), OUTPUT, activation="relu"),
    "bias and relu": conv2d(IMAGE, (8, 4, 3, 3), OUTPUT, has_bias=True, activation="relu"),
    "sum": conv2d(IMAGE, (8, 4, 3, 3), OUTPUT, has_sum=True),
    "all": conv2d(IMAGE, (8, 4, 3, 3), OUTPUT, has_bias=True, has_sum=True, activation="relu"),
    "grouped": conv2d(IMAGE, (8, 2, 3, 3), OUTPUT, groups=2, has_bias=True, activation="relu"),
    "depthwise": conv2d(IMAGE, (4, 1, 3, 3), IMAGE, groups=4),
    "uneven": conv2d(
        (1, 2, 9, 11),
        (3, 2, 3, 2),
        (1, 3, 4, 8),
        strides=(2, 1),
        padding=(1, 0, 1, 0),
        dilation=(2, 3),
        has_bias=True,
    ),
    "matmul": matmul((3, 5), (5, 4)),
    "matmul with all": matmul((3, 5), (5, 4), has_bias=True, has_sum=True, activation="relu"),
    "matmul, bias": matmul((3, 5), (5, 4), has_bias=True),
    "matmul, relu": matmul((3, 5), (5, 4), activation="relu"),
    "one right side": matmul((2, 3, 5), (5, 4), has_bias=True),
    "batch": matmul((2, 3, 5), (2, 5, 4), has_bias=True, has_sum=True),
    "float16": conv2d(
        IMAGE, (8, 4, 3, 3), OUTPUT, has_bias=True, activation="relu", dtype="float16"
    ),
    "float16, sum": conv2d(IMAGE, (8, 4, 3, 3), OUTPUT, has_sum=True, dtype="float16"),
    "matmul of float16": matmul((3, 5), (5, 4), has_bias=True, dtype="float16"),
}
