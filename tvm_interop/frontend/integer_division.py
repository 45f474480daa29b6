"""Computes quotients and remainders of integers without crashing the program.

On x86, dividing an integer by 0 raises a signal that ends the program. So does dividing the
smallest integer by -1, because the quotient overflows. ONNX does not define these cases. This
module gives the results of NumPy: `x / 0` and `x % 0` are 0, and the smallest integer divided by -1
is itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from .constants import constant_array


def divided(
    bb: relax.BlockBuilder, x: Any, y: Any, op: Callable[[Any, Any], Any], *, is_quotient: bool
) -> Any:
    """Return the quotient or remainder of integers `x` and `y`, safe for every divisor.

    Parameters
    ----------
    op: a function that computes the quotient or the remainder for divisors other than 0 and -1.
    is_quotient: whether `op` computes a quotient.
    """
    dtype = str(y.ty.dtype)
    zero, one = relax.const(0, dtype), relax.const(1, dtype)
    known = constant_array(y)
    if known is not None and not np.isin(known, (0, -1)).any():
        return op(x, y)
    is_zero = bb.emit(relax.op.equal(y, zero))
    safe = bb.emit(relax.op.where(is_zero, one, y))
    if dtype.startswith("uint"):
        result = bb.emit(op(x, safe))
        return relax.op.where(is_zero, zero, result)
    is_minus_one = bb.emit(relax.op.equal(y, relax.const(-1, dtype)))
    safe = bb.emit(relax.op.where(is_minus_one, one, safe))
    result = bb.emit(op(x, safe))
    by_minus_one = relax.op.subtract(zero, x) if is_quotient else zero
    result = bb.emit(relax.op.where(is_minus_one, bb.normalize(by_minus_one), result))
    return relax.op.where(is_zero, zero, result)
