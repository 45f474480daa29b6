"""Bodies of inference requests and answers over HTTP: JSON, followed by binary tensors."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np

from ...errors import InputError, TooLargeError, cut
from ...plain_data import LARGEST, is_float, is_whole
from .any_model import VERSION
from .protocol import (
    LONGEST_NAME,
    Answer,
    InferCall,
    array_from_bytes,
    array_from_json,
    check_counts,
    datatype_of,
    read_schedule,
    refuse_shared_memory,
)
from .strings import bytes_of, check_total

JSON_LENGTH = "Inference-Header-Content-Length"
"""The header with the number of bytes of JSON in a body. Binary tensors follow the JSON."""


_MOST_OBJECTS = 4096
"""The maximum number of JSON objects in a request.

In memory, an object takes up to about a hundred times the size of its text.
"""
_LONGEST_SHAPE = 2048
"""The maximum number of bytes of a tensor's shape as JSON text."""
_LONGEST_PARAMETERS = 2**17
"""The maximum number of bytes of `parameters` as JSON text, for a request or a tensor."""

_Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]


# Fields that may be long have the type `msgspec.Raw`. They are kept as JSON text, so that their
# length can be checked before they are decoded.
class _Input(msgspec.Struct):
    name: _Name
    datatype: _Name
    shape: msgspec.Raw
    data: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


class _Output(msgspec.Struct):
    name: _Name
    parameters: msgspec.Raw = msgspec.Raw()


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: _Name | None = ""
    outputs: list[_Output] | None = None
    parameters: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Request)
_SHAPE = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]])
_PARAMETERS = msgspec.json.Decoder(dict[str, Any])
_ENCODER = msgspec.json.Encoder()


class InferBody:
    """The body of an inference request.

    Attributes
    ----------
    id: id that the client gave to the request, or "".
    call: decoded request.
    """

    def __init__(
        self,
        model: str,
        version: str,
        body: bytes | bytearray,
        json_length: str | None,
        max_json_bytes: int,
    ) -> None:
        """Decode a body.

        Parameters
        ----------
        json_length: value of the header `JSON_LENGTH`; None if the header is missing.
        max_json_bytes: see `ServerConfig`.

        Raises
        ------
        InputError
            The body is not a valid request; the message says where.
        TooLargeError
            The JSON of the body is too large.
        """
        length = _json_length(json_length, len(body))
        if length > max_json_bytes:
            raise TooLargeError(
                f"a request may have at most {max_json_bytes} bytes of JSON, got {length}; send "
                "tensors as binary data"
            )
        json = memoryview(body)[:length]
        if body.count(b"{", 0, length) > _MOST_OBJECTS:
            raise InputError(
                f"a request may have at most {_MOST_OBJECTS} JSON objects, and this one has more"
            )
        request = _decoded(_DECODER, json, "the request")
        check_counts(len(request.inputs), len(request.outputs or ()))
        self.id = request.id or ""
        parameters = _parameters(request.parameters, "the request")
        priority, timeout_us = read_schedule(parameters)
        self._is_binary = parameters.get("binary_data_output") is True
        self._binary_of: dict[str, bool] = {}
        for output in request.outputs or ():
            told = f"output `{cut(output.name)}`"
            asked = _parameters(output.parameters, told)
            refuse_shared_memory(told, asked)
            if asked.get("classification"):
                raise InputError(
                    f"{told}: classification is not supported; leave `classification` out"
                )
            self._binary_of[output.name] = bool(asked.get("binary_data", self._is_binary))
        self.call = InferCall(
            model,
            version,
            _inputs(request.inputs, memoryview(body)[length:]),
            list(self._binary_of) or None,
            priority,
            timeout_us,
        )

    def answer(self, answer: Answer) -> tuple[bytes, int | None]:
        """Encode an answer.

        Returns
        -------
        The body of the answer, and the number of its bytes that are JSON. Instead of this number,
        None if the whole body is JSON.

        Raises
        ------
        InputError
            An output that was requested as JSON holds infinities or NaN, which JSON cannot express.
        """
        outputs: list[dict[str, Any]] = []
        tensors: list[bytes] = []
        for spec, array in answer.outputs:
            told: dict[str, Any] = {
                "name": spec.name,
                "datatype": datatype_of(spec, self.call.model),
                "shape": array.shape,
            }
            if self._binary_of.get(spec.name, self._is_binary):
                tensors.append(bytes_of(array))
                told["parameters"] = {"binary_data_size": len(tensors[-1])}
            else:
                if is_float(array.dtype) and not np.isfinite(array).all():
                    raise InputError(
                        f"output `{spec.name}` holds infinities or NaN, which JSON cannot express; "
                        "ask for it as binary data"
                    )
                told["data"] = array.reshape(-1).tolist()
            outputs.append(told)
        head: dict[str, Any] = {
            "model_name": self.call.model,
            "model_version": VERSION,
            "parameters": {"batch_size": answer.batch_size},
            "outputs": outputs,
        }
        if self.id:
            head["id"] = self.id
        json = _ENCODER.encode(head)
        return b"".join([json, *tensors]), len(json) if tensors else None


