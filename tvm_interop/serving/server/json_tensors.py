"""Decoding of tensors from JSON text into arrays, some thousands of numbers at a time.

A list of Python numbers takes up to forty times the bytes of its JSON text. Creating such a list
also holds Python's global lock. This module therefore decodes some thousands of numbers at a time.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import numpy as np

from ...errors import InputError

_PIECE = 2**16
"""The number of bytes of text that are decoded at once."""
_LONGEST = 4096
"""The maximum number of characters of a number. No float64 needs more than 800."""
_MOST_DEPTH = 64
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[],"))
_BETWEEN_NUMBERS = b"[] \t\r\n"
_MINUS_ZERO = re.compile(rb"(?<![eE])-0(?![0-9.eE])")
"""The pattern of -0 without a fraction or an exponent.

In a tensor of floats, -0 is decoded as -0.0, because the integer 0 has no sign.
"""
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "b": msgspec.json.Decoder(list[bool]),
    "f": msgspec.json.Decoder(list[float]),
    "i": msgspec.json.Decoder(list[int]),
    "u": msgspec.json.Decoder(list[int]),
}


def read_numbers(
    name: str, datatype: str, dtype: np.dtype[Any], count: int, data: msgspec.Raw
) -> np.ndarray:
    """Decode the numbers of an input from its JSON `data`.

    The data are a flat list, evenly nested lists, or a single number.

    Parameters
    ----------
    name: name of the input, for error messages.
    datatype: name of `dtype` in the protocol, for error messages.
    dtype: type of the array.
    count: number of values that the input needs.
    data: JSON text, which must be well-formed.

    Returns
    -------
    An array of shape (count,).

    Raises
    ------
    InputError
        The lists are nested unevenly, the number of values is not `count`, or a value is not of the
        type.
    """
    if dtype == "bfloat16":  # Numbers are first rounded to float32, as `Cast` of ONNX does.
        wide = read_numbers(name, datatype, np.dtype(np.float32), count, data)
        return _finite(name, datatype, wide.astype(dtype))
    text = bytes(data)
    listed = _product(text.translate(None, _NOT_BRACKETS))
    if listed is None:
        raise InputError(f"the data of input `{name}` are nested unevenly; use lists of one length")
    text = text.translate(None, _BETWEEN_NUMBERS)
    if not text.strip(b","):
        listed, text = 0, b""
    if listed != count:
        raise InputError(f"input `{name}` needs {count} values by its shape, got {listed}")
    if 0 < len(text) <= _PIECE:
        return _decoded(name, datatype, dtype, text).astype(dtype, copy=False)
    made = np.empty(count, dtype)
    filled = begin = 0
    while begin < len(text):
        end = text.find(b",", begin + _PIECE)
        end = len(text) if end < 0 else end
        numbers = _decoded(name, datatype, dtype, text[begin:end])
        made[filled : filled + len(numbers)] = numbers
        filled += len(numbers)
        begin = end + 1
    return made


def checked(name: str, datatype: str, dtype: np.dtype[Any], numbers: list[Any]) -> np.ndarray:
    """Convert a list of decoded numbers into an array.

    Integers are returned as int64 or uint64, after a check that `dtype` can hold them.

    Raises
    ------
    InputError
        A number is out of the range of the type.
    """
    # NumPy does not report all numbers out of range in the same way. So convert integers to 64
    # bits, and check their range here.
    try:
        wide = np.array(numbers, {"i": np.int64, "u": np.uint64}.get(dtype.kind, dtype))
    except (OverflowError, ValueError):
        raise _out_of_range(name, datatype) from None
    if dtype.kind == "u" and min(numbers, default=0) < 0:
        raise _out_of_range(name, datatype)
    if dtype.kind in "iu" and wide.size:
        limits = np.iinfo(dtype)
        if wide.min() < limits.min or wide.max() > limits.max:
            raise _out_of_range(name, datatype)
    return wide


def _decoded(name: str, datatype: str, dtype: np.dtype[Any], text: bytes) -> np.ndarray:
    if len(text) > _PIECE + _LONGEST:
        raise InputError(
            f"a number of input `{name}` has more than {_LONGEST} characters; write it shorter"
        )
    if dtype.kind == "f" and (b"-0," in text or text.endswith(b"-0")):
        text = _MINUS_ZERO.sub(b"-0.0", text)
    try:
        numbers = _DECODERS[dtype.kind].decode(b"[" + text + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if "out of range" in str(error):
            raise _out_of_range(name, datatype) from None
        raise InputError(f"the data of input `{name}` are not numbers of type {datatype}") from None
    with np.errstate(over="ignore"):
        made = checked(name, datatype, dtype, numbers)
    return _finite(name, datatype, made) if dtype.kind == "f" else made


def _finite(name: str, datatype: str, numbers: np.ndarray) -> np.ndarray:
    if not np.isfinite(numbers).all():
        raise _out_of_range(name, datatype)
    return numbers


def _out_of_range(name: str, datatype: str) -> InputError:
    return InputError(f"a number of input `{name}` is out of the range of {datatype}")


def _product(brackets: bytes) -> int | None:
    """Return the number of values in nested lists, or None if lists of a level differ in length.

    In an evenly nested list, all lists of a level have the same length. The function reads this
    length from the first list of each level. From the lengths, it builds the brackets and commas
    that an evenly nested list has, and compares them with `brackets`. An empty list counts as a
    list of one value.

    Parameters
    ----------
    brackets: the brackets and commas of the JSON text, without all other characters.
    """
    depth = len(brackets) - len(brackets.lstrip(b"["))
    if depth == brackets.count(b"[") == 1:
        return brackets.count(b",") + 1
    if depth > _MOST_DEPTH:
        return None
    item = b""
    sizes = []
    for level in range(1, depth + 1):
        # `inside` is the number of characters between the brackets of the first list of this
        # level. Levels count from the innermost lists.
        inside = brackets.find(b"]" * level) - 1 - (depth - level) + level - 1
        size, rest = divmod(inside + 1, len(item) + 1)
        if rest or size < 1:
            return None
        sizes.append(size)
        item = b"[" + ((item + b",") * size)[:-1] + b"]"
    return math.prod(sizes) if item == brackets else None
