"""Converters for ONNX's normalisations, for cases that TVM's converters lack or get wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from ..lowering.static_shape import static_shape
from .constants import number_like


def _widened(bb: relax.BlockBuilder, x: Any) -> Any:
    """Return `x` converted to float32; a float64 `x` is returned unchanged."""
    return x if str(x.ty.dtype) == "float64" else bb.emit(relax.op.astype(x, "float32"))


def _moments(bb: relax.BlockBuilder, x: Any, axes: Sequence[int]) -> tuple[Any, Any, Any]:
    """Return the mean along `axes`, `x` minus the mean, and the variance."""
    mean = bb.emit(relax.op.mean(x, axes, keepdims=True))
    centred = bb.emit(relax.op.subtract(x, mean))
    squares = bb.emit(relax.op.multiply(centred, centred))
    return mean, centred, bb.emit(relax.op.mean(squares, axes, keepdims=True))


def _batch_norm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the result of a batch normalisation that takes mean and variance from the batch.

    The second and third result are the running mean and the running variance. Return None for a
    node with a given mean and variance, as is usual in inference. Some networks use the mean and
    variance of the batch in inference too, to normalise their weights.
    """
    if not attrs.get("spatial", 1):
        return _norm_of_elements(bb, inputs, float(attrs.get("epsilon", 1e-5)))
    if not attrs.get("training_mode", 0):
        return None
    x, scale, bias, mean, variance = inputs[:5]
    dtype = str(x.ty.dtype)
    wide = _widened(bb, x)
    kind, rank = str(wide.ty.dtype), int(x.ty.ndim)
    axes = [axis for axis in range(rank) if axis != 1]

    def of_channels(values: Any) -> Any:
        same = bb.emit(relax.op.astype(values, kind))
        return bb.emit(relax.op.reshape(same, (1, -1, *[1] * (rank - 2))))

    batch_mean, centred, batch_variance = _moments(bb, wide, axes)
    epsilon = number_like(wide, float(attrs.get("epsilon", 1e-5)))
    inverse = bb.emit(relax.op.rsqrt(bb.emit(relax.op.add(batch_variance, epsilon))))
    normal = bb.emit(relax.op.multiply(centred, inverse))
    scaled = bb.emit(relax.op.multiply(normal, of_channels(scale)))
    result = bb.emit(relax.op.astype(bb.emit(relax.op.add(scaled, of_channels(bias))), dtype))
    number = attrs["tvm_custom"]["num_outputs"]
    if number == 1:
        return result
    momentum = float(attrs.get("momentum", 0.9))
    running = []
    for old, new in ((mean, batch_mean), (variance, batch_variance)):
        kept = bb.emit(relax.op.multiply(old, number_like(old, momentum)))
        flat = bb.emit(relax.op.astype(bb.emit(relax.op.reshape(new, (-1,))), str(old.ty.dtype)))
        added = bb.emit(relax.op.multiply(flat, number_like(flat, 1 - momentum)))
        running.append(bb.emit(relax.op.add(kept, added)))
    return relax.Tuple([result, *running][:number])


def _norm_of_elements(bb: relax.BlockBuilder, inputs: Sequence[Any], epsilon: float) -> Any:
    """Return the result of a batch normalisation of opsets before 9 whose `spatial` is 0. Each
    element of an image has its own mean, variance, scale and bias.
    """
    x, scale, bias, mean, variance = inputs[:5]
    added = bb.emit(relax.op.add(variance, number_like(variance, epsilon)))
    factor = bb.emit(relax.op.divide(scale, bb.emit(relax.op.sqrt(added))))
    centred = bb.emit(relax.op.subtract(x, mean))
    return relax.op.add(bb.emit(relax.op.multiply(centred, factor)), bias)


def _layer_norm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM's converter returns constants in place of the mean and the inverse deviation. It does not
    # support float64, or a scale or bias that must be broadcast.
    x, scale = inputs[0], inputs[1]
    axes = axes_of(x, attrs)
    is_usual = all(_has_shape_of(axes, x, each) for each in inputs[1:] if each is not None)
    if attrs["tvm_custom"]["num_outputs"] == 1 and str(x.ty.dtype) != "float64" and is_usual:
        return None
    wide = _widened(bb, x)
    mean, centred, variance = _moments(bb, wide, axes)
    epsilon = number_like(wide, float(attrs.get("epsilon", 1e-5)))
    inverse = bb.emit(relax.op.rsqrt(bb.normalize(relax.op.add(variance, epsilon))))
    normal = relax.op.astype(bb.normalize(relax.op.multiply(centred, inverse)), x.ty.dtype)
    result = relax.op.multiply(bb.normalize(normal), scale)
    if len(inputs) > 2 and inputs[2] is not None:
        result = relax.op.add(bb.normalize(result), inputs[2])
    outputs = [bb.emit(result), *(bb.emit(relax.op.astype(s, "float32")) for s in (mean, inverse))]
    number = attrs["tvm_custom"]["num_outputs"]
    return outputs[0] if number == 1 else relax.Tuple(outputs[:number])


