"""Tests the limits of requests. They are checked before a request uses resources."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import time
import tracemalloc
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tests import server_faults as faults
from tests.served import direct, perceptron
from tvm_interop.errors import InputError, TooLargeError, cut, did_you_mean
from tvm_interop.serving import Server
from tvm_interop.serving.server.grpc_wire import check_message
from tvm_interop.serving.server.http_body import InferBody
from tvm_interop.serving.server.protocol import array_from_json, array_from_values

_MIB = 2**20
_REQUEST = service_pb2.ModelInferRequest.DESCRIPTOR


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options: dict[str, Any] = {"policy": "sequential", "max_json_bytes": 4 * _MIB}
    with Server({"net": perceptron()}, http_port=0, grpc_port=0, **options) as server:
        yield server


def post(server: Server, body: bytes, model: str = "net", **headers: str) -> tuple[int, str]:
    """The status and the text of an answer over HTTP."""
    url = f"http://{server.http_url}/v2/models/{model}/infer"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def call(server: Server, message: bytes, method: str = "ModelInfer") -> tuple[str, str]:
    """The status and the text of an answer over gRPC."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        try:
            channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(message)
        except grpc.RpcError as error:
            return error.code().name, error.details()
    return "OK", ""


def asked(shape: str = "[1, 12]", data: str = "", datatype: str = "FP32", **more: str) -> bytes:
    """A request as JSON. `more` has further members of the request."""
    data = data or json.dumps([0.5] * 12)
    told = "".join(f', "{name}": {value}' for name, value in more.items())
    given_ = f'{{"name": "x", "datatype": "{datatype}", "shape": {shape}, "data": {data}}}'
    return f'{{"inputs": [{given_}]{told}}}'.encode()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (asked("[" + "9" * 4000 + ", 12]"), "the shape of input `x` may have at most 2048 bytes"),
        (asked(f"[{'7' * 100}, 12]"), "the shape of input `x` does not follow the protocol"),
        (asked("[0, 4611686018427387904]", "[]"), "which no memory is large enough for"),
        (asked(str([1] * 65), "[1]"), "has 65 dimensions; at most 32"),
        (asked(parameters='{"timeout": 1' + "0" * 400 + "}"), "`timeout` is 1000"),
        (asked(parameters='{"timeout": 1' + "0" * 10_000 + "}"), "out of range"),
        (asked(parameters='{"a": ' + "[" * 20_000 + "]" * 20_000 + "}"), "recursion"),
        (asked(parameters='{"a": "' + "a" * 200_000 + '"}'), "may have at most 131072 bytes"),
        (asked(data="[" * 3_000 + "]" * 3_000), "does not follow the protocol"),
        (asked(data="[" * 70 + "1" + "]" * 70), "nested unevenly"),
        (asked(data="[1e400" + ", 1" * 11 + "]"), "out of the range of FP32"),
        (asked(data="[1e39" + ", 1" * 11 + "]"), "out of the range of FP32"),
        (asked(data="[" + "9" * 10_000 + ", 1" * 11 + "]"), "out of the range of FP32"),
        (asked(data="[0." + "9" * 200_000 + ", 1" * 11 + "]"), "more than 4096 characters"),
        (asked(data="[NaN" + ", 1" * 11 + "]"), "does not follow the protocol"),
        (asked(data="[null" + ", 1" * 11 + "]"), "not numbers of type FP32"),
        (asked(data='["1"' + ", 1" * 11 + "]"), "not numbers of type FP32"),
        (asked(data="[{}" + ", 1" * 11 + "]"), "not numbers of type FP32"),
        (asked(data="null"), "neither `data` nor `binary_data_size`"),
        (asked(data="[" + "0, " * 5000 + "{}" + ", {}" * 5000 + "]"), "at most 4096 JSON objects"),
        (asked(datatype="A" * 5000), "does not follow the protocol"),
        (b'{"inputs": [' + b"0, " * 400_000 + b"0]}", "does not follow the protocol"),
        (b'{"inputs": []' + b', "outputs": [{"name": "y"}]' * 5 + b"}", "no input `x`"),
    ],
)  # fmt: skip
def test_what_would_cost_much_is_a_wrong_argument(server: Server, body: bytes, said: str) -> None:
    status, answer = post(server, body)
    assert (status, said in answer) == (400, True), (status, answer[:500])
    assert len(answer) < 1000


