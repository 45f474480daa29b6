"""Reads constants of quantised models, which are integers with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

_DEEPEST = 8
"""The largest number of operators between a constant and the operator that uses it. Exporters
insert fewer operators than this.
"""


def constant_of(
    values: Mapping[relax.Var, relax.Expr], expr: relax.Expr
) -> npt.NDArray[np.float32] | None:
    """The constant value of `expr` in floats; None if it is not a constant.

    Parameters
    ----------
    values: the expression that each variable is bound to.
    """
    found = _found(values, expr, _DEEPEST)
    return None if found is None else found.numbers()


def per_axis_weight(
    values: Mapping[relax.Var, relax.Expr], expr: relax.Expr, axis: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]] | None:
    """Return a quantised constant as integers with the zero point 0, and the scales of these
    integers.

    Parameters
    ----------
    values: the expression that each variable is bound to.
    axis: the axis along which scales may differ.

    Returns
    -------
    The integers, and one scale or one scale for each index of `axis`. None if `expr` is not a
    quantised constant. None also if its scales differ along another axis, or an integer minus its
    zero point needs more than 8 bits.
    """
    found = _found(values, expr, _DEEPEST)
    if found is None or found.scale is None or found.scale.dtype != np.float32:
        return None
    if any(d != 1 for a, d in enumerate(found.scale.shape) if a != axis):
        return None
    if not (found.scale > 0).all():
        return None
    integers = found.array.astype(np.int64) - found.zero
    if integers.min() < -128 or integers.max() > 127:
        return None
    return np.ascontiguousarray(integers.astype(np.int8)), found.scale.reshape(-1)


@dataclass(frozen=True)
class _Constant:
    """The constant `(array - zero) * scale`, or `array` if there is no scale.

    The scale and the zero point are either one number, or arrays with the rank of `array`.
    """

    array: np.ndarray
    scale: np.ndarray | None = None
    zero: Any = 0

    def numbers(self) -> npt.NDArray[np.float32]:
        if self.scale is None:
            return self.array.astype(np.float32)
        result: npt.NDArray[np.float32] = (
            (self.array.astype(np.int64) - self.zero) * self.scale.astype(np.float64)
        ).astype(np.float32)
        return result


def _found(values: Mapping[relax.Var, relax.Expr], expr: Any, deep: int) -> _Constant | None:
    if isinstance(expr, tvm.ir.GenericConst):
        return _Constant(expr.value.numpy())
    value: Any = values.get(expr, expr) if isinstance(expr, relax.Var) else expr
    if deep == 0 or not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    source = _found(values, value.args[0], deep - 1)
    if source is None:
        return None
    name = value.op.name
    if name in ("relax.dequantize", "relax.quantize") and source.scale is None:
        steps = _steps(values, value, source.array, deep)
        if steps is None:
            return None
        if name == "relax.quantize":
            return _rounded(value, source.array, *steps)
        return _Constant(source.array, *steps)
    if name == "relax.permute_dims":
        rank = source.array.ndim
        axes = [int(a) for a in value.attrs.axes] if value.attrs.axes else range(rank)[::-1]
        return _each(source, lambda array: array.transpose(axes))
    if name in ("relax.reshape", "relax.expand_dims", "relax.squeeze"):
        shape = tuple(int(d) for d in value.ty.shape)
        single = source.scale is None or source.scale.size == 1
        if source.scale is not None and not single:
            # If a bias has a scale for each element, the scales are reshaped in the same way as the
            # bias.
            if source.array.shape != source.scale.shape:
                return None
            return _each(source, lambda array: array.reshape(shape))
        scale = None if source.scale is None else source.scale.reshape((1,) * len(shape))
        zero = np.reshape(source.zero, (1,) * len(shape)) if np.size(source.zero) == 1 else None
        return None if zero is None else _Constant(source.array.reshape(shape), scale, zero)
    return None


def _each(source: _Constant, change: Any) -> _Constant:
    scale = None if source.scale is None else change(source.scale)
    zero = change(source.zero) if np.ndim(source.zero) else source.zero
    return _Constant(change(source.array), scale, zero)


def _steps(
    values: Mapping[relax.Var, relax.Expr], value: relax.Call, array: np.ndarray, deep: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """The scales and the zero points of a rounding or of its inverse, with the rank of `array`.

    None if they are not constants.
    """
    scale, zero = (_found(values, arg, deep - 1) for arg in value.args[1:3])
    if scale is None or zero is None or scale.scale is not None or zero.scale is not None:
        return None
    shape = [1] * array.ndim
    if scale.array.size > 1:
        shape[int(value.attrs.axis) % array.ndim] = scale.array.size
    zeros = zero.array.astype(np.int64)
    zeros = np.broadcast_to(zeros.reshape(-1), scale.array.size if zeros.size == 1 else zeros.size)
    if zeros.size != scale.array.size:
        return None
    return scale.array.reshape(shape), zeros.reshape(shape)


def _rounded(
    value: relax.Call, array: np.ndarray, scale: np.ndarray, zero: np.ndarray
) -> _Constant | None:
    """The integers of a constant that the model itself rounds.

    Models that were trained with rounding do this. The bits are those of
    `quantised_kernels.rounded_to_steps`.
    """
    dtype = str(value.ty.dtype)
    if dtype not in ("int8", "uint8") or array.dtype != np.float32 or scale.dtype != np.float32:
        return None
    bounds = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        whole = np.rint(array / scale) + zero.astype(np.float32)
    if np.isnan(whole).any():
        return None
    return _Constant(np.clip(whole, bounds.min, bounds.max).astype(dtype))
