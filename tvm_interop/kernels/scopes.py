"""Removes `pragma_scope` attributes: TVM's code generator warns of them once in each kernel."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext
from tvm.tirx.transform import prim_func_pass


@prim_func_pass(opt_level=0, name="WithoutScopes")
class WithoutScopes:
    """Remove the scopes with which some of TVM's own kernels group several statements."""

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite `func`; called by TVM's pass machinery."""
        return tvm_ffi.structural_map(func, (tirx.AttrStmt, _statement))


def _statement(mark: Any) -> Any:
    return mark.body if mark.attr_key == "pragma_scope" else mark
