"""Hides remainders by powers of two from LLVM's loop vectoriser, which computes them wrongly.

The fault appears in a loop with more iterations than the power of two. LLVM treats the index `i %
8` as a counter of three bits. It forgets that this counter goes back to 0 after 7, so the index
keeps growing. For example, a `Tile` of a tensor of shape (4, 8, 4) by (1, 2, 4) reads beyond its
input if vectors have 512 bits. Any kernel with such an index may be affected. Examples are a
repeated tensor, a shuffle of channels, and a loop fused from two loops. The fault is in the LLVM
that TVM 0.27 includes. `docs/upstream/llvm_wrapping_index.md` has a small program that shows it.

This module's pass multiplies the dividend by one before the remainder is taken. LLVM's analysis
cannot look into this multiplication, which takes no time in the machine code. All other operations
stay unchanged.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext
from tvm.tirx.transform import prim_func_pass


@prim_func_pass(opt_level=0, name="SafeRemainders")
class SafeRemainders:
    """Rewrite remainders by powers of two in lowered kernels."""

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite `func`; called by TVM's pass machinery."""
        hide = [(tirx.FloorMod, _hidden), (tirx.Mod, _hidden), (tirx.BitwiseAnd, _hidden_bits)]
        return tvm_ffi.structural_map(func, hide)


def _hidden(remainder: Any) -> Any:
    divisor = remainder.b
    if not isinstance(divisor, tirx.IntImm) or not _is_power_of_two(int(divisor.value)):
        return remainder
    return type(remainder)(_out_of_sight(remainder.a), divisor)


def _hidden_bits(bits: Any) -> Any:
    """Rewrite a bitwise AND such as `i & 7`, which is the remainder `i % 8`."""
    if not isinstance(bits.b, tirx.IntImm) or not _is_power_of_two(int(bits.b.value) + 1):
        return bits
    return tirx.BitwiseAnd(_out_of_sight(bits.a), bits.b)


def _out_of_sight(number: Any) -> Any:
    dtype = str(number.ty.dtype)
    one, scale = tirx.const(1, dtype), tirx.const(0, "int32")
    return tirx.call_llvm_pure_intrin(dtype, "llvm.umul.fix", number, one, scale)


def _is_power_of_two(number: int) -> bool:
    return number > 1 and number & (number - 1) == 0
