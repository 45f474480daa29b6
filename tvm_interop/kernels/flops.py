"""How many floating-point operations a kernel of TVM's is."""

from __future__ import annotations

import tvm
from tvm import tirx


def kernel_flops(kernel: tirx.PrimFunc) -> int:
    """Floating-point operations as TVM counts them; 0 where it cannot.

    It cannot where a loop's length depends on data. Ask before a kernel is scheduled: loops that a
    schedule splits unevenly would count too often.
    """
    try:
        return int(tvm.s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": kernel})))
    except tvm.error.InternalError:
        return 0
