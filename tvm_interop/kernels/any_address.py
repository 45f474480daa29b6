"""Lets kernels read and write tensors at any address that is a multiple of the element's size.

TVM assumes that each tensor begins at a multiple of 64 bytes. LLVM may then use instructions that
fail at other addresses. A caller's arrays seldom begin there: NumPy's begin at a multiple of 16. So
without this pass each run would have to copy its inputs. Vector instructions without this
assumption are as fast on data that is aligned.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext
from tvm.tirx.transform import prim_func_pass


@prim_func_pass(opt_level=0, name="AnyAddress")
class AnyAddress:
    """Remove the assumptions on the addresses of arguments from lowered kernels."""

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite `func`; called by TVM's pass machinery."""
        return tvm_ffi.structural_map(func, (tirx.AttrStmt, _statement))


def _statement(mark: Any) -> Any:
    # TVM marks only arguments, because it allocates all other buffers itself.
    return mark.body if mark.attr_key == "storage_alignment" else mark
