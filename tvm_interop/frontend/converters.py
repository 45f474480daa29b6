"""Converters for ONNX operators that TVM's importer lacks, gets wrong or makes slow.

A converter takes the operator's inputs and attributes, as TVM's importer represents them. It
returns the result, or None to leave the operator to TVM's own converter. If no kernel can compute
the result, it raises `UnsupportedModelError`, to which the importer adds the node's name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from tvm import relax, te, tirx

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .activations import ACTIVATIONS
from .assigned_boxes import import_scatter_elements, import_scatter_nd
from .bfloat16 import is_rounded, rounded
from .blocks import import_dequantize, import_quantize
from .classical import CLASSICAL
from .col2im import import_col2im
from .constants import constant_array, number_like
from .cumulative_sum import import_cumulative_product, import_cumulative_sum
from .deform_conv import import_deform_conv
from .determinant import import_determinant
from .dynamic_quantise import import_dynamic_quantize
from .gather_nd import import_gather, import_gather_nd
from .integer_division import divided
from .microsoft import MICROSOFT
from .ngrams import import_ngrams
from .normalisations import NORMALISATIONS
from .one_hot import import_one_hot
from .pieces import import_slice, import_split
from .pool_places import import_max_unpool
from .pooling import POOLS, import_pool
from .powers import import_power
from .recurrent import RECURRENT, import_recurrent
from .reductions import REDUCTIONS, import_reduction
from .resize import import_resize
from .roi_align import import_roi_align
from .rows import import_compress, import_reverse_sequence, import_tensor_scatter
from .sequences import (
    import_optional_has_element,
    import_sequence_at,
    import_sequence_insert,
    import_split_to_sequence,
)
from .small_floats import SMALL_FLOATS, as_small_float
from .spectra import import_dft, import_mel_weights, import_stft
from .top_k import import_top_k
from .transposed import import_transposed_convolution

Converter = Callable[[relax.BlockBuilder, Sequence[Any], Mapping[str, Any]], Any]


def convert(
    bb: relax.BlockBuilder, op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the result of an ONNX operator, or None to leave it to TVM's converter.

    Raises
    ------
    UnsupportedModelError
        There is no kernel for the node with these attributes.
    """
    if op_type in RECURRENT:
        return import_recurrent(bb, op_type, inputs, attrs)
    if op_type in POOLS:
        return import_pool(bb, op_type, inputs, attrs)
    if op_type in REDUCTIONS:
        return import_reduction(bb, op_type, inputs, attrs)
    converter = _CONVERTERS.get(op_type)
    return None if converter is None else converter(bb, inputs, attrs)


