"""How many floating-point operations an operator is: one rule, whoever asks."""

from __future__ import annotations

from typing import Any

import tvm

from ..program.program import Operator


def operator_flops(operator: Operator, kernels: tvm.IRModule | None) -> int:
    """Floating-point operations of `operator`; a share of one has its share of them.

    Those of its description where that counts any, which are the same whoever's kernel runs it:
    two for each product that a convolution or matrix product sums up. Else as TVM counts them in
    its kernel. 0 where neither says: a change of layout, a loop whose length depends on data.

    Parameters
    ----------
    kernels: has the operator's PrimFunc by name, before it was scheduled: loops that a schedule
        splits unevenly would count too often.
    """
    flops = operator.description.flops if operator.description is not None else 0
    if not flops and kernels is not None and operator.kernel:
        flops = _of_kernel(kernels[operator.kernel])
    return flops // operator.share[1] if operator.share else flops


def _of_kernel(kernel: Any) -> int:
    try:
        return int(tvm.s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": kernel})))
    except tvm.error.InternalError:
        return 0
