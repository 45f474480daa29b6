"""Makes the kernels of operators for which TVM's own kernels give wrong results.

- An operator of float16 that combines many terms (a mean, a sum, a product, a softmax, an average
  pooling) computes in float32. GELU is computed in float32 too, because its terms nearly cancel.
  TVM would compute in float16. After some hundred terms, even the second digit of such a sum is
  wrong. The casts are part of the operator's kernel, so the operator is still one kernel.
- A sigmoid of float16 is computed in float32 too. Below -11, the exponential in it is larger than
  every number of float16, and the sigmoid would be 0.
- Numbers are rounded to integers of 8 bits as ONNX specifies: halves are rounded to the even
  integer.
- Products and quotients with a constant 0 are computed, so that `x * 0` is NaN if x is infinity or
  NaN. TVM would write the constant into the kernel and simplify `x * 0` to 0.

The module `extremes` makes the kernels of maxima, minima, clips, and other operators that compare
numbers, such as ReLU and `sign`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from .extremes import Legalization, extremes
from .grid_sample import legalize_grid_sample
from .group_norm import legalize_group_norm, legalize_instance_norm
from .quantised_kernels import rounded_to_steps
from .scatter_elements import legalize_scatter_elements

_SUMMING = (
    "relax.mean",
    "relax.nn.adaptive_avg_pool1d",
    "relax.nn.adaptive_avg_pool2d",
    "relax.nn.adaptive_avg_pool3d",
    "relax.nn.avg_pool1d",
    "relax.nn.avg_pool2d",
    "relax.nn.avg_pool3d",
    "relax.nn.gelu",
    "relax.nn.gelu_tanh",
    "relax.nn.log_softmax",
    "relax.nn.softmax",
    "relax.prod",
    "relax.std",
    "relax.sum",
    "relax.variance",
)
_HAVE_NO_HALF = tuple(
    f"relax.{name}"
    for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")
)
"""Functions for which LLVM calls the C library. The C library has no float16 versions of them."""
_WITH_EXPONENTIALS = ("relax.nn.silu", "relax.sigmoid")
_WITH_ZERO = (
    "relax.divide",
    "relax.floor_divide",
    "relax.floor_mod",
    "relax.mod",
    "relax.multiply",
)


def legalizations() -> dict[str, Legalization]:
    """The function that makes the kernel of each operator, for TVM's pass `LegalizeOps`."""
    own: dict[str, Legalization] = {
        "relax.image.grid_sample": legalize_grid_sample,
        "relax.nn.group_norm": legalize_group_norm,
        "relax.nn.instance_norm": legalize_instance_norm,
        "relax.quantize": _quantize,
        "relax.scatter_elements": legalize_scatter_elements,
    }
    own |= {name: _wide(name) for name in (*_SUMMING, *_HAVE_NO_HALF, *_WITH_EXPONENTIALS)}
    own |= {name: _heeding_zero(name) for name in _WITH_ZERO}
    return own | extremes()


def _quantize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make a kernel that rounds halves to even; TVM's own kernel rounds them away from zero.

    Numbers of float16 are divided in float32, as in onnxruntime. Float16 does not have the limits
    of the integers of 16 bits.
    """
    usual = tvm.ir.Op.get("relax.quantize").get_attr("FLegalize")
    dtype = _dtype(call)
    given = str(call.args[0].ty.dtype)
    if dtype not in ("int8", "uint8", "int16", "uint16") or given not in ("float16", "float32"):
        return usual(bb, call)
    scale, zero = (_single_number(arg) for arg in call.args[1:3])
    axis = int(call.attrs.axis)
    return bb.call_te(
        lambda data, *rest: _rounded(data, _filled([scale, zero], rest), axis, dtype),
        call.args[0],
        *(arg for arg, known in zip(call.args[1:3], (scale, zero), strict=True) if known is None),
        primfunc_name_hint="quantize",
    )


def _heeding_zero(name: str) -> Legalization:
    usual = tvm.ir.Op.get(name).get_attr("FLegalize")
    short = name.removeprefix("relax.")
    kernel = getattr(topi, short)

    def legalization(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if "float" not in _dtype(call) or not any(map(_is_zero, call.args)):
            return usual(bb, call)
        return bb.call_te(kernel, *call.args, primfunc_name_hint=short)

    return legalization


def _is_zero(expr: relax.Expr) -> bool:
    return isinstance(expr, tvm.ir.GenericConst) and not expr.value.numpy().any()


def _rounded(data: te.Tensor, step: list[Any], axis: int, dtype: str) -> te.Tensor:
    scale, zero = step
    return rounded_to_steps(data, scale, zero, axis, dtype)


def _single_number(expr: relax.Expr) -> Any:
    """The value of a constant with one element, as a TIR constant; None for other expressions."""
    if not isinstance(expr, tvm.ir.GenericConst) or expr.value.numpy().size != 1:
        return None
    return tirx.const(expr.value.numpy().reshape(-1)[0].item(), str(expr.ty.dtype))


def _filled(known: list[Any], rest: tuple[Any, ...]) -> list[Any]:
    """The items of `known`, with each None replaced by the next item of `rest`."""
    waiting = iter(rest)
    return [next(waiting) if each is None else each for each in known]


def _wide(name: str) -> Legalization:
    usual = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalization(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return usual(_WideBuilder(bb) if _dtype(call) == "float16" else bb, call)

    return legalization


class _WideBuilder:
    """A block builder to pass to TVM's legalizations.

    The kernels that legalizations build with this builder compute in float32.
    """

    def __init__(self, bb: relax.BlockBuilder) -> None:
        self._bb = bb

    def call_te(self, function: Callable[..., te.Tensor], *args: Any, **attrs: Any) -> relax.Call:
        def in_float32(x: te.Tensor, *args: Any, **attrs: Any) -> te.Tensor:
            return topi.cast(function(topi.cast(x, "float32"), *args, **attrs), x.dtype)

        hint = attrs.pop("primfunc_name_hint", function.__name__)
        return self._bb.call_te(in_float32, *args, primfunc_name_hint=hint, **attrs)


def _dtype(call: relax.Call) -> str:
    return str(getattr(call.ty, "dtype", ""))
