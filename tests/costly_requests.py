"""Makes requests, over HTTP and gRPC, that are cheap to send but could cost a server much."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from tritonclient.grpc import service_pb2

from tests.server_faults import http_request

_MIB = 2**20


def _asked(shape: str, data: str, more: str = "") -> bytes:
    given = f'{{"name": "x", "datatype": "FP32", "shape": {shape}, "data": {data}}}'
    return http_request(f'{{"inputs": [{given}]{more}}}'.encode())


def _listed(item: str, nbytes: int) -> str:
    return "[" + (item + ",") * (nbytes // (len(item) + 1)) + item + "]"


def _chunked(draw: random.Random) -> bytes:
    head = http_request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    return head + b"1\r\n \r\n" * draw.choice([1000, 100_000]) + b"0\r\n\r\n"


def _many_requests(draw: random.Random) -> bytes:
    return b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * draw.choice([100, 2000])


def _one_input(draw: random.Random) -> bytes:
    long = "n" * draw.choice([_MIB, 4 * _MIB])
    return _asked("[1, 12]", "[1]").replace(b'"x"', f'"{long}"'.encode())


_HTTP: tuple[Callable[[random.Random], bytes], ...] = (
    lambda draw: _asked(_listed("9" * draw.choice([18, 400, 4000]), 2 * _MIB), "[1]"),
    lambda draw: _asked("[1, 12]", _listed(draw.choice(["0", "0.1", "1e9"]), 4 * _MIB)),
    lambda draw: _asked("[1, 12]", _listed("0." + "7" * 3000, 4 * _MIB)),
    lambda draw: _asked("[2097152]", _listed("0", 4 * _MIB)),
    lambda draw: _asked("[1, 12]", _listed(draw.choice(["[]", "{}", "null", '""']), 4 * _MIB)),
    lambda draw: _asked("[1, 12]", "[" * draw.choice([100, 100_000])),
    lambda draw: _asked("[1, 12]", "[" * 60 + "0" + "]" * 60),
    lambda draw: _asked(draw.choice(["[0, 4611686018427387904]", str([1] * 65)]), "[]"),
    lambda draw: _asked("[1, 12]", "[1]", f', "parameters": {{"timeout": 1{"0" * 400}}}'),
    lambda draw: _asked("[1, 12]", "[1]", f', "parameters": {{"a": {_listed("[]", _MIB)}}}'),
    lambda draw: http_request(('{"inputs": ' + _listed("{}", _MIB) + "}").encode()),
    lambda draw: http_request(json.dumps({"inputs": [], "id": "i" * _MIB}).encode()),
    lambda draw: http_request(b" " * draw.choice([20, 70]) * _MIB),
    _chunked,
    _many_requests,
    _one_input,
)


def costly_http(draw: random.Random) -> bytes:
    """Draw a costly request over HTTP."""
    return draw.choice(_HTTP)(draw)


def costly_message(draw: random.Random) -> bytes:
    """Draw a costly request as a `ModelInferRequest`."""
    kind = draw.randrange(6)
    if kind == 0:
        return bytes([draw.choice([0x22, 0x2A, 0x32, 0x3A]), 0]) * draw.choice([10_000, _MIB])
    message = service_pb2.ModelInferRequest(model_name="net")
    given = message.inputs.add(name="x", datatype="FP32", shape=[1, 12])
    if kind == 1:
        given.contents.fp32_contents.extend([0.5] * _MIB)
    elif kind == 2:
        given.shape[:] = [1] * draw.choice([65, 100_000])
        message.raw_input_contents.append(b"")
    elif kind == 3:
        given.shape[:] = [0, 2**62]
        message.raw_input_contents.append(b"")
    elif kind == 4:
        message.model_name = "n" * 4 * _MIB
    else:
        given.datatype = "BOOL"
        given.contents.bool_contents.extend([True] * _MIB)
    return bytes(message.SerializeToString())
