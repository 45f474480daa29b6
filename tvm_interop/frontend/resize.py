"""Imports those `Resize` nodes that TVM's converter gets wrong: as elements taken, or products.

TVM's kernels know no antialiasing, resize the last dimensions alone, and take the quotient of the
sizes for the scale, which differs where the scaled size is no whole number. Resizing a dimension is
a linear map, so it is a product with a matrix: the one that resizes the identity. Where that takes
each number from one place, as `nearest` does, the numbers are taken from there instead. TVM finds
the place by the scale's inverse, which float32 rounds: half-way, that gives the place beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .constants import constant_array

_TVM_MODES = (
    "align_corners",
    "asymmetric",
    "half_pixel",
    "pytorch_half_pixel",
    "tf_crop_and_resize",
)


def import_resize(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> relax.Expr | None:
    """The result of a `Resize`, or None where TVM's converter makes it right.

    Raises
    ------
    UnsupportedModelError
        Neither way computes what the node's attributes ask for.
    """
    x, _, scales, sizes = (*inputs, None, None, None)[:4]
    shape, mode = static_shape(x.ty), _text(attrs, "coordinate_transformation_mode", "half_pixel")
    given = [None if v is None else constant_array(v) for v in (scales, sizes)]
    if shape is None or all(v is None or v.size == 0 for v in given):
        return None  # TVM's converter says what is missing.
    axes = [int(axis) % len(shape) for axis in attrs.get("axes", range(len(shape)))]
    factors, new_sizes = _factors(shape, axes, attrs, *given)
    exact = all(factors[a] * shape[a] == new_sizes[a] for a in axes)
    nearest = _text(attrs, "mode", "nearest") == "nearest"
    if (
        exact
        and "axes" not in attrs
        and not attrs.get("antialias", 0)
        and _text(attrs, "keep_aspect_ratio_policy", "stretch") == "stretch"
        and mode in _TVM_MODES
        and list(shape[:2]) == [new_sizes[0], new_sizes[1]]
        and len(shape) in (3, 4, 5)
        and not (mode == "align_corners" and 1 in new_sizes.values())
        and not (nearest and not all(_is_power_of_two(factors[a]) for a in axes))
    ):
        return None
    dtype = str(x.ty.dtype)
    if mode.startswith("tf_crop") or ("float" not in dtype and not nearest):
        raise UnsupportedModelError(
            f"its mode `{mode}` on {dtype} is supported for whole factors of the last dimensions "
            "alone, without antialiasing: export it with `half_pixel` in float32"
        )
    for axis in axes:
        if new_sizes[axis] != shape[axis] or factors[axis] != 1:
            matrix = _matrix(shape[axis], factors[axis], new_sizes[axis], attrs, given[1])
            if nearest:
                places = relax.const(matrix.argmax(axis=0).astype("int64"))
                x = bb.emit(relax.op.take(x, places, axis, mode="clip"))
                continue
            x = _multiplied(bb, x, relax.const(matrix.astype(dtype)), axis)
    return x


def _is_power_of_two(factor: float) -> bool:
    return math.frexp(factor)[0] == 0.5


def _factors(
    shape: Sequence[int],
    axes: Sequence[int],
    attrs: Mapping[str, Any],
    scales: np.ndarray[Any, Any] | None,
    sizes: np.ndarray[Any, Any] | None,
) -> tuple[dict[int, float], dict[int, int]]:
    """Of each axis the scale and the new size."""
    if scales is not None and scales.size:
        factors = {axis: float(scale) for axis, scale in zip(axes, scales, strict=True)}
        return factors, {axis: int(shape[axis] * scale) for axis, scale in factors.items()}
    assert sizes is not None
    new_sizes = {axis: int(size) for axis, size in zip(axes, sizes, strict=True)}
    policy = _text(attrs, "keep_aspect_ratio_policy", "stretch")
    factors = {axis: size / shape[axis] for axis, size in new_sizes.items()}
    if policy != "stretch":
        one = (min if policy == "not_larger" else max)(factors.values())
        return dict.fromkeys(axes, one), {a: int(one * shape[a] + 0.5) for a in axes}
    return factors, new_sizes


def _matrix(
    old: int,
    factor: float,
    new: int,
    attrs: Mapping[str, Any],
    sizes: np.ndarray[Any, Any] | None,
) -> np.ndarray[Any, Any]:
    """Of `old` rows and `new` columns: what the identity of `old` rows is resized to."""
    kept = {
        name: value
        for name, value in attrs.items()
        if name not in ("tvm_custom", "axes", "keep_aspect_ratio_policy")
    }
    # Not the quotient of the sizes, which float32 rounds: 7 times it may come to 999,999.
    exact = factor * old == new or factor == new / old
    by_size = sizes is not None and sizes.size > 0 and exact
    wanted: tuple[str, np.ndarray[Any, Any]]
    if by_size:
        wanted, names = ("sizes", np.array([new], np.int64)), ["x", "", "", "sizes"]
    else:
        wanted, names = ("scales", np.array([factor], np.float32)), ["x", "", "scales"]
    node = onnx.helper.make_node("Resize", names, ["y"], axes=[1], **kept)
    values = [onnx.ValueInfoProto(name=name) for name in ("x", wanted[0])]
    graph = onnx.helper.make_graph([node], "resize", values, [onnx.ValueInfoProto(name="y")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])
    feed = {"x": np.eye(old, dtype=np.float32), wanted[0]: wanted[1]}
    (result,) = ReferenceEvaluator(model).run(None, feed)
    return np.asarray(result).reshape(old, new)


def _multiplied(bb: relax.BlockBuilder, x: Any, matrix: relax.Expr, axis: int) -> relax.Expr:
    rank = x.ty.ndim
    order = [a for a in range(rank) if a != axis] + [axis]
    back = [order.index(a) for a in range(rank)]
    moved = bb.emit(relax.op.permute_dims(x, order)) if axis != rank - 1 else x
    product = bb.emit(relax.op.matmul(moved, matrix))
    return bb.emit(relax.op.permute_dims(product, back)) if axis != rank - 1 else product


def _text(attrs: Mapping[str, Any], name: str, default: str) -> str:
    value = attrs.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)
