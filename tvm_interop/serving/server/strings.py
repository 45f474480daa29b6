"""Decodes inputs that are strings, and encodes outputs that are strings.

In memory, a string takes many times the bytes that it takes in a request. So the number of strings
in a request is limited.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from ...errors import InputError
from ...execution.strings import DTYPE

BYTES = "BYTES"
"""The protocol's name of the type of strings."""
MOST_STRINGS = 2**16
"""The maximum number of strings in a request."""
_LENGTH = 4
"""The number of bytes of the length of a string in binary tensors."""
_MOST_LISTS = 2**18
"""The maximum number of opening brackets in the JSON of nested lists of strings."""


def strings_from_bytes(name: str, count: int, data: bytes | memoryview) -> np.ndarray:
    """Decode strings, each of which has its length before it, in four bytes.

    Parameters
    ----------
    name: name of the input, for error messages.
    count: number of strings that the input needs.

    Returns
    -------
    An array of `str`, of dtype object and shape (count,).

    Raises
    ------
    InputError
        The number of strings is not `count` or too large, or a string is truncated or not UTF-8.
    """
    _check_count(name, count)
    made, begin = np.empty(count, DTYPE), 0
    for i in range(count):
        start = begin + _LENGTH
        end = start + int.from_bytes(data[begin:start], "little")
        if end > len(data) or start > len(data):
            raise InputError(
                f"input `{name}` needs {count} strings by its shape, and string {i} is truncated"
            )
        made[i] = _decoded(name, i, data[start:end])
        begin = end
    if begin != len(data):
        raise InputError(
            f"input `{name}` needs {count} strings by its shape, and {len(data) - begin} bytes are "
            "left behind them"
        )
    return made


def strings_from_json(name: str, shape: Sequence[int], data: msgspec.Raw) -> np.ndarray:
    """Decode strings from their JSON `data`, a flat list, or lists that are nested like `shape`.

    Parameters
    ----------
    name: name of the input, for error messages.
    shape: shape of the input.

    Returns
    -------
    An array of `str`, of dtype object and shape `shape`.

    Raises
    ------
    InputError
        The data are not a list of strings, or the number of strings does not fit the shape or is
        too large.
    """
    count = math.prod(shape)
    _check_count(name, count)
    text = bytes(data)
    # Each string has two quotes that are not escaped. Count them before the strings are made.
    if text.count(b'"') - text.count(b'\\"') > 2 * count:
        raise _wrong_number(name, count)
    try:
        texts = _decoder(1).decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        texts = _flattened(name, shape, text)
    if len(texts) != count:
        raise _wrong_number(name, count)
    made = np.empty(count, DTYPE)
    made[:] = texts
    return made.reshape(tuple(shape))


def _flattened(name: str, shape: Sequence[int], text: bytes) -> list[str]:
    """Decode lists of strings that are nested like `shape`."""
    try:
        if text.count(b"[") > _MOST_LISTS:
            raise ValueError("there are too many lists")
        level: list[Any] = [_decoder(len(shape)).decode(text)]
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise InputError(
            f"the data of input `{name}` are not a list of strings, flat or nested like its shape "
            f"{list(shape)}"
        ) from None
    for size in shape:
        if any(len(each) != size for each in level):
            raise InputError(
                f"the data of input `{name}` are not nested like its shape {list(shape)}"
            )
        level = [item for each in level for item in each]
    return level


@functools.cache
def _decoder(depth: int) -> msgspec.json.Decoder[Any]:
    """A decoder of lists of strings, nested `depth` times."""
    kind: Any = str
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _wrong_number(name: str, count: int) -> InputError:
    return InputError(f"input `{name}` needs {count} strings by its shape, got another number")


def strings_from_values(name: str, count: int, values: Sequence[bytes]) -> np.ndarray:
    """Decode strings from a flat sequence of bytes, such as a field of a message.

    Returns
    -------
    An array of `str`, of dtype object and shape (count,).

    Raises
    ------
    InputError
        The number of strings is not `count` or too large, or a string is not UTF-8.
    """
    _check_count(name, count)
    if len(values) != count:
        raise _wrong_number(name, count)
    made = np.empty(count, DTYPE)
    for i, value in enumerate(values):
        made[i] = _decoded(name, i, value)
    return made


def _decoded(name: str, position: int, value: bytes | memoryview) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        raise InputError(f"string {position} of input `{name}` is not UTF-8") from None


def check_total(inputs: Iterable[np.ndarray]) -> None:
    """Refuse a request with more than `MOST_STRINGS` strings in all its inputs together.

    Raises
    ------
    InputError
        There are too many strings; the message says how many are allowed.
    """
    total = sum(array.size for array in inputs if array.dtype == DTYPE)
    if total > MOST_STRINGS:
        raise InputError(
            f"the request has {total} strings; at most {MOST_STRINGS} are allowed: divide it into "
            "several requests"
        )


def _check_count(name: str, count: int) -> None:
    if count > MOST_STRINGS:
        raise InputError(
            f"input `{name}` has {count} strings; at most {MOST_STRINGS} are allowed in a request: "
            "divide it into several requests"
        )


def bytes_of(array: np.ndarray) -> bytes:
    """Return the bytes of an output, little-endian and row-major.

    Each string is a length of four bytes and then its text in UTF-8, as the protocol wants it.
    """
    if array.dtype != DTYPE:
        return array.tobytes()
    texts = [text.encode() for text in array.reshape(-1).tolist()]
    return b"".join(
        part for text in texts for part in (len(text).to_bytes(_LENGTH, "little"), text)
    )
