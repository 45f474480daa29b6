"""Reads an ONNX file without its large weights, and finds where each large weight is in the file.

Protobuf can only read a message as a whole. A model of 400 MB then takes seconds to read, and each
later step that passes the model to ONNX, such as ONNX's checker, copies all weights twice. So this
module walks through the fields of the file, and gives only the small fields to protobuf.

See "Encoding" in the documentation of protobuf, and `onnx.proto` for the numbers of fields.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""The wire types of protobuf. Two more wire types exist for groups, which ONNX does not use."""


class _Field(NamedTuple):
    """A field of a message: its number, its wire type, and the positions of the field and of its
    content in the file.
    """

    number: int
    kind: int
    begin: int
    content: int
    end: int


class _UnusualError(ValueError):
    """The file does not have the form that this module expects."""


def read_without(path: Path, itemsizes: dict[int, int], at_least: int) -> onnx.ModelProto | None:
    """Read the model at `path` without its large weights.

    A weight that is left out is marked like a weight in an external file. The mark names the
    model's own file.

    Parameters
    ----------
    itemsizes: the data types of weights that may be left out, with the bytes of one number.
    at_least: the bytes of the smallest weight that is left out.

    Returns
    -------
    The model. None if no weight of the model can be left out, or if the file does not have the form
    that this module expects. In these cases `onnx.load` can read the file, unless it is damaged.

    Raises
    ------
    OSError: the file cannot be read.
    """
    if not path.is_file() or path.stat().st_size < at_least:
        return None
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _model(data, path.name, itemsizes, at_least)
        except (_UnusualError, DecodeError):
            return None


def _model(
    data: mmap.mmap, name: str, itemsizes: dict[int, int], at_least: int
) -> onnx.ModelProto | None:
    fields = list(_fields(data, 0, len(data)))
    graphs = [field for field in fields if field.number == _GRAPH]
    if len(graphs) != 1 or graphs[0].kind != _BYTES:
        return None
    inside = list(_fields(data, graphs[0].content, graphs[0].end))
    large = {
        field: tensor
        for field in inside
        if field.number == _INITIALIZER
        and field.end - field.begin >= at_least
        and (tensor := _large(data, field, name, itemsizes, at_least)) is not None
    }
    if not large:
        return None
    around = b"".join(data[field.begin : field.end] for field in fields if field.number != _GRAPH)
    model = onnx.ModelProto.FromString(around)
    for field in inside:
        if field in large:
            model.graph.initializer.append(large[field])
        else:
            model.graph.MergeFromString(data[field.begin : field.end])
    return model


def _large(
    data: mmap.mmap, field: _Field, name: str, itemsizes: dict[int, int], at_least: int
) -> TensorProto | None:
    """Return the weight with a reference to its bytes in the file instead of the bytes.

    Return None if the weight must be read into memory, because it is small, or because its bytes
    are not contiguous in the file.

    Parameters
    ----------
    name: the name of the file.
    """
    parts = list(_fields(data, field.content, field.end))
    raw = [part for part in parts if part.number == _RAW_DATA]
    if len(raw) != 1 or raw[0].kind != _BYTES:
        return None
    length = raw[0].end - raw[0].content
    tensor = TensorProto.FromString(
        b"".join(data[part.begin : part.end] for part in parts if part.number != _RAW_DATA)
    )
    has_more = any(
        getattr(tensor, kind)
        for kind in ("float_data", "double_data", "int32_data", "int64_data", "external_data")
    )
    if has_more or tensor.data_location or tensor.HasField("segment") or length < at_least:
        return None
    itemsize = itemsizes.get(tensor.data_type)
    if itemsize is None or math.prod(tensor.dims) * itemsize != length:
        return None
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", name), ("offset", raw[0].content), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _fields(data: mmap.mmap, begin: int, end: int) -> Iterator[_Field]:
    """Yield the fields of the protobuf message in the bytes from `begin` to `end`, in order.

    Raises
    ------
    _UnusualError: the bytes are not a protobuf message.
    """
    at = begin
    while at < end:
        key, content = _varint(data, at, end)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            after = _varint(data, content, end)[1]
        elif kind == _BYTES:
            length, content = _varint(data, content, end)
            after = content + length
        elif kind in (_FIXED32, _FIXED64):
            after = content + (4 if kind == _FIXED32 else 8)
        else:
            raise _UnusualError(f"wire type {kind}")
        if after > end or number == 0:
            raise _UnusualError("a field that ends after its message")
        yield _Field(number, kind, at, content, after)
        at = after


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """The integer of variable length (varint) at position `at`, and the position after it."""
    value = 0
    for place in range(at, min(at + 10, end)):
        byte = data[place]
        value |= (byte & 0x7F) << (7 * (place - at))
        if byte < 0x80:
            return value, place + 1
    raise _UnusualError("a number that does not end")