def _of_all(op: Callable[[Any, Any], Any]) -> Converter:
    # TVM's converters of `Max`, `Min` and `Sum` stack the inputs and reduce the stack. The stack is
    # a copy of all inputs, and prevents fusion.
    def convert(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        return functools.reduce(lambda x, y: bb.normalize(op(x, y)), inputs)

    return convert


def _add(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # Python's `sum` begins with 0, so exported models may contain an addition of 0. It is removed
    # here. TVM would turn it into a copy and then fail in lowering.
    for x, other in (inputs, inputs[::-1]):
        zero = constant_array(other)
        if zero is not None and zero.ndim == 0 and zero == 0 and isinstance(x, relax.Var):
            return x
    return None


def _clip(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM's converter of `Clip` emits calls of kernels in place of Relax operators. Later passes
    # cannot fuse such a call with a convolution.
    low, high = (*inputs[1:3], None, None)[:2]
    x = inputs[0]
    if len(inputs) == 1:  # In old opsets the bounds of `Clip` are attributes.
        low, high = (
            number_like(x, attrs[name]) if name in attrs else None for name in ("min", "max")
        )
    if _is_float(x):
        ends = tirx.min_value(str(x.ty.dtype)), tirx.max_value(str(x.ty.dtype))
        low = number_like(x, ends[0].value) if low is None else low
        high = number_like(x, ends[1].value) if high is None else high
    result = x
    for bound, extreme, is_beyond in (
        (low, relax.op.maximum, relax.op.less),
        (high, relax.op.minimum, relax.op.greater),
    ):
        known = None if bound is None else constant_array(bound)
        if bound is None or (known is not None and known != known):
            continue  # No number is less or greater than NaN, so a bound of NaN has no effect.
        if known is not None or not _is_float(x):
            result = bb.normalize(extreme(result, bound))
        else:
            beyond = bb.normalize(is_beyond(result, bound))
            result = bb.normalize(relax.op.where(beyond, bound, result))
    return result


def _dropout(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    ratio, training = (*inputs[1:3], None, None)[:2]
    drops = ratio is None or _constant(ratio) != 0
    if drops and training is not None and _constant(training) != 0:
        raise UnsupportedModelError(
            "it drops elements at random, as in training: export the model for inference"
        )
    data = inputs[0]
    if attrs["tvm_custom"]["num_outputs"] == 1:
        return data
    return relax.Tuple([data, bb.emit(relax.op.ones(data.ty.shape, "bool"))])


def _cast(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x = inputs[0]
    if int(attrs["to"]) == onnx.TensorProto.BFLOAT16:
        return rounded(bb, x)
    if int(attrs["to"]) in SMALL_FLOATS:
        small = SMALL_FLOATS[int(attrs["to"])]
        return as_small_float(bb, x, small, bool(attrs.get("saturate", 1)))
    if int(attrs["to"]) == onnx.TensorProto.FLOAT and is_rounded(bb, x):
        return x
    is_computed = isinstance(x, relax.Var) and isinstance(x.ty, relax.TensorType)
    if int(attrs["to"]) != onnx.TensorProto.BOOL or not is_computed or not _is_float(x):
        return None
    # TVM cannot compile a `where` whose condition casts an exponential to a boolean. A condition
    # that compares the exponential with 0 compiles.
    return relax.op.not_equal(x, number_like(x, 0))


def _equal(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, y = inputs
    if not all(isinstance(z.ty, relax.TensorType) and str(z.ty.dtype) == "bool" for z in inputs):
        return None
    # TVM's kernel of `Equal` compares booleans as floating-point numbers, which LLVM refuses.
    return relax.op.logical_not(bb.normalize(relax.op.logical_xor(x, y)))


def _is_inf(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x = inputs[0]
    signs = [
        (attrs.get("detect_positive", 1), np.inf),
        (attrs.get("detect_negative", 1), -np.inf),
    ]
    found = [relax.op.equal(x, number_like(x, value)) for wanted, value in signs if wanted]
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
    # The remainder has the sign of the divisor. TVM computes x - floor(x / y) * y, which is NaN if
    # x / y is infinite and loses digits if x / y is large.
    rest = bb.emit(relax.op.mod(x, y))
    zero = number_like(x, 0)
    other_sign = relax.op.logical_xor(relax.op.less(rest, zero), relax.op.less(y, zero))
    wrong = relax.op.logical_and(relax.op.not_equal(rest, zero), other_sign)
    return relax.op.where(wrong, relax.op.add(rest, y), rest)


def _bit_cast(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(int(attrs["to"])))
    # TVM cannot reinterpret the bits of a boolean, because a boolean has 8 bits in memory but 1 bit
    # in LLVM.
    if "bool" in (dtype, str(inputs[0].ty.dtype)):
        return relax.op.astype(inputs[0], dtype)
    return bb.call_te(
        lambda x: te.compute(x.shape, lambda *at: tirx.reinterpret(dtype, x(*at))),
        inputs[0],
        primfunc_name_hint="bit_cast",
    )


def _bit_shift(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, by = inputs
    dtype = str(x.ty.dtype)
    bits = np.iinfo(dtype).bits
    left = attrs["direction"] == b"LEFT"
    # In machine code, a shift is undefined if it is negative, or not smaller than the integer's
    # number of bits.
    within = relax.op.less(by, number_like(by, bits))
    if dtype.startswith("int"):
        within = relax.op.logical_and(within, relax.op.greater_equal(by, number_like(by, 0)))
    safe = bb.emit(relax.op.where(within, by, number_like(by, 0)))
    shifted = (relax.op.left_shift if left else relax.op.right_shift)(x, safe)
    beyond = number_like(x, 0)
    if dtype.startswith("int") and not left:
        beyond = relax.op.where(
            relax.op.less(x, number_like(x, 0)), number_like(x, -1), number_like(x, 0)
        )
    return relax.op.where(within, shifted, beyond)


def _space_to_depth(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if attrs.get("mode", b"DCR") == b"DCR":
        return None
    x, block = inputs[0], int(attrs["blocksize"])
    n, c, h, w = (int(size) for size in x.ty.shape)
    parts = relax.op.reshape(x, (n, c, h // block, block, w // block, block))
    turned = relax.op.permute_dims(bb.normalize(parts), [0, 1, 3, 5, 2, 4])
    return relax.op.reshape(bb.normalize(turned), (n, c * block * block, h // block, w // block))


def _gemm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM rounds the factors `alpha` and `beta` to the type of the tensors, so 0.5 becomes 0 for
    # integers. ONNX multiplies by the exact factors, and rounds the result towards 0.
    a, b, c = (*inputs, None)[:3]
    factors = [float(attrs.get(name, 1.0)) for name in ("alpha", "beta")]
    if _is_float(a) or all(factor.is_integer() for factor in factors):
        return None
    turned = [
        bb.emit(relax.op.permute_dims(x)) if attrs.get(name) else x
        for x, name in ((a, "transA"), (b, "transB"))
    ]
    terms = [bb.emit(relax.op.matmul(*turned)), *([] if c is None else [c])]
    total = None
    for term, factor in zip(terms, factors, strict=False):
        exact = bb.emit(relax.op.astype(term, "float64"))
        scaled = bb.emit(relax.op.multiply(exact, relax.const(factor, "float64")))
        total = scaled if total is None else bb.emit(relax.op.add(total, scaled))
    return relax.op.astype(total, str(a.ty.dtype))


def _pad(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM's converter of `Pad` emits a call of a kernel in place of a Relax operator. Later passes
    # cannot fuse such a call with a convolution.
    x = inputs[0]
    pads, value, axes = (*inputs[1:4], None, None, None)[:3]
    if attrs.get("mode") == b"wrap":
        return _wrapped(bb, x, pads, axes)
    if attrs.get("mode", b"constant") != b"constant":
        return None
    if pads is None:
        # In old opsets, the widths and the value of the padding are attributes, not inputs.
        widths: Any = np.array(attrs["pads"], int)
        fill = attrs.get("value", 0.0)
    else:
        widths, fill = constant_array(pads), 0.0 if value is None else _constant(value)
    chosen = np.arange(x.ty.ndim) if axes is None else constant_array(axes)
    if widths is None or chosen is None:
        return None
    by_axis = np.zeros((x.ty.ndim, 2), int)
    by_axis[chosen] = widths.reshape(2, -1).T
    if fill is None:
        return _padded_with(bb, x, by_axis, value)
    if str(x.ty.dtype) not in _FLOATS or widths.min(initial=0) < 0:
        return None
    return relax.op.nn.pad(x, [int(width) for width in by_axis.ravel()], "constant", float(fill))


def _padded_with(bb: relax.BlockBuilder, x: Any, by_axis: np.ndarray, value: Any) -> Any:
    """Pad `x` with a number that is computed when the model runs; a negative width cuts elements
    off.

    Parameters
    ----------
    by_axis: the widths before and after, for each axis, in the shape (axes, 2).
    """
    inside = np.ones([1] * len(by_axis), bool)
    is_cut = (by_axis < 0).any()
    for axis, (before, after) in enumerate(by_axis.tolist()):
        if not before and not after:
            continue
        size = int(x.ty.shape[axis])
        places = np.arange(-before, size + after)
        if is_cut:
            nearest = relax.const(places.clip(0, size - 1), "int64")
            x = bb.emit(relax.op.take(x, nearest, axis, mode="clip"))
        is_old = (places >= 0) & (places < size)
        inside = inside & is_old.reshape([-1 if a == axis else 1 for a in range(len(by_axis))])
    if not is_cut:
        x = bb.emit(relax.op.nn.pad(x, by_axis.ravel().tolist()))
    scalar = bb.emit(relax.op.reshape(value, ()))
    return relax.op.where(relax.const(inside, "bool"), x, scalar)


def _wrapped(bb: relax.BlockBuilder, x: Any, pads: Any, axes: Any) -> Any:
    """Pad `x` periodically; a negative width cuts elements off.

    Elements that are cut off at one end are not used to pad the other end. TVM's kernel does use
    them.
    """
    widths, given = constant_array(pads), None if axes is None else constant_array(axes)
    assert widths is not None  # `check_constants` has refused pads that are not a constant.
    rank = int(x.ty.ndim)
    chosen = range(rank) if given is None else (given % rank).tolist()
    for axis, before, after in zip(chosen, *widths.reshape(2, -1).tolist(), strict=True):
        size = int(x.ty.shape[axis])
        kept = np.arange(size)[max(-before, 0) : size - max(-after, 0)]
        places = np.arange(-max(before, 0), len(kept) + max(after, 0)) % len(kept)
        if before or after:
            x = bb.emit(relax.op.take(x, relax.const(kept[places]), axis, mode="clip"))
    return x


def _sign(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x = inputs[0]
    # TVM's kernel of `Sign` compares with -1, which is not a number of an unsigned type.
    return relax.op.minimum(x, number_like(x, 1)) if str(x.ty.dtype).startswith("uint") else None


def _eye_like(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # TVM's converter of `EyeLike` ignores `dtype`. The result depends only on the shape, so it is a
    # constant.
    x = inputs[0]
    shape = static_shape(x.ty)
    if shape is None or len(shape) != 2:
        return None
    dtype = str(x.ty.dtype)
    if "dtype" in attrs:
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(int(attrs["dtype"])))
    rows, columns = shape
    return relax.const(np.eye(rows, columns, int(attrs.get("k", 0))).astype(dtype), dtype)


_MOST_JOINED = 64


def _concat(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # LLVM needs minutes to compile a kernel with thousands of arguments. So a long list of tensors
    # is joined in groups of `_MOST_JOINED`.
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
    """Return the value of a scalar constant, or None if the value is computed at run time."""
    data = getattr(value, "value", None)
    return None if data is None else data.numpy().item()


def _is_float(value: Any) -> bool:
    return "float" in str(value.ty.dtype)


_FLOATS = ("float16", "float32", "float64")

_CONVERTERS: dict[str, Converter] = {
    **ACTIVATIONS,
    **CLASSICAL,
    **MICROSOFT,
    **NORMALISATIONS,
    "Add": _add,
    "BitCast": _bit_cast,
    "BitShift": _bit_shift,
    "Cast": _cast,
    "Clip": _clip,
    "Col2Im": import_col2im,
    "Compress": import_compress,
    "Concat": _concat,
    "Constant": _constant_node,
    "ConvTranspose": import_transposed_convolution,
    "CumProd": import_cumulative_product,
    "CumSum": import_cumulative_sum,
    "DFT": import_dft,
    "DeformConv": import_deform_conv,
    "DequantizeLinear": import_dequantize,
    "Det": import_determinant,
    "Div": _div,
    "Dropout": _dropout,
    "DynamicQuantizeLinear": import_dynamic_quantize,
    "Equal": _equal,
    "EyeLike": _eye_like,
    "Gather": import_gather,
    "GatherND": import_gather_nd,
    "Gemm": _gemm,
    "IsInf": _is_inf,
    "Max": _of_all(relax.op.maximum),
    "MaxUnpool": import_max_unpool,
    "MelWeightMatrix": import_mel_weights,
    "Min": _of_all(relax.op.minimum),
    "Mod": _mod,
    "OneHot": import_one_hot,
    "OptionalHasElement": import_optional_has_element,
    "Pad": _pad,
    "Pow": import_power,
    "Resize": import_resize,
    "QuantizeLinear": import_quantize,
    "ReverseSequence": import_reverse_sequence,
    "RoiAlign": import_roi_align,
    "STFT": import_stft,
    "ScatterElements": import_scatter_elements,
    "ScatterND": import_scatter_nd,
    "SequenceAt": import_sequence_at,
    "SequenceInsert": import_sequence_insert,
    "Sign": _sign,
    "Slice": import_slice,
    "SpaceToDepth": _space_to_depth,
    "Split": import_split,
    "SplitToSequence": import_split_to_sequence,
    "Sum": _of_all(relax.op.add),
    "TensorScatter": import_tensor_scatter,
    "TfIdfVectorizer": import_ngrams,
    "TopK": import_top_k,
}

CONVERTED = frozenset(_CONVERTERS) | frozenset(POOLS)
"""Operators with a converter in this module or in the module `pooling`. If TVM has a converter too,
the one listed here is used first.
"""
