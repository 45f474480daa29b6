"""Decodes inputs that are strings, and encodes outputs that are strings.

In memory, a string takes many times the bytes that it takes in a request. So the number of strings
in a request is limited.
"""

from __future__ import annotations

from collections.abc import Iterable

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
_DECODER = msgspec.json.Decoder(list[str])


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
        try:
            made[i] = str(data[start:end], "utf-8")
        except UnicodeDecodeError:
            raise InputError(f"string {i} of input `{name}` is not UTF-8") from None
        begin = end
    if begin != len(data):
        raise InputError(
            f"input `{name}` needs {count} strings by its shape, and {len(data) - begin} bytes are "
            "left behind them"
        )
    return made


def strings_from_json(name: str, count: int, data: msgspec.Raw) -> np.ndarray:
    """Decode strings from their JSON `data`, a flat list.

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
        The data are not a flat list of strings, or the number of strings is not `count` or too
        large.
    """
    _check_count(name, count)
    text = bytes(data)
    # Each string has two quotes that are not escaped. Count them before the strings are made.
    texts = None
    if text.count(b'"') - text.count(b'\\"') <= 2 * count:
        try:
            texts = _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InputError(f"the data of input `{name}` are not a flat list of strings") from None
    if texts is None or len(texts) != count:
        raise InputError(f"input `{name}` needs {count} strings by its shape, got another number")
    made = np.empty(count, DTYPE)
    made[:] = texts
    return made


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
