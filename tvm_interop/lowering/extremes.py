"""Makes kernels that keep NaN, for operators that compare numbers, such as maxima and clips.

By IEEE 754, every ordered comparison with NaN is false. So TVM's own kernels turn NaN into other
numbers, and some do the same to infinity:

- TVM's maximum is `a > b ? a : b`, which drops a NaN in `a`.
- TVM's ReLU turns NaN into 0.
- TVM's `argmax` begins with the smallest finite number at index -1. So it returns -1 if all numbers
  of a row are minus infinity.

ONNX, NumPy and onnxruntime keep NaN, and so do the kernels made here. If one of two numbers is a
constant other than NaN, the kernel needs only one comparison to keep a NaN in the other number.

`docs/numbers.rst` lists the results of each operator for NaN and infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from .static_shape import static_shape

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
Better = Callable[[Any, Any], Any]
"""The comparison `a > b` for maxima, or `a < b` for minima. It is false if a number is NaN."""


def extremes() -> dict[str, Legalization]:
    """The function that makes the kernel of each operator, for TVM's pass `LegalizeOps`."""
    found: dict[str, Legalization] = {
        "relax.clip": _clip,
        "relax.nn.leakyrelu": _leaky_relu,
        "relax.nn.relu": _relu,
        "relax.sign": _sign,
    }
    found |= {f"relax.nn.max_pool{rank}d": _largest_of_window for rank in (1, 2, 3)}
    for extreme, better, worst in (("max", _greater, -math.inf), ("min", _less, math.inf)):
        found[f"relax.{extreme}imum"] = _of_two(extreme, better)
        found[f"relax.{extreme}"] = _over_axes(extreme, better, worst)
        found[f"relax.arg{extreme}"] = _position(extreme, better)
    return found


def _greater(a: Any, b: Any) -> Any:
    return a > b


def _less(a: Any, b: Any) -> Any:
    return a < b


