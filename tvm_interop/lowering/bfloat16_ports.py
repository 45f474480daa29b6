"""Describes the inputs and outputs of a model that are bfloat16, and their conversions to float32.

TVM supports bfloat16 only in part, so in Relax an input or output of bfloat16 has the type uint16,
and holds the 16 bits of each number. The first operator that reads such an input widens it to
float32, and the last operator before such an output rounds it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tvm_ffi
from tvm import ir, tirx

from ..kernels.bfloat16_words import nearest, widened, word_of

BFLOAT16_INPUTS = "tvm_interop.bfloat16_inputs"
"""Attribute of `main`: the names of its parameters of uint16 that hold numbers of bfloat16."""

BFLOAT16_OUTPUTS = "tvm_interop.bfloat16_outputs"
"""Attribute of `main`: the names of its outputs of uint16 that hold numbers of bfloat16."""


class Conversion(NamedTuple):
    """A conversion between float32 and bfloat16 that an expression of a kernel computes.

    Attributes
    ----------
    operand: the number that is converted, which may be the 16 bits of a bfloat16 number.
    types: the types that the number is converted to, one after the other.
    """

    operand: Any
    types: tuple[str, ...]


def conversion_of(node: Any) -> Conversion | None:
    """The conversion that `node` computes, if `widened`, `nearest` or `word_of` wrote it; else
    None.
    """
    is_number, is_word = _is_reinterpreted(node, "float32"), isinstance(node, tirx.Cast)
    if not is_number and not (is_word and str(node.ty.dtype) == "uint16"):
        return None
    for x in _read_as_bits(node):
        if is_word and _equal(node, word_of(nearest(x))):
            return Conversion(x, ("bfloat16",))
        if is_number and _equal(node, tirx.reinterpret("float32", nearest(x))):
            return Conversion(x, ("bfloat16", "float32"))
    shifted = node.args[0] if is_number else None
    if isinstance(shifted, tirx.LShift) and isinstance(shifted.a, tirx.Cast):
        word = shifted.a.value
        if str(word.ty.dtype) == "uint16" and _equal(node, widened(word)):
            return Conversion(word, ("float32",))
    return None


def _read_as_bits(node: Any) -> list[Any]:
    """The numbers whose bits an expression reads as a uint32."""
    found: list[Any] = []

    def add(call: Any) -> None:
        found.extend(call.args if _is_reinterpreted(call, "uint32") else [])

    tvm_ffi.structural_walk(node, (ir.Call, add))
    return found


def _is_reinterpreted(node: Any, dtype: str) -> bool:
    is_call = isinstance(node, ir.Call) and isinstance(node.op, ir.Op)
    return is_call and node.op.name == "tirx.reinterpret" and str(node.ty.dtype) == dtype


def _equal(one: Any, other: Any) -> bool:
    return bool(tvm_ffi.structural_equal(one, other))


def names_in(attribute: str, attrs: Any) -> frozenset[str]:
    """The names in an attribute of `main`; none if `main` lacks the attribute."""
    return frozenset(map(str, attrs[attribute] if attrs and attribute in attrs else ()))
