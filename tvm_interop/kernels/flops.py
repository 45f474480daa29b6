"""Counts the floating-point operations of a TVM kernel."""

from __future__ import annotations

import tvm
from tvm import tirx


def kernel_flops(kernel: tirx.PrimFunc) -> int:
    """The number of floating-point operations as TVM counts them; 0 if TVM cannot count them.

    TVM cannot count operations if a loop's length depends on data. Call this function before the
    kernel is scheduled: TVM counts too many operations in loops that a schedule splits unevenly.
    """
    try:
        return int(tvm.s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": kernel})))
    except tvm.error.InternalError:
        return 0
