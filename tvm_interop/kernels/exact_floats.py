"""Hides floating-point arithmetic from TVM's simplifier, which would ignore rounding.

Before TVM hands a kernel to LLVM, it simplifies the kernel by rules that hold for integers:

- `(x + y) - y` becomes `x`;
- `x - x` and `x * 0` become 0;
- `x == x` becomes true;
- `not (x < y)` becomes `y <= x`;
- `y <= x` becomes true if `x < y` is known to be false.

For floating-point numbers the rule for `(x + y) - y` is wrong if the sum is rounded, and the other
rules are wrong for NaN or infinity. The kernel of a single operator seldom contains these
expressions, but the kernel of several fused operators does.

This module's pass rewrites arithmetic in a form that TVM does not simplify and that LLVM compiles
to the intended instructions. A difference `x - y` becomes `x + y * -1`. The result of a comparison
is cast to an 8-bit integer and compared with 0. A constant zero in a product or quotient is written
as its bit pattern.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext
from tvm.tirx.transform import prim_func_pass


@prim_func_pass(opt_level=0, name="ExactFloats")
class ExactFloats:
    """Rewrite kernels so that TVM's later simplification changes no result."""

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite `func`; called by TVM's pass machinery."""
        return tvm_ffi.structural_map(func, _RULES)


def _difference(node: Any) -> Any:
    # A difference `c - x` with a constant `c` is not rewritten, because TVM does not simplify it. A
    # rewrite would even be wrong: if x is 0, `0 + x * -1` and `0 - x` may be zeros of different
    # sign.
    if not _is_float(node) or _is_number(node.a):
        return node
    return tirx.Add(node.a, tirx.Mul(node.b, tirx.const(-1, str(node.ty.dtype))))


def _product(node: Any) -> Any:
    if not _is_float(node):
        return node
    return tirx.Mul(_hidden_zero(node.a), _hidden_zero(node.b))


def _quotient(node: Any) -> Any:
    return tirx.Div(_hidden_zero(node.a), node.b) if _is_float(node) else node


def _comparison(node: Any) -> Any:
    return _hidden_truth(node) if _is_float(node.a) else node


def _equality(node: Any) -> Any:
    # TVM's simplifier turns `x == x` into true, which is wrong for NaN; it leaves `x <= x` alone.
    if not _is_float(node.a):
        return node
    return _hidden_truth(tirx.And(tirx.LE(node.a, node.b), tirx.LE(node.b, node.a)))


def _inequality(node: Any) -> Any:
    return tirx.Not(_equality(tirx.EQ(node.a, node.b))) if _is_float(node.a) else node


def _hidden_truth(condition: Any) -> Any:
    zero = tirx.const(0, "uint8")
    return tirx.NE(tirx.Cast("uint8", condition), zero)


def _hidden_zero(expr: Any) -> Any:
    if not _is_number(expr) or expr.value != 0:
        return expr
    dtype = str(expr.ty.dtype)
    bits = _SAME_WIDTH.get(dtype)
    if bits is None:
        return expr
    # TVM cannot compile a constant whose bits are all zero, so zero is written as minus one times
    # minus zero.
    minus_zero = tirx.reinterpret(dtype, tirx.const(int(np.iinfo(bits).min), bits))
    is_negative = math.copysign(1, expr.value) < 0
    return minus_zero if is_negative else tirx.Mul(minus_zero, tirx.const(-1, dtype))


def _is_float(expr: Any) -> bool:
    return "float" in str(expr.ty.dtype)


def _is_number(expr: Any) -> bool:
    return isinstance(expr, tirx.FloatImm)


_SAME_WIDTH = {"float16": "int16", "float32": "int32", "float64": "int64"}

_RULES = [
    (tirx.Sub, _difference),
    (tirx.Mul, _product),
    (tirx.Div, _quotient),
    (tirx.EQ, _equality),
    (tirx.NE, _inequality),
    *((kind, _comparison) for kind in (tirx.LT, tirx.LE, tirx.GT, tirx.GE)),
]
