"""What the operators of a program ask of the device, read off their kernels."""

from __future__ import annotations

import tvm
from tvm import s_tir

from .program import Operator, Program
from .scheduling import OperatorTraits


def operator_traits(program: Program, kernels: tvm.IRModule) -> list[OperatorTraits]:
    """Floating-point operations and bytes of each operator, by id.

    The bytes are those of the tensors it reads and writes, weights too. Both are the same whoever's
    kernel runs the operator.

    Parameters
    ----------
    kernels: has each operator's PrimFunc by name, before it was scheduled: loops that a schedule
        splits unevenly would count too often.
    """
    flops = {
        name: s_tir.analysis.estimate_tir_flops(tvm.IRModule({name: kernels[name]}))
        for name in {op.kernel for op in program.operators}
    }
    return [
        OperatorTraits(
            flops=_flops(op, flops[op.kernel]),
            nbytes=sum(program.values[v].nbytes for v in (*op.inputs, *op.outputs)),
        )
        for op in program.operators
    ]


def _flops(op: Operator, of_kernel: float) -> float:
    """Of an operator whose kernel has so many; of a part, its own."""
    if op.share is not None:
        return of_kernel / op.share[1]
    if op.whole is not None and op.description is not None:
        return op.description.flops
    return of_kernel
