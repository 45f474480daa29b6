"""A check of the bytes of gRPC messages, before a parser turns them into objects.

A small message can be expensive to parse. An empty nested message takes two bytes on the wire and
about a hundred bytes in memory. A parser also holds Python's global lock until it has created all
objects.
"""

from __future__ import annotations

from typing import Any

from ...errors import InputError, TooLargeError

_SMALL = 2**16
"""Messages of up to this size in bytes are not checked, because they cannot be expensive to
parse."""
_MOST_FIELDS = 2**14
"""The maximum number of fields of a message, including the fields of nested messages."""
_VARINT_COST = 4
"""The factor by which a byte of whole numbers counts more than a byte of floats.

In a gRPC message, whole numbers have a variable length. So a single byte may hold a number that
takes eight bytes in memory.
"""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}


def check_message(kind: Any, data: bytes, max_number_bytes: int) -> None:
    """Refuse a message that would take many times its size in memory when it is parsed.

    Parameters
    ----------
    kind: descriptor of the message type.
    data: bytes of the message.
    max_number_bytes: maximum size of the numbers that are not raw tensors. A byte of a float counts
        as one byte. A byte of another number counts as four bytes, because such a number can take
        up to eight times its size in memory.

    Raises
    ------
    TooLargeError
        The numbers exceed the maximum.
    InputError
        There are too many fields, or the bytes are not a valid message.
    """
    if len(data) > _SMALL:
        _Walk(kind.name, max_number_bytes).through(memoryview(data), kind)


class _Walk:
    def __init__(self, name: str, max_number_bytes: int) -> None:
        self._name = name
        self._max_number_bytes = max_number_bytes
        self._fields = 0
        self._number_bytes = 0

    def through(self, data: memoryview, kind: Any) -> None:
        """Count the fields of a message and of its nested messages."""
        at = 0
        while at < len(data):
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise InputError(
                    f"a `{self._name}` may have at most {_MOST_FIELDS} fields; send tensors as raw "
                    "bytes, or numbers packed"
                )
            tag, at = self._varint(data, at)
            wire = tag & 7
            if wire == _VARINT:
                _, at = self._varint(data, at)
            elif wire in _WIDTHS:
                at += _WIDTHS[wire]
            elif wire == _BYTES:
                size, at = self._varint(data, at)
                if size > len(data) - at:
                    raise self._wrong()
                self._field(kind.fields_by_number.get(tag >> 3), data[at : at + size])
                at += size
            else:
                raise self._wrong()

    def _field(self, field: Any, data: memoryview) -> None:
        if field is None:
            return
        if field.message_type is not None:
            self.through(data, field.message_type)
        elif field.type not in (field.TYPE_BYTES, field.TYPE_STRING):
            is_fixed = field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE)
            self._number_bytes += len(data) * (1 if is_fixed else _VARINT_COST)
            if self._number_bytes > self._max_number_bytes:
                raise TooLargeError(
                    f"a request may have at most {self._max_number_bytes} bytes of numbers outside "
                    f"of raw tensors, and at most {self._max_number_bytes // _VARINT_COST} bytes "
                    "of integers and BOOL; send `raw_input_contents`"
                )

    def _varint(self, data: memoryview, at: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if at >= len(data):
                break
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at
        raise self._wrong()

    def _wrong(self) -> InputError:
        return InputError(f"the bytes are not a `{self._name}`: see the Open Inference Protocol v2")