def _relu(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    zero = tirx.const(0, _dtype(call))
    return _of_each(bb, call, "relu", lambda x: tirx.Select(x < zero, zero, x))


def _leaky_relu(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    # TVM's leaky ReLU multiplies all numbers that are not above 0 by the slope, and simplifies
    # `x * 0` to 0. Here NaN stays NaN, and with a slope of 0, minus infinity becomes NaN.
    dtype, alpha = _dtype(call), float(call.attrs.alpha)
    zero, slope = tirx.const(0, dtype), tirx.const(alpha, dtype)

    def scaled(x: Any) -> Any:
        if alpha != 0:
            return x * slope
        return tirx.Select(x < tirx.min_value(dtype), tirx.const(math.nan, dtype), zero)

    return _of_each(bb, call, "leaky_relu", lambda x: tirx.Select(x < zero, scaled(x), x))


def _largest_of_window(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make TVM's kernel of a max pooling, but with minus infinity as its initial value.

    TVM's initial value is the smallest finite number. TVM would return this number if all numbers
    of a window are minus infinity.
    """
    made = _usual(bb, call)
    dtype = _dtype(call)
    if "float" not in dtype:
        return made
    smallest, least = tirx.min_value(dtype).value, tirx.const(-math.inf, dtype)

    def lower(number: Any) -> Any:
        return least if number.value == smallest else number

    var = made.args[0]
    kernel = bb.get()[var]
    bb.update_func(var, tvm_ffi.structural_map(kernel, [(tirx.FloatImm, lower)]))
    return made


def _sign(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = _dtype(call)
    if dtype.startswith("uint"):
        return _usual(bb, call)
    zero, one, minus_one = (tirx.const(value, dtype) for value in (0, 1, -1))
    return _of_each(
        bb, call, "sign", lambda x: tirx.Select(x > zero, one, tirx.Select(x < zero, minus_one, x))
    )


def _clip(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = _dtype(call)
    low, high = (_number(bound, dtype) for bound in call.args[1:3])
    if low is None or high is None:
        return _usual(bb, call)

    def clipped(x: Any) -> Any:
        raised = tirx.Select(x < low, low, x)
        # The upper bound comes last, because the result of a clip with low > high is high in ONNX.
        return tirx.Select(raised > high, high, raised)

    return _of_each(bb, call, "clip", clipped)


def _of_two(name: str, better: Better) -> Legalization:
    def legalization(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        dtype, shape = _dtype(call), static_shape(call.ty)
        if "float" not in dtype or shape is None:
            return _usual(bb, call)
        x, y = call.args
        for one, other in ((x, y), (y, x)):
            bound = _number(other, dtype)
            if bound is not None and static_shape(one.ty) == shape:
                kernel = _bounded(better, bound)
                return bb.call_te(_each(kernel), one, primfunc_name_hint=f"{name}imum")
        return bb.call_te(
            lambda x, y: te.compute(
                shape,
                lambda *at: _better_of(better, x(*_within(x, at)), y(*_within(y, at))),
            ),
            x,
            y,
            primfunc_name_hint=f"{name}imum",
        )

    return legalization


def _bounded(better: Better, bound: Any) -> Callable[[Any], Any]:
    return lambda x: tirx.Select(better(bound, x), bound, x)


def _better_of(better: Better, a: Any, b: Any) -> Any:
    """The number that `better` prefers, `a` or `b`; NaN if one of them is NaN."""
    return tirx.Select(tirx.Or(better(b, a), _is_nan(b)), b, a)


def _within(x: te.Tensor, at: tuple[Any, ...]) -> list[Any]:
    """The indices of the element of `x` that is used at the indices `at` of a broadcast result."""
    behind = at[len(at) - len(x.shape) :]
    return [0 if int(size) == 1 else i for size, i in zip(x.shape, behind, strict=True)]


def _over_axes(name: str, better: Better, worst: float) -> Legalization:
    # TVM's initial value is the smallest finite number. TVM would return this number if all numbers
    # of a row are minus infinity.
    reducer = te.comm_reducer(
        lambda a, b: _better_of(better, a, b), lambda dtype: tirx.const(worst, dtype), name=name
    )

    def legalization(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        shape = static_shape(call.args[0].ty)
        if "float" not in _dtype(call) or shape is None or 0 in shape:
            return _usual(bb, call)
        axes = _reduced_axes(call.attrs.axis, len(shape))
        keepdims = bool(call.attrs.keepdims)
        return bb.call_te(
            lambda x: _reduced(x, axes, keepdims, reducer), call.args[0], primfunc_name_hint=name
        )

    return legalization


def _position(name: str, better: Better) -> Legalization:
    """Return the legalization of `argmax` or `argmin`.

    If several elements are the largest or smallest, the kernel returns the index of the first. If
    there are NaNs, it returns the index of the first NaN.
    """

    def first(a: Any, b: Any) -> tuple[Any, Any]:
        # Each of `a` and `b` is an index and a value. The index is -1 before the first element.
        (a_at, a_value), (b_at, b_value) = a, b
        is_better = tirx.Or(better(b_value, a_value), _alone_nan(b_value, a_value))
        is_equal = tirx.Or(b_value == a_value, _both_nan(b_value, a_value))
        wins = tirx.Or(is_better, tirx.And(is_equal, b_at < a_at))
        takes_b = tirx.And(b_at >= 0, tirx.Or(a_at < 0, wins))
        return tirx.Select(takes_b, b_at, a_at), tirx.Select(takes_b, b_value, a_value)

    reducer = te.comm_reducer(
        first,
        lambda at_dtype, dtype: (tirx.const(-1, at_dtype), tirx.const(0, dtype)),
        name=f"arg{name}",
    )

    def legalization(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x = call.args[0]
        shape = static_shape(x.ty)
        if shape is None or 0 in shape or not shape:
            return _usual(bb, call)
        axes = _reduced_axes(call.attrs.axis, len(shape))
        keepdims, at_dtype = bool(call.attrs.keepdims), _dtype(call)
        return bb.call_te(
            lambda x: _indexed(x, axes, keepdims, reducer, at_dtype),
            x,
            primfunc_name_hint=f"arg{name}",
        )

    return legalization


def _alone_nan(a: Any, b: Any) -> Any:
    return tirx.And(_is_nan(a), tirx.Not(_is_nan(b)))


def _both_nan(a: Any, b: Any) -> Any:
    return tirx.And(_is_nan(a), _is_nan(b))


def _is_nan(x: Any) -> Any:
    # A test by `x != x` would never find a NaN, because TVM simplifies this expression to false.
    return tirx.isnan(x) if "float" in str(x.ty.dtype) else tirx.const(False)


def _indexed(
    x: te.Tensor, axes: Set[int], keepdims: bool, reducer: Callable[..., Any], at_dtype: str
) -> te.Tensor:
    shape, reduced, element_at = _reduction(x, axes, keepdims)

    def element(*at: Any) -> Any:
        place = element_at(at)
        flat: Any = tirx.const(0, at_dtype)
        for axis, loop in reduced.items():
            flat = flat * int(x.shape[axis]) + loop.var.astype(at_dtype)
        return reducer((flat, x(*place)), axis=list(reduced.values()))

    positions, values = te.compute(shape, element, name="extreme")
    del values
    return te.compute(shape, lambda *at: positions(*at), name="position")


def _reduced(
    x: te.Tensor, axes: Set[int], keepdims: bool, reducer: Callable[..., Any]
) -> te.Tensor:
    """`x` reduced over `axes`.

    If `keepdims` is true, the reduced axes have size 1 in the result. Otherwise they are removed.
    """
    shape, reduced, element_at = _reduction(x, axes, keepdims)

    def element(*at: Any) -> Any:
        value = x(*element_at(at))
        return reducer(value, axis=list(reduced.values())) if reduced else value

    return te.compute(shape, element)


def _reduction(
    x: te.Tensor, axes: Set[int], keepdims: bool
) -> tuple[list[Any], dict[int, Any], Callable[[tuple[Any, ...]], list[Any]]]:
    """Return the shape, the loops and the indices that define a reduction of `x`.

    Returns
    -------
    The result's shape, the loop over each reduced axis, and a function that gives the indices in
    `x` for indices of the result.
    """
    reduced = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in sorted(axes)}
    kept = [axis for axis in range(len(x.shape)) if keepdims or axis not in axes]

    def element_at(at: tuple[Any, ...]) -> list[Any]:
        place = dict(zip(kept, at, strict=True)) | reduced
        return [place[axis] for axis in range(len(x.shape))]

    return [1 if axis in axes else x.shape[axis] for axis in kept], reduced, element_at


def _reduced_axes(axis: Any, rank: int) -> set[int]:
    if axis is None:
        return set(range(rank))
    given = [axis] if isinstance(axis, int) else axis
    return {int(a) % rank for a in given}


def _of_each(
    bb: relax.BlockBuilder, call: relax.Call, name: str, kernel: Callable[[Any], Any]
) -> relax.Expr:
    return bb.call_te(_each(kernel), call.args[0], primfunc_name_hint=name)


def _each(kernel: Callable[[Any], Any]) -> Callable[[te.Tensor], te.Tensor]:
    return lambda x: te.compute(x.shape, lambda *at: kernel(x(*at)))


def _number(expr: Any, dtype: str) -> Any:
    """The value of a constant `expr`, as TIR; None if `expr` is NaN or not a constant number."""
    if isinstance(expr, tvm.ir.GenericConst):
        if expr.value.numpy().size != 1:
            return None
        value = expr.value.numpy().reshape(-1)[0].item()
    else:
        value = getattr(expr, "value", None)
    return None if value is None or value != value else tirx.const(value, dtype)


def _usual(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.op.get_attr("FLegalize")(bb, call)


def _dtype(call: relax.Call) -> str:
    return str(getattr(call.ty, "dtype", ""))
