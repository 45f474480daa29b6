"""Hides remainders by powers of two from LLVM's loop vectoriser, which computes them wrongly.

In a loop of more turns than the power, LLVM takes `i % 8` as an index that goes on to grow: it is
the low bits of `i`, which its analysis of loops holds for a counter of three bits, and the check
that this counter does not wrap around is lost. A `Tile` of (4, 8, 4) by (1, 2, 4) so reads beyond
its input wherever vectors have 512 bits. Any kernel whose index wraps may be hit: a repeated
tensor, a shuffle of channels, a loop that was fused from two. Seen with the LLVM that is in TVM
0.27; a small program that shows it is in `docs/upstream/llvm_wrapping_index.md`.

Here the remainder is taken of a product with one, made by an instruction that LLVM's analysis does
not look into and that costs nothing in the end. What is not a remainder is built as before.
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
    """The same for `i & 7`, which is a remainder too."""
    if not isinstance(bits.b, tirx.IntImm) or not _is_power_of_two(int(bits.b.value) + 1):
        return bits
    return tirx.BitwiseAnd(_out_of_sight(bits.a), bits.b)


def _out_of_sight(number: Any) -> Any:
    dtype = str(number.ty.dtype)
    one, scale = tirx.const(1, dtype), tirx.const(0, "int32")
    return tirx.call_llvm_pure_intrin(dtype, "llvm.umul.fix", number, one, scale)


def _is_power_of_two(number: int) -> bool:
    return number > 1 and number & (number - 1) == 0
