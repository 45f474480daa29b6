"""Calls the C library for functions that TVM would compute by an imprecise formula, or not at all.

TVM itself computes `tanh` by a difference of exponentials, and `atanh` as the logarithm of a
quotient. Both formulas lose every digit near 0: at 1e-20 they give 0. The pass
`vectorize_math` runs earlier and replaces most calls of `tanh` of float32 and float16, so this pass
sees few of them.

TVM calls the C library for `cosh` and `sinh`, but fails if the call is in a vectorised loop.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext
from tvm.tirx.transform import prim_func_pass

FUNCTIONS = ("atanh", "cosh", "sinh", "tanh")


@prim_func_pass(opt_level=0, name="CLibraryFunctions")
class CLibraryFunctions:
    """Replace calls of `FUNCTIONS` by calls of the C library.

    Arguments of float16 and bfloat16 are converted to float32, and the results are converted back.
    """

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite `func`; called by TVM's pass machinery."""
        return tvm_ffi.structural_map(func, (tvm.ir.Call, _called))


def _called(call: Any) -> Any:
    name = str(getattr(call.op, "name", "")).rpartition(".")[2]
    dtype = str(call.ty.dtype) if name in FUNCTIONS else ""
    if dtype == "float64":
        return tirx.call_pure_extern(dtype, name, *call.args)
    if dtype in ("float32", "float16", "bfloat16"):
        arguments = [tirx.Cast("float32", arg) if dtype != "float32" else arg for arg in call.args]
        result = tirx.call_pure_extern("float32", f"{name}f", *arguments)
        return result if dtype == "float32" else tirx.Cast(dtype, result)
    return call