def axes_of(x: Any, attrs: Mapping[str, Any]) -> list[int]:
    """Return the axes that a layer normalisation works over: from the attribute `axis` to the last
    axis.
    """
    rank = int(x.ty.ndim)
    return list(range(int(attrs.get("axis", -1)) % rank, rank))


def _has_shape_of(axes: Sequence[int], x: Any, scale: Any) -> bool:
    """Whether `scale` has the sizes of `x` along `axes`; True if the shape of `x` is unknown."""
    shape = static_shape(x.ty)
    return shape is None or static_shape(scale.ty) == tuple(shape[axis] for axis in axes)


def _rms_norm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, scale = inputs[:2]
    axes = axes_of(x, attrs)
    if len(axes) < x.ty.ndim and _has_shape_of(axes, x, scale):
        return None
    # TVM's kernel of RMS norms is not used here: it loses a dimension if it normalises over all
    # axes, and it does not broadcast scales.
    wide = _widened(bb, x)
    square = bb.emit(relax.op.mean(relax.op.multiply(wide, wide), axes, keepdims=True))
    epsilon = number_like(wide, float(attrs.get("epsilon", 1e-5)))
    normal = relax.op.multiply(wide, relax.op.rsqrt(relax.op.add(square, epsilon)))
    return relax.op.multiply(bb.emit(relax.op.astype(normal, str(x.ty.dtype))), scale)


def _group_norm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, scale, bias = inputs
    dtype, shape = str(x.ty.dtype), static_shape(x.ty)
    if dtype == "float32" or shape is None:
        return None  # TVM's converter of group norms, for opset 18, supports only float32.
    groups, channels = int(attrs["num_groups"]), shape[1]
    wide = bb.emit(relax.op.astype(x, "float32")) if dtype == "float16" else x
    rows = bb.emit(relax.op.reshape(wide, (shape[0], groups, -1)))
    _, centred, variance = _moments(bb, rows, [2])
    epsilon = number_like(wide, float(attrs.get("epsilon", 1e-5)))
    deviation = bb.emit(relax.op.sqrt(bb.emit(relax.op.add(variance, epsilon))))
    normal = bb.emit(relax.op.reshape(relax.op.divide(centred, deviation), shape))

    def of_channels(values: Any) -> Any:
        # In opset 18, each group has a scale and a bias. In later opsets, each channel has them.
        each = channels // int(values.ty.shape[0])
        repeated = bb.emit(relax.op.repeat(values, each, 0)) if each > 1 else values
        return bb.emit(relax.op.reshape(repeated, (1, channels, *[1] * (len(shape) - 2))))

    narrow = bb.emit(relax.op.astype(normal, dtype))
    scaled = bb.emit(relax.op.multiply(narrow, of_channels(scale)))
    return relax.op.add(scaled, of_channels(bias))


def _instance_norm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, scale, bias = inputs
    axes, epsilon = list(range(2, x.ty.ndim)), float(attrs.get("epsilon", 1e-5))
    return relax.op.nn.instance_norm(x, scale, bias, 1, axes, epsilon)


def _mean_variance(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM's converter, and ONNX's definition by simpler operators, subtract the square of the mean
    # from the mean of the squares. For numbers far from 0, the two are nearly equal, so the
    # difference has few correct digits.
    x = inputs[0]
    # In opset 1, ONNX had not defined the operator yet. There, attributes say whether to include
    # the channels, and whether to divide by the deviation.
    usual = (0, 1, 2, 3) if attrs.get("across_channels", 0) else (0, 2, 3)
    dtype, axes = str(x.ty.dtype), [int(axis) for axis in attrs.get("axes", usual)]
    wide = _widened(bb, x)
    _, centred, variance = _moments(bb, wide, axes)
    if not attrs.get("normalize_variance", 1):
        return relax.op.astype(centred, dtype)
    deviation = bb.emit(relax.op.sqrt(variance))
    limited = bb.emit(relax.op.add(deviation, number_like(wide, 1e-9)))
    return relax.op.astype(bb.emit(relax.op.divide(centred, limited)), dtype)


def _lp_norm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, axis = inputs[0], [int(attrs.get("axis", -1))]
    if int(attrs.get("p", 2)) == 1:
        norm = relax.op.sum(bb.emit(relax.op.abs(x)), axis, keepdims=True)
    else:
        squares = bb.emit(relax.op.multiply(x, x))
        norm = relax.op.sqrt(bb.emit(relax.op.sum(squares, axis, keepdims=True)))
    norm = bb.emit(norm)
    # A vector whose norm is 0 stays 0.
    is_zero = bb.emit(relax.op.equal(norm, number_like(x, 0)))
    return relax.op.divide(x, bb.emit(relax.op.where(is_zero, number_like(x, 1), norm)))


NORMALISATIONS = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": _rms_norm,
}
"""Maps the name of a normalisation operator to its converter."""
