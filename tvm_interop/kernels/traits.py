"""What the operators of a program ask of the device, read off their kernels."""

from __future__ import annotations

import tvm

from ..program.program import Program
from ..program.traits import OperatorTraits
from .flops import operator_flops


def operator_traits(program: Program, kernels: tvm.IRModule) -> list[OperatorTraits]:
    """Floating-point operations and bytes of each operator, by id.

    The bytes are those of the tensors it reads and writes, weights too. Both are the same whoever's
    kernel runs the operator.

    Parameters
    ----------
    kernels: of the operators, by name, before they were scheduled (see `operator_flops`).
    """
    return [
        OperatorTraits(
            flops=operator_flops(op, kernels),
            nbytes=sum(program.values[v].nbytes for v in (*op.inputs, *op.outputs)),
        )
        for op in program.operators
    ]
