"""Folds operators on constants with NumPy, if NumPy gives the same bits as TVM.

TVM's `FoldConstant` compiles a kernel for each constant that it computes. For a vision transformer
these are two hundred kernels, which take most of the time of lowering. This pass folds operators
that move or compare elements, combine booleans, add, subtract or multiply. It leaves all other
operators to later passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .names import bindings_of, replace_bindings
from .static_shape import static_shape
from .weights import is_supported_dtype

_Array = npt.NDArray[Any]

_ELEMENTWISE: dict[str, Callable[..., _Array]] = {
    "add": np.add,
    "equal": np.equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_not": np.logical_not,
    "logical_or": np.logical_or,
    "multiply": np.multiply,
    "subtract": np.subtract,
    "where": np.where,
}
"""The NumPy function of each element-wise operator.

Each function rounds at most once, so there is only one correct result. `not_equal` is missing,
because NumPy and TVM differ: in TVM, `NaN != NaN` is false.
"""

_VIEWS = frozenset({"expand_dims", "reshape", "squeeze"})
_MOVES = frozenset({"broadcast_to", "gather_elements", "permute_dims", "strided_slice", "take"})


@module_pass(opt_level=0, name="FoldArrays")
class FoldArrays:
    """Replace each binding of `main` that NumPy can compute from constants and shapes."""

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Fold the constants of `mod`; called by TVM's pass machinery."""
        main = mod["main"]
        known = _Known(main)
        if not known.folded:
            return mod
        folded = mod.clone()
        folded.update_func(folded.get_global_var("main"), replace_bindings(main, known.rewritten))
        return folded


class _Known:
    """The values of a function that can be computed before it runs.

    Attributes
    ----------
    folded: the constant for each variable whose value NumPy has computed.
    """

    def __init__(self, main: relax.Function) -> None:
        self.folded: dict[relax.Var, relax.Expr] = {}
        for binding in bindings_of(main):
            if not isinstance(binding, relax.VarBinding):
                continue
            array = self._computed(binding.value)
            if array is not None and _is_of_type(array, binding.var.ty):
                self.folded[binding.var] = relax.const(array, str(array.dtype))

    def rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        """The bindings that replace `binding`."""
        constant = self.folded.get(binding.var)
        return [binding] if constant is None else [relax.VarBinding(binding.var, constant)]

    def _computed(self, value: relax.Expr) -> _Array | None:
        """The result of a call; None if it depends on an input or is left to TVM."""
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        name = value.op.name.removeprefix("relax.")
        if name == "shape_to_tensor":
            sizes = _shape_values(value.args[0].ty)
            return None if sizes is None else np.array(sizes, dtype=np.int64)
        if value.op.name == "relax.concat":
            given = value.args[0]
            arrays = [self._array(field) for field in getattr(given, "fields", [])]
            if not arrays or any(array is None for array in arrays):
                return None
            return np.concatenate([a for a in arrays if a is not None], axis=int(value.attrs.axis))
        known = name in _ELEMENTWISE or name in _VIEWS or name in _MOVES
        first = self._array(value.args[0]) if known else None
        if first is None:
            return None
        if name in _VIEWS:
            shape = static_shape(value.ty)
            return None if shape is None else np.reshape(first, shape)
        if name == "permute_dims":
            axes = value.attrs.axes
            # The copy makes the result contiguous, as TVM's result is.
            turned = first.transpose(None if axes is None else [int(axis) for axis in axes])
            return np.reshape(np.ascontiguousarray(turned), turned.shape)
        if name == "strided_slice":
            return _sliced(first, value.args[1:])
        if name == "broadcast_to":
            shape = static_shape(value.ty)
            return None if shape is None else np.array(np.broadcast_to(first, shape))
        others = [self._array(arg) for arg in value.args[1:]]
        if any(array is None for array in others):
            return None
        if name == "take":
            return _taken(first, others[0], value.attrs)
        if name == "gather_elements":
            return _gathered(first, others[0], int(value.attrs.axis))
        with np.errstate(all="ignore"):
            return np.asarray(_ELEMENTWISE[name](first, *others))

    def _array(self, expr: relax.Expr) -> _Array | None:
        """The array of a constant; None for other expressions and for data types that NumPy
        lacks.
        """
        if isinstance(expr, relax.Var):
            expr = self.folded.get(expr, expr)
        if not isinstance(expr, tvm.ir.GenericConst) or not isinstance(expr.ty, relax.TensorType):
            return None
        return np.from_dlpack(expr.value) if is_supported_dtype(str(expr.ty.dtype)) else None


def _taken(array: _Array, indices: _Array | None, attrs: Any) -> _Array | None:
    """The result of `relax.take`; None if an index is not known or is out of bounds.

    The result for an index that is out of bounds depends on the operator's mode, so it is not
    folded here.
    """
    axis = None if attrs.axis is None else int(attrs.axis)
    size = array.size if axis is None else array.shape[axis]
    if indices is None or indices.dtype.kind not in "iu":
        return None
    least = -size if attrs.mode == "wrap" else 0
    if indices.size and (indices.min() < least or indices.max() >= size):
        return None
    return np.asarray(np.take(array, indices, axis=axis))


def _gathered(array: _Array, indices: _Array | None, axis: int) -> _Array | None:
    """The result of `relax.gather_elements`; None if an index is not known or is out of bounds."""
    if indices is None or indices.dtype.kind not in "iu" or indices.ndim != array.ndim:
        return None
    axis %= array.ndim
    if np.delete(indices.shape, axis).tolist() != np.delete(array.shape, axis).tolist():
        return None  # NumPy would broadcast an axis of size 1, and TVM would not.
    if indices.size and (indices.min() < 0 or indices.max() >= array.shape[axis]):
        return None
    return np.take_along_axis(array, indices, axis)


def _sliced(array: _Array, args: Sequence[Any]) -> _Array | None:
    """The result of `relax.strided_slice`; None for negative steps or bounds outside of the
    array.
    """
    each: list[list[int]] = []
    for arg in args:
        numbers = [_whole_number(field) for field in getattr(arg, "fields", [None])]
        each.append([number for number in numbers if number is not None])
        if len(each[-1]) < len(numbers):
            return None
    if len(each) == 3:
        each.append([1] * len(each[0]))
    axes, begins, ends, strides = each
    parts = [slice(None)] * array.ndim
    for axis, begin, end, stride in zip(axes, begins, ends, strides, strict=True):
        if not 0 <= begin <= end <= array.shape[axis] or stride < 1:
            return None
        parts[axis] = slice(begin, end, stride)
    return np.array(array[tuple(parts)], order="C")


def _whole_number(expr: Any) -> int | None:
    """The value of a Relax expression that is a whole number; None for other expressions."""
    value = getattr(expr, "value", expr)
    return int(value) if isinstance(value, int | tvm.tirx.IntImm) else None


def _shape_values(ty: Any) -> list[int] | None:
    """The dimensions in a shape's type; None if one of them is not known."""
    values = ty.values if isinstance(ty, relax.ShapeType) else None
    if values is None or not all(isinstance(size, tvm.tirx.IntImm) for size in values):
        return None
    return [int(size) for size in values]


def _is_of_type(array: _Array, ty: Any) -> bool:
    return array.shape == static_shape(ty) and str(array.dtype) == str(ty.dtype)