def _json_length(header: str | None, total: int) -> int:
    if header is None:
        return total
    if not (header.isascii() and header.isdigit() and len(header) < 20) or int(header) > total:
        raise InputError(
            f"`{JSON_LENGTH}` is {header[:40]!r}; it must say how many of the {total} bytes of "
            "the body are JSON"
        )
    return int(header)


def _decoded(decoder: msgspec.json.Decoder[Any], json: Any, what: str) -> Any:
    try:
        return decoder.decode(json)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{what} does not follow the protocol: {cut(error, 300)}") from None


def _is_there(json: msgspec.Raw) -> bool:
    """Return whether a member of a JSON object exists and is not null."""
    size = memoryview(json).nbytes
    return size > 0 and (size != len(b"null") or bytes(json) != b"null")


def _parameters(json: msgspec.Raw, of: str) -> dict[str, Any]:
    if not _is_there(json):  # Clients that fill in all members write null.
        return {}
    if memoryview(json).nbytes > _LONGEST_PARAMETERS:
        raise InputError(f"the `parameters` of {of} may have at most {_LONGEST_PARAMETERS} bytes")
    found: dict[str, Any] = _decoded(_PARAMETERS, json, f"`parameters` of {of}")
    return found


def _inputs(inputs: list[_Input], tensors: memoryview) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    begin = 0
    for given in inputs:
        told = f"input `{cut(given.name)}`"
        if given.name in arrays:
            raise InputError(f"{told} is given twice")
        if memoryview(given.shape).nbytes > _LONGEST_SHAPE:
            raise InputError(f"the shape of {told} may have at most {_LONGEST_SHAPE} bytes")
        shape = _decoded(_SHAPE, given.shape, f"the shape of {told}")
        has_data = _is_there(given.data)
        parameters = _parameters(given.parameters, told)
        refuse_shared_memory(told, parameters)
        size = parameters.get("binary_data_size")
        if size is None:
            if not has_data:
                raise InputError(f"{told} has neither `data` nor `binary_data_size`; give one")
            arrays[given.name] = array_from_json(given.name, given.datatype, shape, given.data)
            check_total(arrays.values())
            continue
        if has_data:
            raise InputError(f"{told} has both `data` and `binary_data_size`; give one of them")
        if not is_whole(size) or size < 0:
            raise InputError(
                f"`binary_data_size` of {told} is {cut(repr(size))}; give a whole number, 0 or more"
            )
        if size > len(tensors) - begin:
            raise InputError(
                f"{told} should have {cut(size)} bytes, but the body has only "
                f"{len(tensors) - begin} bytes left; send the whole body"
            )
        arrays[given.name] = array_from_bytes(
            given.name, given.datatype, shape, tensors[begin : begin + size]
        )
        check_total(arrays.values())
        begin += size
    if begin != len(tensors):
        raise InputError(
            f"{len(tensors) - begin} bytes at the end of the body belong to no input; correct each "
            "`binary_data_size`"
        )
    return arrays
