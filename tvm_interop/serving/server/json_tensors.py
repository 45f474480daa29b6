"""Tensors that are written as JSON: from text to an array, in pieces.

A list of Python's numbers takes up to forty times the bytes of its text, and whatever makes it
holds the interpreter meanwhile. So the text is read some thousands of numbers at a time.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import numpy as np

from ...errors import InputError

_PIECE = 2**16
"""Bytes of text that are read at once."""
_LONGEST = 4096
"""Characters that a number may have: no double needs more than 800."""
_MOST_DEPTH = 64
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[],"))
_BETWEEN_NUMBERS = b"[] \t\r\n"
_MINUS_ZERO = re.compile(rb"(?<![eE])-0(?![0-9.eE])")
"""Finds minus zero where a float is meant; JSON's integers have none."""
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "b": msgspec.json.Decoder(list[bool]),
    "f": msgspec.json.Decoder(list[float]),
    "i": msgspec.json.Decoder(list[int]),
    "u": msgspec.json.Decoder(list[int]),
}


def read_numbers(
    name: str, datatype: str, dtype: np.dtype[Any], count: int, data: msgspec.Raw
) -> np.ndarray:
    """So many numbers of an input from its `data`, nested evenly, flat, or a single one.

    Parameters
    ----------
    datatype: what the protocol calls `dtype`.
    data: JSON, as a decoder has found it to be.

    Raises
    ------
    InputError
        It is nested unevenly, there are more numbers or fewer, or one is not of the type.
    """
    text = bytes(data)
    listed = _product(text.translate(None, _NOT_BRACKETS))
    if listed is None:
        raise InputError(f"the data of input `{name}` are nested unevenly")
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
    """Some numbers as an array.

    Raises
    ------
    InputError
        One is out of the range of the type.
    """
    # uint8 has no -1 and no 300, which NumPy says in more ways than one.
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
        raise InputError(f"the data of input `{name}` are no numbers of type {datatype}") from None
    with np.errstate(over="ignore"):
        made = checked(name, datatype, dtype, numbers)
    if dtype.kind == "f" and not np.isfinite(made).all():
        raise _out_of_range(name, datatype)
    return made


def _out_of_range(name: str, datatype: str) -> InputError:
    return InputError(f"a number of input `{name}` is out of the range of {datatype}")


def _product(brackets: bytes) -> int | None:
    """How many values there are between these brackets and commas; None for an uneven nesting.

    In a list that is nested evenly all lists of a level are as long as the first one of that level.
    So the text that the brackets should be is built from these first ones, and compared. An empty
    list counts as a list of one value.
    """
    depth = len(brackets) - len(brackets.lstrip(b"["))
    if depth == brackets.count(b"[") == 1:
        return brackets.count(b",") + 1
    if depth > _MOST_DEPTH:
        return None
    item = b""
    sizes = []
    for level in range(1, depth + 1):
        # From its bracket, the `level`-th from inside, to the one that ends it.
        inside = brackets.find(b"]" * level) - 1 - (depth - level) + level - 1
        size, rest = divmod(inside + 1, len(item) + 1)
        if rest or size < 1:
            return None
        sizes.append(size)
        item = b"[" + ((item + b",") * size)[:-1] + b"]"
    return math.prod(sizes) if item == brackets else None
