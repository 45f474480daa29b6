"""Requests and answers of inference as HTTP has them: JSON, and tensors in binary behind it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ...errors import InputError
from .any_model import VERSION
from .protocol import (
    Answer,
    InferCall,
    array_from_bytes,
    array_from_values,
    datatype_of,
    read_schedule,
)

JSON_LENGTH = "Inference-Header-Content-Length"
"""The header that says how many bytes of a body are JSON; tensors follow."""


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: Any = None
    parameters: dict[str, Any] = {}


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    outputs: list[_Output] | None = None
    parameters: dict[str, Any] = {}


_DECODER = msgspec.json.Decoder(_Request)
_ENCODER = msgspec.json.Encoder()


class InferBody:
    """The body of a request for inference.

    Attributes
    ----------
    id: the client's name for it, or "".
    call: what it asks for.
    """

    def __init__(self, model: str, version: str, body: bytes, json_length: str | None) -> None:
        """Read it.

        Parameters
        ----------
        json_length: the header `JSON_LENGTH`, if there is one.

        Raises
        ------
        InputError
            It is no such request; says where.
        """
        length = _json_length(json_length, len(body))
        try:
            request = _DECODER.decode(memoryview(body)[:length])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"the request is not as the protocol has it: {error}") from None
        self.id = request.id
        priority, timeout_us = read_schedule(request.parameters)
        self._is_binary = request.parameters.get("binary_data_output") is True
        self._binary_of: dict[str, bool] = {}
        for output in request.outputs or ():
            if output.parameters.get("classification"):
                raise InputError(f"output `{output.name}`: there is no classification here")
            self._binary_of[output.name] = bool(
                output.parameters.get("binary_data", self._is_binary)
            )
        self.call = InferCall(
            model,
            version,
            _inputs(request.inputs, memoryview(body)[length:]),
            list(self._binary_of) or None,
            priority,
            timeout_us,
        )

    def answer(self, answer: Answer) -> tuple[bytes, int | None]:
        """The body of the answer, and how much of it is JSON if not all of it is.

        Raises
        ------
        InputError
            An output that was asked for as JSON holds infinities or NaN, which JSON has not.
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
                tensors.append(array.tobytes())
                told["parameters"] = {"binary_data_size": len(tensors[-1])}
            else:
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    raise InputError(
                        f"output `{spec.name}` holds infinities or NaN, which JSON has not; ask "
                        "for it as binary data"
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


def _inputs(inputs: list[_Input], tensors: memoryview) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    begin = 0
    for given in inputs:
        if given.name in arrays:
            raise InputError(f"input `{given.name}` is there twice")
        size = given.parameters.get("binary_data_size")
        if size is None:
            arrays[given.name] = array_from_values(
                given.name, given.datatype, given.shape, given.data
            )
            continue
        if given.data is not None:
            raise InputError(f"input `{given.name}` has `data` and `binary_data_size`; give one")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InputError(f"`binary_data_size` of input `{given.name}` is {size!r}")
        if size > len(tensors) - begin:
            raise InputError(
                f"input `{given.name}` is to have {size} bytes, and {len(tensors) - begin} are "
                "left in the body: it is truncated"
            )
        arrays[given.name] = array_from_bytes(
            given.name, given.datatype, given.shape, tensors[begin : begin + size]
        )
        begin += size
    if begin != len(tensors):
        raise InputError(f"{len(tensors) - begin} bytes of the body belong to no input")
    return arrays
