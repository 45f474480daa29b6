"""Rounds float32 numbers to bfloat16, and converts between float32 and the bits of bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, te, tirx

from ..kernels.bfloat16_words import nearest, widened, word_of
from .constants import constant_array

_ROUND = "round_to_bfloat16"
"""The name of the kernels that round."""


def rounded(bb: relax.BlockBuilder, x: Any) -> Any:
    """Return the numbers `x`, of any type, rounded to bfloat16, as float32.

    Numbers of other types than float32 are first converted to float32, as in ONNX's reference and
    in PyTorch. Ties go to even.
    """
    array = constant_array(x)
    if array is not None:
        with np.errstate(all="ignore"):
            narrow = array.astype(np.float32).astype(ml_dtypes.bfloat16)
        return relax.const(narrow.astype(np.float32), "float32")
    wide = bb.normalize(relax.op.astype(x, "float32")) if _dtype(x) != "float32" else x
    return _each(bb, wide, lambda v: tirx.reinterpret("float32", nearest(v)), _ROUND)


def is_rounded(bb: relax.BlockBuilder, x: Any) -> bool:
    """Whether `x` is a result of `rounded`, and is computed when the model runs."""
    value = bb.lookup_binding(x) if isinstance(x, relax.Var) else None
    return (
        isinstance(value, relax.Call)
        and isinstance(value.args[0], tvm.ir.GlobalVar)
        and value.args[0].name_hint.startswith(_ROUND)
    )


def from_bits(bb: relax.BlockBuilder, words: Any) -> Any:
    """Return the float32 numbers whose bfloat16 bits are `words`, of uint16."""
    return _each(bb, words, widened, "from_bfloat16")


def to_bits(bb: relax.BlockBuilder, x: Any) -> Any:
    """Return the bits, of uint16, of the bfloat16 numbers nearest to `x`, of float32."""
    return _each(bb, x, lambda v: word_of(nearest(v)), "to_bfloat16")


def _dtype(x: Any) -> str:
    return str(x.ty.dtype)


def _each(bb: relax.BlockBuilder, x: Any, convert: Callable[[Any], Any], name: str) -> Any:
    def kernel(data: Any) -> Any:
        return te.compute(data.shape, lambda *at: convert(data(*at)), name=name)

    return bb.call_te(kernel, x, primfunc_name_hint=name)
