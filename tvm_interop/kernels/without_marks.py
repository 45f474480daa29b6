"""Removes marks that TVM puts around statements, and keeps the statements.

`pragma_scope` groups several statements. TVM's code generator warns of it once in each kernel.

`storage_alignment` says that an argument begins at a multiple of 64 bytes. TVM marks only
arguments, because it allocates all other buffers itself. With this mark, LLVM may use instructions
that fail at other addresses. A caller's arrays seldom begin at a multiple of 64: NumPy's begin at a
multiple of 16. Without this mark, kernels accept any address that is a multiple of the element's
size, so runs need not copy their inputs. Vector instructions that accept any address are as fast on
aligned data.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext
from tvm.tirx.transform import prim_func_pass


@prim_func_pass(opt_level=0, name="WithoutMarks")
class WithoutMarks:
    """Remove all attributes with a given key from kernels."""

    def __init__(self, key: str) -> None:
        self.key = key

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite `func`; called by TVM's pass machinery."""

        def without(mark: tirx.AttrStmt) -> tirx.Stmt:
            return mark.body if mark.attr_key == self.key else mark

        return tvm_ffi.structural_map(func, (tirx.AttrStmt, without))
