"""Answers questions about TIR expressions.

`numpy_kernel` has functions of its own, because a reference must not share code with the kernel
that it checks.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx


def uses(expression: Any, variable: Any) -> bool:
    """Whether a variable occurs in an expression."""
    found: list[bool] = []
    tvm_ffi.structural_walk(expression, (tirx.Var, lambda v: found.append(v.same_as(variable))))
    return any(found)