def test_too_much_json_is_too_large(server: Server) -> None:
    body = asked(data="[" + "0.5, " * 900_000 + "0.5]")
    status, answer = post(server, body)
    assert status == 413
    assert "4194304 bytes of JSON" in answer
    assert "binary data" in answer


def test_json_beside_binary_data_is_bounded_too(server: Server) -> None:
    body = asked(id='"' + "i" * 4 * _MIB + '"')
    length = {"Inference-Header-Content-Length": str(len(body))}
    status, answer = post(server, body + bytes(48), **length)
    assert status == 413
    assert "4194304 bytes of JSON" in answer


def test_what_is_too_large_is_not_kept(server: Server) -> None:
    tracemalloc.start()
    try:
        assert post(server, b" " * 32 * _MIB)[0] == 413
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 48 * _MIB  # The peak includes the memory of the client.


@pytest.fixture(scope="module")
def small_server() -> Iterator[Server]:
    options: dict[str, Any] = {"policy": "sequential", "max_held_bytes": 10_000}
    with Server({"net": perceptron()}, http_port=0, grpc_port=0, **options) as server:
        yield server


def test_the_bytes_of_all_requests_are_bounded_together(small_server: Server) -> None:
    fits, padding = asked(), b" " * 9_500
    service = small_server.service
    assert service is not None
    host, port = small_server.http_url.split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(
            b"POST /v2/models/net/infer HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 20000\r\n\r\n" + padding
        )
        # Wait, so that the slow request comes first. Otherwise the next request would hold bytes
        # that the slow request needs.
        wait_until(lambda: service.held._held == len(padding))
        status, said = post(small_server, fits + b" " * 500)
        assert status == 429, said
        assert "may take at most 10000" in said
    # The bytes that the disconnected client held are free again.
    wait_until(lambda: post(small_server, fits)[0] == 200)


def test_a_message_that_holds_too_much_is_told(small_server: Server) -> None:
    request = service_pb2.ModelInferRequest(model_name="net")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 12])
    request.raw_input_contents.append(bytes(12_000))
    code, said = call(small_server, request.SerializeToString())
    assert (code, "may take at most 10000" in said) == ("RESOURCE_EXHAUSTED", True), said
    request.raw_input_contents[0] = bytes(48)
    assert call(small_server, request.SerializeToString()) == ("OK", "")


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_long_names_are_not_repeated(server: Server) -> None:
    long = "n" * _MIB
    for body in (
        asked().replace(b'"x"', f'"{long}"'.encode()),
        asked(id=f'"{long}"'),
        asked(outputs=f'[{{"name": "{long}"}}]'),
        asked(outputs=f'[{{"name": "{"n" * 1000}"}}]'),
        asked().replace(b'"x"', f'"{"n" * 1000}"'.encode()),
    ):
        status, answer = post(server, body)
        assert status == 400
        assert len(answer) < 500
    for message in (
        service_pb2.ModelInferRequest(model_name=long),
        service_pb2.ModelInferRequest(model_name="net", id=long),
        service_pb2.ModelInferRequest(model_name="net", model_version=long),
    ):
        code, answer = call(server, message.SerializeToString())
        assert code == "INVALID_ARGUMENT"
        assert len(answer) < 500
    metadata = service_pb2.ModelMetadataRequest(name=long).SerializeToString()
    code, answer = call(server, metadata, "ModelMetadata")
    assert code == "NOT_FOUND"
    assert len(answer) < 500


def test_a_long_name_is_close_to_none() -> None:
    assert did_you_mean("x" * 201, ["x" * 200]) == ""
    assert cut("x" * 101) == "x" * 100 + "… (101 characters)"


def message_of(shape: list[int], **parameters: int) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="net")
    message.inputs.add(name="x", datatype="FP32", shape=shape)
    for name, value in parameters.items():
        message.parameters[name].uint64_param = value
    message.raw_input_contents.append(b"")
    return bytes(message.SerializeToString())


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (message_of([0, 2**62]), "which no memory is large enough for"),
        (message_of([1] * 65), "dimensions; at most 32"),
        (message_of([1, 12], timeout=2**64 - 1), "`timeout` is 1844"),
        (message_of([1, 12], timeout=2**63), "`timeout` is 9223"),
        (b"\x2a\x00" * 2000, "2000 inputs; at most 1024"),
        (b"\x2a\x00" * 2**17, "may have at most 16384 fields"),
        (b"\x3a\x00" * 2**17, "may have at most 16384 fields"),
    ],
)
def test_messages_that_would_cost_much(server: Server, message: bytes, said: str) -> None:
    code, answer = call(server, message)
    assert code == "INVALID_ARGUMENT", answer
    assert said in answer


