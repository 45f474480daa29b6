"""Converts between float32 and bfloat16 in TIR expressions.

TVM supports bfloat16 only in part. So kernels hold a bfloat16 number as a word, an integer of the
type uint16 with the number's 16 bits. These are the upper 16 bits of the equal float32 number.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx


def widened(word: Any) -> Any:
    """The float32 number whose upper 16 bits are the bfloat16 number `word`."""
    return tirx.reinterpret("float32", word.astype("uint32") << tirx.const(16, "uint32"))


def nearest(x: Any) -> Any:
    """The bits of the float32 number that is the bfloat16 number nearest to `x`, as a uint32.

    Ties go to even. A NaN becomes the quiet NaN of its sign, as in ONNX's reference.
    """
    bits = tirx.reinterpret("uint32", x)
    one, sixteen = tirx.const(1, "uint32"), tirx.const(16, "uint32")
    is_odd = (bits >> sixteen) & one
    rounded = (bits + tirx.const(0x7FFF, "uint32") + is_odd) & tirx.const(0xFFFF0000, "uint32")
    quiet = (bits & tirx.const(0x80000000, "uint32")) | tirx.const(0x7FC00000, "uint32")
    magnitude = bits & tirx.const(0x7FFFFFFF, "uint32")
    # This is `magnitude > 0x7F800000` in the form in which TVM keeps it. `conversion_of` recognises
    # a conversion only in this form.
    is_nan = tirx.LT(tirx.const(0x7F800000, "uint32"), magnitude)
    return tirx.Select(is_nan, quiet, rounded)


def word_of(rounded_bits: Any) -> Any:
    """The bits of a bfloat16 number, which are the upper 16 of its 32 bits as a float32 number."""
    return (rounded_bits >> tirx.const(16, "uint32")).astype("uint16")
