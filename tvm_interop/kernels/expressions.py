"""Finds variables in TIR expressions, and the blocks of loop nests.

The module `numpy_kernel` does not use the functions of this module: it makes references to check
kernels, and a reference must not share code with the kernel.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx


def uses(expression: Any, variable: Any) -> bool:
    """Whether a variable occurs in an expression."""
    found: list[bool] = []
    tvm_ffi.structural_walk(expression, (tirx.Var, lambda v: found.append(v.same_as(variable))))
    return any(found)


def only_block(nest: tirx.Stmt) -> s_tir.SBlock | None:
    """The only block within the loops of `nest`; None if there are several, or if it is not simple.

    A simple block has a constant predicate and allocates or matches no buffers.
    """
    while isinstance(nest, tirx.For):
        nest = nest.body
    if not isinstance(nest, s_tir.SBlockRealize) or not isinstance(nest.predicate, tirx.IntImm):
        return None
    block = nest.block
    return None if block.alloc_buffers or block.match_buffers else block
