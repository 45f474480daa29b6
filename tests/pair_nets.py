"""Networks on batches of sequences, and the results that they must give if inputs are padded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from tests.masked_nets import LOWEST, WIDTH, Build, Masked, theirs
from tests.nets import Net
from tvm_interop.artifact.manifest import RowSizes
from tvm_interop.compiler.range_proofs import check_rows
from tvm_interop.compiler.row_ranges import Ranges, row_range

GIVEN, FILLED = (2, 4), (3, 7)
"""The numbers of rows and positions in the tests' inputs, and these numbers after padding."""
RANGES: Ranges = {"batch": (1, FILLED[0]), "seq": (1, FILLED[1])}


def pair_model(build: Build, **inputs: Sequence[int | str]) -> onnx.ModelProto:
    """A model with the inputs `x` and `mask`, and one more float input for each given shape."""
    net = Masked(batch="batch")
    for name, shape in inputs.items():
        net.input(name, shape)
    return net.model(build(net), check=False)


def shared_mask_model(build: Build) -> onnx.ModelProto:
    """A model with a mask that all rows share."""
    net = Masked.__new__(Masked)
    Net.__init__(net)
    net.batch, net._count = 1, 0
    net.input("x", ["batch", "seq", WIDTH])
    net.input("mask", [1, "seq"], TensorProto.INT64)
    return net.model(build(net), check=False)


def proven(model: onnx.ModelProto, ranges: Ranges = RANGES, most_sizes: int = 4) -> RowSizes:
    """The facts about padding that are proven for a model with two ranges of sizes.

    Raises InputError if it cannot be proven that padding keeps the results.
    """
    return check_rows(model, row_range(model, ranges, most_sizes))[0]


def feed_of(model: onnx.ModelProto, sizes: tuple[int, int], seed: int) -> dict[str, Any]:
    """Random inputs. Each row of integers begins with 0 and 1 if it has two numbers or more."""
    rng, found = np.random.default_rng(seed), {}
    names = {"batch": sizes[0], "seq": sizes[1]}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = tuple(names.get(d.dim_param, d.dim_value) for d in dims)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype.kind == "f":
            found[value.name] = rng.standard_normal(shape).astype(dtype)
        else:
            found[value.name] = rng.integers(0, 2, shape).astype(dtype)
            for at, number in ((0, 0), (1, 1)) if sizes[1] > 1 else ((0, 1),):
                found[value.name][..., at] = number
    return found


def filled_feed(
    model: onnx.ModelProto, feed: Mapping[str, np.ndarray], rows: RowSizes, seed: int
) -> dict[str, np.ndarray]:
    """Inputs padded with garbage: NaN in the added rows, and large numbers at the added
    positions."""
    junk, found = np.random.default_rng(seed), {}
    masks = rows.where_one
    positions = "seq" if rows.second is None else rows.second.dimension
    for value in model.graph.input:
        array = feed[value.name]
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param not in ("batch", "seq"):
                continue
            more = list(array.shape)
            more[axis] = dict(zip(("batch", "seq"), FILLED, strict=True))[dim.dim_param]
            more[axis] -= array.shape[axis]
            if array.dtype.kind != "f":
                fill = junk.integers(0, 2, more)
            elif dim.dim_param == positions:
                fill = 30 * junk.standard_normal(more)
            else:
                fill = np.full(more, np.nan)
            if dim.dim_param == positions and value.name in masks:
                fill = np.zeros(more)
            array = np.concatenate([array, fill.astype(array.dtype)], axis)
        found[value.name] = array
    return found


def is_true(model: onnx.ModelProto, rows: RowSizes, first: int | None = None) -> bool:
    """Whether the rows and positions before the padding have the same results as without padding.

    Parameters
    ----------
    first: the value that the first number of each row of integers must have, or None for any value.
        If a mask must begin with 1, this value is 1.
    """
    feed = feed_of(model, GIVEN, 5)
    if "first" in rows.where_one.values():
        first = 1
    for name, array in feed.items():
        if first is not None and array.dtype.kind != "f":
            feed[name][..., 0] = first
        if rows.where_one.get(name) == "nowhere" and array.dtype.kind != "f":
            feed[name][:] = 0
        if rows.where_one.get(name) == "all":
            feed[name][:] = 1
    alone = theirs(model, feed)
    for seed in (0, 1):
        among = theirs(model, filled_feed(model, feed, rows, seed))
        for own, found in zip(alone, among, strict=True):
            cut = found[tuple(slice(size) for size in own.shape)]
            if not np.allclose(cut, own, rtol=1e-4, atol=1e-4, equal_nan=True):
                return False
    return True


def decoder(layers: int = 1, vocabulary: int = 30, most: int = 64) -> onnx.ModelProto:
    """A GPT-2-like decoder with random weights: causal attention, and a mask for padding."""
    net, width = Masked.__new__(Masked), 16
    Net.__init__(net)
    net.batch, net._count = "batch", 0
    ids = net.input("input_ids", ["batch", "seq"], TensorProto.INT64)
    net.input("attention_mask", ["batch", "seq"], TensorProto.INT64)
    table = net.weight(vocabulary, width, scale=1.0)
    length = net.do("Gather", net.do("Shape", ids), net.number(1, np.int64))
    at = net.do("Range", net.number(0, np.int64), length, net.number(1, np.int64))
    x = net.do("Add", net.do("Gather", table, ids), net.do("Gather", net.weight(most, width), at))
    rows, columns = (net.do("Unsqueeze", at, net.ints(axis)) for axis in (1, 0))
    is_later = net.do("Less", rows, columns)
    later = net.do("Where", is_later, net.number(LOWEST), net.number(0))
    left_out = net.left_out(mask="attention_mask")
    for _ in range(layers):
        inner = net.do("LayerNormalization", x, net.positive(width), net.weight(width))
        joined = net.do("MatMul", inner, net.weight(width, 3 * width))
        q, k, v = (f"t{net._count + 1}{name}" for name in "qkv")
        net.op("Split", [joined, net.ints(width, width, width)], q, k, v, axis=2)
        scores = net.do("MatMul", q, net.do("Transpose", k, perm=[0, 2, 1]))
        scores = net.do("Add", net.do("Add", scores, later), left_out)
        x = net.do("Add", x, net.do("MatMul", net.mixed(scores, v), net.weight(width, width)))
        inner = net.do("LayerNormalization", x, net.positive(width), net.weight(width))
        up = net.do("MatMul", inner, net.weight(width, 4 * width))
        up = net.do("Mul", up, net.do("Sigmoid", net.do("Mul", up, net.number(1.702))))
        x = net.do("Add", x, net.do("MatMul", up, net.weight(4 * width, width)))
    net.op("MatMul", [x, net.do("Transpose", table, perm=[1, 0])], "logits")
    return net.model("logits", check=False)
