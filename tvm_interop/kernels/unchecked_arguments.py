"""Leaves out the checks of arguments with which TVM begins each kernel.

TVM's kernels can be called by anybody, so each call checks the number, types, shapes and strides of
its arguments, with a message for each. In small kernels these checks are most of the code, and LLVM
takes longer for them than for the computation. An executor of this package calls each kernel with
the tensors of its plan and no others. `check_signatures` compares these with the kernel once, when
the plan is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext
from tvm.tirx.transform import prim_func_pass

from ..errors import PlanError
from ..program.program import Operator, Program

_COMPUTATION = "compute_scope"
"""The attribute with which TVM marks the statements of a kernel after the checks of arguments."""

Signature = Sequence[tuple[tuple[int, ...], str]]
"""The shape and dtype of each argument of a kernel."""


@prim_func_pass(opt_level=0, name="UncheckedArguments")
class UncheckedArguments:
    """Remove the checks of arguments from lowered kernels. Other assertions stay."""

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite `func`; called by TVM's pass machinery."""
        kept: set[Any] = set()

        def keep(mark: Any) -> None:
            if mark.attr_key == _COMPUTATION:
                tvm_ffi.structural_walk(mark.body, (tirx.AssertStmt, kept.add))

        def without(check: Any) -> Any:
            return check if check in kept else tirx.Evaluate(tirx.const(0, "int32"))

        tvm_ffi.structural_walk(func, (tirx.AttrStmt, keep))
        return tvm_ffi.structural_map(func, (tirx.AssertStmt, without))


def signatures_of(kernels: tvm.IRModule) -> dict[str, Signature]:
    """The signature of each kernel, by the kernel's name."""
    return {
        var.name_hint: [
            (tuple(int(size) for size in buffer.shape), str(buffer.dtype)) for buffer in func.params
        ]
        for var, func in kernels.functions_items()
    }


def check_signatures(program: Program, signatures: Mapping[str, Signature]) -> None:
    """Check that each operator calls its kernel with tensors of the kernel's shapes and dtypes.

    Parameters
    ----------
    signatures: the signatures of all kernels that no library computes.

    Raises
    ------
    PlanError
        An operator's tensors do not fit its kernel.
    """
    for op in program.operators:
        if op.library is None:
            _check_call(op, program, signatures[op.kernel])


def _check_call(op: Operator, program: Program, wanted: Signature) -> None:
    values = [program.values[v] for v in (*op.inputs, *op.outputs)]
    given = [(value.shape, value.dtype) for value in values]
    if given != list(wanted):
        raise PlanError(
            f"operator `{op.name}` would call kernel `{op.kernel}` with tensors {given}, and the "
            f"kernel takes {list(wanted)}: this is a mistake of tvm_interop; please report it"
        )
