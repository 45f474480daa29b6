"""Turns kernels of `main` that only change a shape into `relax.reshape`."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass


@module_pass(opt_level=0, name="ReshapesOfMain")
class ReshapesOfMain:
    """Run `RewriteDataflowReshape` on `main` only.

    TVM's pass would also change the functions of groups that a library may compute. Such a function
    becomes one kernel, so it may contain only calls of kernels and no `relax.reshape`. A kernel in
    it that only copies, such as a product by 1, must stay a kernel.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `mod`; called by TVM's pass machinery."""
        rewritten = relax.transform.RewriteDataflowReshape()(mod)
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function) and var.name_hint != "main":
                rewritten.update_func(rewritten.get_global_var(var.name_hint), func)
        return rewritten
