"""Our converters for ONNX operators that TVM's importer lacks, gets wrong or makes slow.

Each takes the operator's inputs and attributes as TVM's importer has them and gives its result, or
None where TVM's own converter does well. What ONNX defines and no kernel computes is refused with
`UnsupportedModelError`; the importer adds the node's name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import UnsupportedModelError
from .constants import constant_array
from .cumulative_sum import import_cumulative_sum
from .integer_division import divided
from .one_hot import import_one_hot
from .pieces import import_slice, import_split
from .recurrent import RECURRENT, import_recurrent
from .reductions import REDUCTIONS, import_reduction
from .resize import import_resize
from .top_k import import_top_k

Converter = Callable[[relax.BlockBuilder, Sequence[Any], Mapping[str, Any]], Any]


def convert(
    bb: relax.BlockBuilder, op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """The result of an operator of ONNX, or None if TVM's converter is to make it.

    Raises
    ------
    UnsupportedModelError
        No kernel computes what the node's attributes ask for.
    """
    if op_type in RECURRENT:
        return import_recurrent(bb, op_type, inputs, attrs)
    if op_type in REDUCTIONS:
        return import_reduction(bb, op_type, inputs, attrs)
    converter = _CONVERTERS.get(op_type)
    return None if converter is None else converter(bb, inputs, attrs)


def _of_all(op: Callable[[Any, Any], Any]) -> Converter:
    # TVM would stack the inputs and reduce: a copy of all, and nothing fuses.
    def convert(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        return functools.reduce(lambda x, y: bb.normalize(op(x, y)), inputs)

    return convert


def _add(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # Python's `sum` begins with 0. TVM would make a copy of that, and lose its way in lowering.
    for x, other in (inputs, inputs[::-1]):
        zero = constant_array(other)
        if zero is not None and zero.ndim == 0 and zero == 0 and isinstance(x, relax.Var):
            return x
    return None


def _clip(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM makes kernels of it at once, and nobody sees any more that it ends a convolution.
    low, high = (*inputs[1:3], None, None)[:2]
    x = inputs[0]
    if len(inputs) == 1:  # An old operator's bounds are attributes.
        low, high = (_const(x, attrs[name]) if name in attrs else None for name in ("min", "max"))
    result = x
    if low is not None:
        result = bb.normalize(relax.op.maximum(result, low))
    if high is not None:
        result = bb.normalize(relax.op.minimum(result, high))
    return result


def _dropout(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    training = inputs[2] if len(inputs) > 2 else None
    if training is not None and _constant(training) != 0:
        raise UnsupportedModelError(
            "it drops elements at random, as in training: export the model for inference"
        )
    data = inputs[0]
    if attrs["tvm_custom"]["num_outputs"] == 1:
        return data
    return relax.Tuple([data, bb.emit(relax.op.ones(data.ty.shape, "bool"))])


def _batch_norm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if attrs.get("training_mode", 0):
        raise UnsupportedModelError(
            "it normalises by the batch and updates running means, as in training: export the "
            "model for inference"
        )
    return None


def _equal(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, y = inputs
    if not all(isinstance(z.ty, relax.TensorType) and str(z.ty.dtype) == "bool" for z in inputs):
        return None
    # TVM's kernel compares booleans as numbers of floating point, which LLVM refuses.
    return relax.op.logical_not(bb.normalize(relax.op.logical_xor(x, y)))


def _is_inf(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x = inputs[0]
    signs = [
        (attrs.get("detect_positive", 1), np.inf),
        (attrs.get("detect_negative", 1), -np.inf),
    ]
    found = [relax.op.equal(x, _const(x, value)) for wanted, value in signs if wanted]
    if not found:
        return relax.op.zeros(x.ty.shape, "bool")
    return functools.reduce(relax.op.logical_or, found)


def _div(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, y = inputs
    if not all(isinstance(z.ty, relax.TensorType) for z in inputs) or _is_float(x):
        return None
    return divided(bb, x, y, relax.op.divide, is_quotient=True)


def _mod(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, y = inputs
    if not _is_float(x):
        op = relax.op.mod if attrs.get("fmod", 0) else relax.op.floor_mod
        return divided(bb, x, y, op, is_quotient=False)
    if attrs.get("fmod", 0):
        return None
    # The remainder with the sign of the divisor. What TVM has, x - floor(x / y) * y, is not a
    # number where x / y is infinite, and loses digits where it is large.
    rest = bb.emit(relax.op.mod(x, y))
    zero = _const(x, 0)
    other_sign = relax.op.logical_xor(relax.op.less(rest, zero), relax.op.less(y, zero))
    wrong = relax.op.logical_and(relax.op.not_equal(rest, zero), other_sign)
    return relax.op.where(wrong, relax.op.add(rest, y), rest)


def _bit_shift(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, by = inputs
    dtype = str(x.ty.dtype)
    bits = np.iinfo(dtype).bits
    left = attrs["direction"] == b"LEFT"
    # A shift by the width or more, or by a negative number, has no meaning in machine code.
    within = relax.op.less(by, _const(by, bits))
    if dtype.startswith("int"):
        within = relax.op.logical_and(within, relax.op.greater_equal(by, _const(by, 0)))
    safe = bb.emit(relax.op.where(within, by, _const(by, 0)))
    shifted = (relax.op.left_shift if left else relax.op.right_shift)(x, safe)
    beyond = _const(x, 0)
    if dtype.startswith("int") and not left:
        beyond = relax.op.where(relax.op.less(x, _const(x, 0)), _const(x, -1), _const(x, 0))
    return relax.op.where(within, shifted, beyond)


def _softplus(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x = inputs[0]
    small = bb.emit(relax.op.exp(relax.op.negative(relax.op.abs(x))))
    return relax.op.add(relax.op.maximum(x, _const(x, 0)), _log1p(bb, small))


def _log1p(bb: relax.BlockBuilder, x: Any) -> Any:
    """log(1 + x) for x in 0 to 1, accurate for small x too (Kahan's correction of the rounding)."""
    one = _const(x, 1)
    shifted = bb.emit(relax.op.add(x, one))
    rounded = bb.emit(relax.op.subtract(shifted, one))
    lost_all = relax.op.equal(rounded, _const(x, 0))
    divisor = relax.op.where(lost_all, one, rounded)
    corrected = relax.op.multiply(relax.op.log(shifted), relax.op.divide(x, divisor))
    return relax.op.where(lost_all, x, corrected)


def _mish(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # x * tanh(log(1 + e)) with e = exp(x) is x * n / (n + 2) with n = e * (e + 2). Above 20 the
    # quotient is 1 in float32 and float64 alike, and e cannot overflow.
    x = inputs[0]
    e = bb.emit(relax.op.exp(relax.op.minimum(x, _const(x, 20))))
    n = bb.emit(relax.op.multiply(e, relax.op.add(e, _const(x, 2))))
    return relax.op.multiply(x, relax.op.divide(n, relax.op.add(n, _const(x, 2))))


def _layer_norm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if attrs["tvm_custom"]["num_outputs"] == 1:
        return None
    # TVM's converter has constants for the mean and the inverse deviation.
    x, scale = inputs[0], inputs[1]
    rank = x.ty.ndim
    axes = list(range(int(attrs.get("axis", -1)) % rank, rank))
    wide = x if str(x.ty.dtype) == "float64" else bb.emit(relax.op.astype(x, "float32"))
    mean = bb.emit(relax.op.mean(wide, axes, keepdims=True))
    centred = bb.emit(relax.op.subtract(wide, mean))
    variance = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    epsilon = _const(wide, float(attrs.get("epsilon", 1e-5)))
    inverse = bb.emit(relax.op.rsqrt(bb.normalize(relax.op.add(variance, epsilon))))
    normal = relax.op.astype(bb.normalize(relax.op.multiply(centred, inverse)), x.ty.dtype)
    result = relax.op.multiply(bb.normalize(normal), scale)
    if len(inputs) > 2 and inputs[2] is not None:
        result = relax.op.add(bb.normalize(result), inputs[2])
    outputs = [bb.emit(result), mean, inverse]
    return relax.Tuple(outputs[: attrs["tvm_custom"]["num_outputs"]])


def _space_to_depth(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if attrs.get("mode", b"DCR") == b"DCR":
        return None
    x, block = inputs[0], int(attrs["blocksize"])
    n, c, h, w = (int(size) for size in x.ty.shape)
    parts = relax.op.reshape(x, (n, c, h // block, block, w // block, block))
    turned = relax.op.permute_dims(bb.normalize(parts), [0, 1, 3, 5, 2, 4])
    return relax.op.reshape(bb.normalize(turned), (n, c * block * block, h // block, w // block))


def _conv_transpose(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if "output_shape" in attrs:
        raise UnsupportedModelError(
            "its attribute `output_shape` is not supported: export it with `pads` and "
            "`output_padding`, which say the same"
        )
    return None


def _roi_align(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if attrs.get("mode", b"avg") == b"max":
        raise UnsupportedModelError(
            "its mode `max` is not supported, only `avg`: TVM takes another maximum than ONNX"
        )
    return None


def _elu(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM's is of float32 alone.
    x = inputs[0]
    below = relax.op.subtract(relax.op.exp(relax.op.minimum(x, _const(x, 0))), _const(x, 1))
    scaled = relax.op.multiply(_const(x, float(attrs.get("alpha", 1.0))), below)
    return relax.op.where(relax.op.less(x, _const(x, 0)), bb.normalize(scaled), x)


def _celu(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # ONNX's definition by other operators makes a vector of a scalar.
    x = inputs[0]
    alpha = _const(x, float(attrs.get("alpha", 1.0)))
    power = relax.op.exp(relax.op.divide(relax.op.minimum(x, _const(x, 0)), alpha))
    scaled = relax.op.multiply(alpha, relax.op.subtract(power, _const(x, 1)))
    return relax.op.where(relax.op.less(x, _const(x, 0)), bb.normalize(scaled), x)


def _selu(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM's makes 0 of NaN.
    x = inputs[0]
    alpha = float(attrs.get("alpha", 1.67326319217681884765625))
    gamma = float(attrs.get("gamma", 1.05070102214813232421875))
    below = relax.op.subtract(relax.op.exp(relax.op.minimum(x, _const(x, 0))), _const(x, 1))
    scaled = bb.normalize(relax.op.multiply(_const(x, alpha), below))
    chosen = bb.normalize(relax.op.where(relax.op.less(x, _const(x, 0)), scaled, x))
    return relax.op.multiply(_const(x, gamma), chosen)


def _thresholded_relu(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    # TVM multiplies by 0 or 1, which makes NaN of minus infinity.
    x = inputs[0]
    is_above = relax.op.greater(x, _const(x, float(attrs.get("alpha", 1.0))))
    return relax.op.where(bb.normalize(is_above), x, _const(x, 0))


def _pad(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM makes a kernel of it at once, and nobody sees any more that a convolution follows.
    x = inputs[0]
    pads, value, axes = (*inputs[1:4], None, None, None)[:3]
    if attrs.get("mode", b"constant") != b"constant" or str(x.ty.dtype) not in _FLOATS:
        return None
    if pads is None:
        # An old operator has attributes in place of inputs.
        widths: Any = np.array(attrs["pads"], int)
        fill = attrs.get("value", 0.0)
    else:
        widths, fill = constant_array(pads), 0.0 if value is None else _constant(value)
    chosen = np.arange(x.ty.ndim) if axes is None else constant_array(axes)
    if widths is None or fill is None or chosen is None or widths.min(initial=0) < 0:
        return None
    by_axis = np.zeros((x.ty.ndim, 2), int)
    by_axis[chosen] = widths.reshape(2, -1).T
    return relax.op.nn.pad(x, [int(width) for width in by_axis.ravel()], "constant", float(fill))


def _pow(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, y = inputs
    dtype = str(x.ty.dtype)
    if dtype == str(y.ty.dtype) and _is_float(x):
        return None
    # The result has the type of the base. Integers are exact up to 2 to the 53.
    wide = "float32" if dtype == "float16" else "float64" if not _is_float(x) else dtype
    power = relax.op.power(relax.op.astype(x, wide), relax.op.astype(y, wide))
    if _is_float(x):
        return relax.op.astype(power, dtype)
    whole = power if _is_float(y) else relax.op.round(power)
    return relax.op.astype(bb.normalize(whole), dtype)


def _rms_norm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, scale = inputs[:2]
    rank = x.ty.ndim
    axes = list(range(int(attrs.get("axis", -1)) % rank, rank))
    if len(axes) < rank:
        return None
    # TVM's kernel lacks a dimension where it normalises over all of them.
    wide = bb.emit(relax.op.astype(x, "float32"))
    square = bb.emit(relax.op.mean(relax.op.multiply(wide, wide), axes, keepdims=True))
    epsilon = relax.const(float(attrs.get("epsilon", 1e-5)), "float32")
    normal = relax.op.multiply(wide, relax.op.rsqrt(relax.op.add(square, epsilon)))
    return relax.op.multiply(bb.emit(relax.op.astype(normal, str(x.ty.dtype))), scale)


def _sequence_insert(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    position = _constant(inputs[2]) if len(inputs) > 2 else None
    if position is None or position >= 0 or position < -len(inputs[0]):
        return None
    # TVM counts one too far from the end.
    tensors = list(inputs[0])
    tensors.insert(position, inputs[1])
    return relax.Tuple(tensors)


_MOST_JOINED = 64


def _concat(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # A kernel of thousands of arguments takes LLVM minutes: many tensors are joined by and by.
    if len(inputs) <= _MOST_JOINED or not all(hasattr(x.ty, "shape") for x in inputs):
        return None
    axis, parts = int(attrs["axis"]), list(inputs)
    while len(parts) > 1:
        groups = [parts[i : i + _MOST_JOINED] for i in range(0, len(parts), _MOST_JOINED)]
        parts = [bb.emit(relax.op.concat(g, axis)) if len(g) > 1 else g[0] for g in groups]
    return parts[0]


def _constant_node(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    for name, dtype in (("float", "float32"), ("int", "int64")):
        for key in (f"value_{name}", f"value_{name}s"):
            if key in attrs:
                return relax.const(np.array(attrs[key], dtype), dtype)
    if "value" not in attrs:
        kind = ", ".join(f"`{key}`" for key in attrs if key.startswith(("value", "sparse")))
        raise UnsupportedModelError(f"it holds {kind or 'nothing'}: only numbers can be constants")
    return None


def _constant(value: Any) -> Any:
    """The number a scalar constant holds; None for what is computed as the model runs."""
    data = getattr(value, "value", None)
    return None if data is None else data.numpy().item()


def _const(like: Any, value: float) -> relax.Expr:
    return relax.const(value, str(like.ty.dtype))


def _is_float(value: Any) -> bool:
    return "float" in str(value.ty.dtype)


_FLOATS = ("float16", "float32", "float64")

_CONVERTERS: dict[str, Converter] = {
    "Add": _add,
    "BatchNormalization": _batch_norm,
    "BitShift": _bit_shift,
    "Celu": _celu,
    "Clip": _clip,
    "Concat": _concat,
    "Constant": _constant_node,
    "ConvTranspose": _conv_transpose,
    "CumSum": import_cumulative_sum,
    "Div": _div,
    "Dropout": _dropout,
    "Elu": _elu,
    "Equal": _equal,
    "IsInf": _is_inf,
    "LayerNormalization": _layer_norm,
    "Max": _of_all(relax.op.maximum),
    "Min": _of_all(relax.op.minimum),
    "Mish": _mish,
    "Mod": _mod,
    "OneHot": import_one_hot,
    "Pad": _pad,
    "Pow": _pow,
    "RMSNormalization": _rms_norm,
    "Resize": import_resize,
    "RoiAlign": _roi_align,
    "Selu": _selu,
    "SequenceInsert": _sequence_insert,
    "Slice": import_slice,
    "Softplus": _softplus,
    "SpaceToDepth": _space_to_depth,
    "Split": import_split,
    "Sum": _of_all(relax.op.add),
    "ThresholdedRelu": _thresholded_relu,
    "TopK": import_top_k,
}

CONVERTED = frozenset(_CONVERTERS)
"""Operators that have a converter here, whether TVM has one or not."""