def test_fields_within_fields_count() -> None:
    inner = b"\x22\x00" * 2**17  # Fields of one input of the request.
    with pytest.raises(InputError, match="16384 fields"):
        check_message(_REQUEST, b"\x2a" + varint(len(inner)) + inner, _MIB)


def test_numbers_in_messages_are_bounded_and_raw_bytes_are_not() -> None:
    message = service_pb2.ModelInferRequest()
    message.raw_input_contents.append(bytes(4 * _MIB))
    check_message(_REQUEST, message.SerializeToString(), _MIB)
    message.inputs.add().contents.bool_contents.extend([True] * (_MIB // 8))
    message.inputs.add().contents.fp32_contents.extend([0.5] * (_MIB // 8))
    check_message(_REQUEST, message.SerializeToString(), _MIB)
    message.inputs.add().contents.bool_contents.extend([True])
    with pytest.raises(TooLargeError, match="raw_input_contents"):
        check_message(_REQUEST, message.SerializeToString(), _MIB)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_ours_to_refuse(tail: bytes) -> None:
    with contextlib.suppress(InputError):
        check_message(_REQUEST, b"\x3a\x80\x80\x04" + bytes(2**16) + tail, _MIB)


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def test_memory_is_a_small_multiple_of_the_bytes() -> None:
    numbers = np.random.default_rng(0).integers(0, 9, (600, 1000))
    body = asked("[600, 1000]", json.dumps(numbers.tolist(), separators=(",", ":")))
    tracemalloc.start()
    try:
        read = InferBody("net", "", body, None, 16 * _MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(read.call.inputs["x"], numbers.astype(np.float32))
    assert peak < 8 * len(body) + 4 * _MIB


def test_members_that_are_null_are_left_out() -> None:
    """Clients that write all members of the protocol, such as MLServer's types, write null."""
    null = {"parameters": None}
    given_ = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]} | null
    body = {"id": None, "inputs": [given_], "outputs": None} | null
    for outputs in (None, [{"name": "y"} | null]):
        read = InferBody("net", "", json.dumps(body | {"outputs": outputs}).encode(), None, _MIB)
        np.testing.assert_array_equal(read.call.inputs["x"], np.float32([1, 2]))
        assert (read.id, read.call.outputs) == ("", outputs and ["y"])


# Data that is read in pieces is read correctly.

_KINDS = {
    "FP64": ("float64", st.floats(allow_nan=False, allow_infinity=False)),
    "FP32": ("float32", st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "INT64": ("int64", st.integers(-(2**63), 2**63 - 1)),
    "UINT64": ("uint64", st.integers(0, 2**64 - 1)),
    "INT8": ("int8", st.integers(-128, 127)),
    "UINT8": ("uint8", st.integers(0, 255)),
    "BOOL": ("bool", st.booleans()),
}


def read(datatype: str, shape: list[int], text: str) -> np.ndarray:
    return array_from_json("x", datatype, shape, msgspec.Raw(text.encode()))


@settings(deadline=None)
@given(st.data())
def test_json_of_any_nesting_is_what_it_says(data: Any) -> None:
    datatype = data.draw(st.sampled_from(sorted(_KINDS)))
    dtype, values = _KINDS[datatype]
    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    count = int(np.prod(shape, dtype=int))
    array = np.array(data.draw(st.lists(values, min_size=count, max_size=count)), dtype)
    array = array.reshape(shape)
    indent = data.draw(st.sampled_from([None, 2]))
    for listed in (array.tolist(), array.reshape(-1).tolist()):
        got = read(datatype, shape, json.dumps(listed, indent=indent))
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)
        assert (np.signbit(got) == np.signbit(array)).all() or dtype in ("bool",)


@pytest.mark.parametrize("shape", [[100_000], [100, 1000], [10, 10, 1000], [1000, 100]])
def test_many_numbers_are_what_they_say(shape: list[int]) -> None:
    array = np.random.default_rng(1).standard_normal(shape)
    np.testing.assert_array_equal(read("FP64", shape, json.dumps(array.tolist())), array)


@pytest.mark.parametrize(
    "text",
    [
        "[[1, 2], [3]]", "[[1], 2, 3]", "[1, [2, 3]]", "[[1, 2], [[3]]]", "[[[1]], [2, 3]]",
        "[[1, 2, 3], []]", "[[], [1, 2, 3]]", "[[1], [2], [3], []]", "[[], [], []]", "[]", "[[]]",
        '["1,2,3"]', '["[1],2,3"]', "[1, 2, {}]", "{}", '"1,2,3"', "1", "true", "[1, 2, true]",
        "[1, 2, 3, 4]", "[1, 2]",
    ],
)  # fmt: skip
def test_data_of_another_form_are_refused(text: str) -> None:
    msgspec.json.decode(text)  # The text is valid JSON.
    for datatype in ("FP32", "INT32"):
        with pytest.raises(InputError, match=r"nested|values|numbers"):
            read(datatype, [3], text)


@pytest.mark.parametrize(
    ("datatype", "text"),
    [
        ("INT8", "128"), ("INT8", "-129"), ("UINT8", "-1"), ("UINT64", "-1"), ("INT16", "1e2"),
        ("UINT64", str(2**64)), ("INT64", str(2**63)), ("INT32", "1.0"), ("INT64", "9" * 4096),
        ("FP16", "65520"), ("FP64", "1e309"), ("BOOL", "1"), ("FP32", "true"), ("FP64", "-1e309"),
    ],
)  # fmt: skip
def test_numbers_of_another_type_are_refused(datatype: str, text: str) -> None:
    with pytest.raises(InputError, match=r"range|not numbers"):
        read(datatype, [2], f"[{text}, {text}]")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("-0", -0.0), ("-0.0", -0.0), ("1e-0", 1.0), ("-0e5", -0.0), ("1e-400", 0.0), ("-05", None)],
)
def test_zeros_keep_their_sign(text: str, wanted: float | None) -> None:
    if wanted is None:
        with pytest.raises(InputError):
            read("FP32", [1], f"[{text}]")
    else:
        (got,) = read("FP32", [1], f"[{text}]").tolist()
        assert struct.pack("d", got) == struct.pack("d", wanted)


def test_a_member_that_is_there_twice_counts_once(server: Server) -> None:
    """As in most readers of JSON, the last of two equal members is checked and used."""
    body = asked().replace(b'"shape": [1, 12]', b'"shape": [7, 7], "shape": [1, 12]')
    assert post(server, body)[0] == 200


def test_numbers_of_messages_may_be_infinite() -> None:
    given_ = service_pb2.InferTensorContents(fp32_contents=[1.5, float("inf"), float("nan")])
    got = array_from_values("x", "FP32", [3], given_.fp32_contents)
    np.testing.assert_array_equal(got, np.array([1.5, np.inf, np.nan], np.float32))
    with pytest.raises(InputError, match="out of the range of INT8"):
        array_from_values("x", "INT8", [2], [1, 200])


def test_chunks_of_a_byte_are_read(server: Server) -> None:
    body = asked()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = faults.http_request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    assert server.http_port is not None
    assert faults.send(server.http_port, head + chunks).startswith(b"HTTP/1.1 200")


def test_it_ends_while_such_requests_come(tmp_path: Path) -> None:
    """Costly requests once took half a minute each. Now they are refused, so the server can end."""
    long = asked("[" + ", ".join(["9" * 4000] * 500) + "]")
    with faults.served(tmp_path, max_request_bytes=4 * _MIB) as server:
        sent = []
        for _ in range(4):
            connection = socket.create_connection(("127.0.0.1", server.http_port), 10)
            connection.sendall(faults.http_request(long))
            sent.append(connection)
        for connection in sent:
            assert connection.recv(12) == b"HTTP/1.1 400"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        for connection in sent:
            connection.close()


def test_what_is_taken_is_served_right(server: Server) -> None:
    x = np.arange(48, dtype=np.float32).reshape(4, 12) / 7
    status, answer = post(server, asked("[4, 12]", json.dumps(x.tolist())))
    assert status == 200
    got = np.array(json.loads(answer)["outputs"][0]["data"], np.float32).reshape(4, 5)
    np.testing.assert_array_equal(got, direct(perceptron(), {"x": x})[0])
