"""Sends wrong requests to a server in a process of its own.

    python -m tests.server_faults [--malformed 10000] [--killed 1000]

The clients send malformed requests over HTTP and gRPC, are killed while a request is served, read
slowly, or open connections and leave them alone. The server must answer each wrong request with an
error or end the connection. Correct requests in between and afterwards must get right answers. At
the end, the server's memory and open file descriptors must be as before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import tritonclient.grpc
from tritonclient.grpc import service_pb2

from tests.served import direct, heavy, perceptron, picky, rows

_TIMEOUT_S = 1.0
"""The timeout of the server for slow clients, in seconds."""


@dataclass
class Process:
    """A server in a process of its own.

    Attributes
    ----------
    log: the file with the output of the server.
    """

    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the server with a signal, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def memory(self) -> float:
        """The memory of the server, in bytes."""
        return float(psutil.Process(self.process.pid).memory_info().rss)

    def descriptors(self) -> int:
        """The number of open descriptors of the server."""
        return psutil.Process(self.process.pid).num_fds()


@contextlib.contextmanager
def served(folder: Path, **options: Any) -> Iterator[Process]:
    """Serve `net`, `heavy` and `picky` with `tvm-interop serve`.

    At the end the server is killed.
    """
    perceptron().save(folder / "net.tar")
    heavy().save(folder / "heavy.tar")
    picky().save(folder / "picky.tar")
    lines = {
        "http_port": 0, "grpc_port": 0, "policy": "streams", "receive_timeout_s": _TIMEOUT_S,
        "send_timeout_s": _TIMEOUT_S, "keep_alive_s": 2.0, "max_request_bytes": 2**20, **options,
    }  # fmt: skip
    config = folder / "serve.toml"
    config.write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        + '[models]\nnet = "net.tar"\nheavy = "heavy.tar"\npicky = "picky.tar"\n'
    )
    log = folder / "log"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tvm_interop", "serve", "--config", str(config)], stderr=file
        )
    try:
        yield Process(process, *_ports(process, log), log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _ports(process: subprocess.Popen[bytes], log: Path) -> tuple[int, int]:
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        text = log.read_text()
        if " ready: " in text:
            found = [
                int(text.split(f"{name} on 127.0.0.1:")[1].split()[0]) for name in ("HTTP", "gRPC")
            ]
            return found[0], found[1]
        time.sleep(0.05)
    raise AssertionError(f"the server did not start: {log.read_text()}")


# Requests.

VALID = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 12], "data": [0.5] * 12}]
}  # fmt: skip


def http_request(body: bytes, headers: Sequence[str] = (), path: str = "net") -> bytes:
    """The bytes of a request for inference."""
    lines = [
        f"POST /v2/models/{path}/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}",
        *headers,
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def malformed_http(draw: random.Random) -> bytes:
    """Draw a request with a fault."""
    text = json.dumps(VALID)
    kind = draw.randrange(12)
    if kind == 0:
        return http_request(text[: draw.randrange(len(text))].encode())
    if kind == 1:
        wrong = draw.choice([-1, 2**63, 2**64, "1", 1.5, None, [1], 10**30])
        return http_request(json.dumps(VALID).replace("[1, 12]", json.dumps([wrong, 12])).encode())
    if kind == 2:
        wrong = draw.choice(["FP33", "BYTES", "", "fp32", "INT8", "BOOL"])
        return http_request(text.replace("FP32", wrong).encode())
    if kind == 3:
        wrong = draw.choice(['"x"', "1e999", "null", "[]", "[[0.5], []]", "{}", "true"])
        return http_request(text.replace("0.5", wrong, 1).encode())
    if kind == 4:
        size = draw.choice([0, 1, 47, 49, 10**9, -4])
        head = {**VALID["inputs"][0], "parameters": {"binary_data_size": size}}  # type: ignore[dict-item]
        del head["data"]
        head_text = json.dumps({"inputs": [head]}).encode()
        length = draw.choice([len(head_text), 0, 10**9, len(head_text) - 1])
        header = f"Inference-Header-Content-Length: {length}"
        return http_request(head_text + bytes(draw.choice([0, 40, 48])), [header])
    if kind == 5:
        return http_request(text.encode(), [f"X-Long: {'a' * draw.choice([100, 40_000, 200_000])}"])
    if kind == 6:
        return draw.randbytes(draw.randrange(1, 300))
    if kind == 7:
        path = draw.choice(["nett", "../net", "%00", "net/versions/7", "net/" + "a" * 5000])
        return http_request(text.encode(), path=path)
    if kind == 8:
        return http_request(text.encode()).replace(b"Content-Length: ", b"Content-Length: x")
    if kind == 9:
        method = draw.choice([b"GET", b"PUT", b"DELETE", b"BREW"])
        return http_request(text.encode()).replace(b"POST", method, 1)
    if kind == 10:
        # The nesting is deeper than parsers allow.
        return http_request(b'{"inputs":' + b"[" * draw.choice([10, 100_000]))
    data = bytearray(http_request(text.encode()))
    for _ in range(draw.randrange(1, 4)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def send(port: int, data: bytes, patience_s: float = 0.3) -> bytes:
    """Send data, and return what the server sends until its answer is complete or it disconnects.

    A server waits for the rest of an incomplete request. So this function closes its side of the
    connection after `patience_s` seconds, which tells the server that nothing more will come.
    """
    received = b""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        try:
            connection.sendall(data)
            connection.settimeout(patience_s)
            while not _is_whole(received):
                try:
                    chunk = connection.recv(65536)
                except TimeoutError:
                    connection.settimeout(10)
                    connection.shutdown(socket.SHUT_WR)
                    continue
                if not chunk:
                    break
                received += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass
    return received


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


def malformed_message(draw: random.Random) -> bytes:
    """Draw a message of gRPC with a fault."""
    message = service_pb2.ModelInferRequest(model_name="net", id="7")
    given = message.inputs.add(name="x", datatype="FP32", shape=[1, 12])
    message.raw_input_contents.append(rows(1).tobytes())
    kind = draw.randrange(7)
    if kind == 0:
        message.raw_input_contents[0] = bytes(draw.choice([0, 4, 47, 49, 100]))
    elif kind == 1:
        given.datatype = draw.choice(["", "FP16", "BYTES", "FP64"])
    elif kind == 2:
        given.shape[0] = draw.choice([-1, 0, 2, 2**40, 2**62])
    elif kind == 3:
        message.raw_input_contents.append(b"more")
    elif kind == 4:
        message.parameters["timeout"].int64_param = draw.choice([-1, -(2**62)])
        message.parameters["priority"].int64_param = draw.choice([-1, 11, 2**60])
    elif kind == 5:
        message.model_name = draw.choice(["", "nett", "../net"])
    data = bytearray(message.SerializeToString())
    if kind == 6:
        for _ in range(4):
            data[draw.randrange(len(data))] = draw.randrange(256)
        del data[draw.randrange(len(data)) :]
    return bytes(data)


def send_message(channel: Any, data: bytes) -> str:
    """Send a message of gRPC, and return the status of the answer."""
    call = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=lambda raw: raw,
        response_deserializer=lambda raw: raw,
    )
    try:
        call(data, timeout=20)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


# Faults.


def check_serves(server: Process) -> None:
    """Check that the server gives the right answer over both protocols."""
    wanted = direct(perceptron(), {"x": np.full((1, 12), 0.5, np.float32)})[0]
    answer = send(server.http_port, http_request(json.dumps(VALID).encode()), 10)
    head, body = answer.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200"), head
    got = np.array(json.loads(body)["outputs"][0]["data"], np.float32).reshape(1, 5)
    np.testing.assert_array_equal(got, wanted)
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        given = tritonclient.grpc.InferInput("x", [1, 12], "FP32")
        given.set_data_from_numpy(np.full((1, 12), 0.5, np.float32))
        np.testing.assert_array_equal(client.infer("net", [given]).as_numpy("y"), wanted)


def send_malformed(server: Process, count: int, seed: int = 0) -> dict[str, int]:
    """Send `count` requests with faults, half over each protocol.

    Return how many times each status was answered.
    """
    draw = random.Random(seed)
    statuses: dict[str, int] = {}
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        for i in range(count):
            if i % 2:
                status = send_message(channel, malformed_message(draw))
            else:
                answer = send(server.http_port, malformed_http(draw))
                status = answer[9:12].decode() if answer.startswith(b"HTTP/1.1 ") else "closed"
            assert status[:1] != "5", f"request {i} showed a defect of the server: status {status}"
            assert status not in ("INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED", "UNAVAILABLE"), status
            statuses[status] = statuses.get(status, 0) + 1
    return dict(sorted(statuses.items()))


def heavy_request() -> bytes:
    """A request that takes some milliseconds and has a large answer."""
    x = np.zeros((192, 192), np.float32)
    head = {
        "inputs": [{
            "name": "x", "datatype": "FP32", "shape": [192, 192],
            "parameters": {"binary_data_size": x.nbytes},
        }],
        "parameters": {"binary_data_output": True},
    }  # fmt: skip
    text = json.dumps(head).encode()
    length = f"Inference-Header-Content-Length: {len(text)}"
    return http_request(text + x.tobytes(), [length], "heavy")


def check_failing_kernel(server: Process, count: int) -> None:
    """Check that runs which fail in native code get an error, and that all other requests work."""

    def ask(first: float) -> bytes:
        text = json.dumps(VALID).replace("0.5", str(first), 1).encode()
        return send(server.http_port, http_request(text, path="picky"), 10)

    x = np.full((1, 12), 0.5, np.float32)
    message = service_pb2.ModelInferRequest(model_name="picky")
    message.inputs.add(name="x", datatype="FP32", shape=[1, 12])
    message.raw_input_contents.append(np.full((1, 12), 13, np.float32).tobytes())
    address = f"127.0.0.1:{server.grpc_port}"
    with (
        grpc.insecure_channel(address) as channel,
        tritonclient.grpc.InferenceServerClient(address) as client,
    ):
        for _ in range(count):
            answer = ask(13)
            assert answer.startswith(b"HTTP/1.1 500"), answer
            assert b"model `picky` failed: operator `y/Relu` failed" in answer, answer
            assert b"thirteen" in answer, answer
            assert ask(0.25).startswith(b"HTTP/1.1 200")
            given = tritonclient.grpc.InferInput("x", [1, 12], "FP32")
            given.set_data_from_numpy(x)
            np.testing.assert_array_equal(client.infer("picky", [given]).as_numpy("y"), x)
            assert send_message(channel, message.SerializeToString()) == "INTERNAL"
            check_serves(server)


def kill_clients(server: Process, count: int, seed: int = 0) -> None:
    """Run clients that disappear at any point of a request."""
    draw = random.Random(seed)
    request = heavy_request()
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", server.http_port), 10)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            whole = draw.random() < 0.7
            connection.sendall(request if whole else request[: draw.randrange(len(request))])
            time.sleep(draw.choice([0, 0, 0.001, 0.005]))
        # With this option, `close` resets the connection. The system does the same when a process
        # with unread data is killed.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def hold_connections(server: Process, count: int) -> list[socket.socket]:
    """Open connections that do nothing, stop within a request, or ask for much and do not read."""
    held = []
    for i in range(count):
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.http_port))
        if i % 3 == 1:
            connection.sendall(heavy_request()[:5000])
        elif i % 3 == 2:
            for _ in range(3):
                connection.sendall(heavy_request())
        held.append(connection)
    return held


def settled_descriptors(server: Process, wanted: int, limit_s: float) -> int:
    """Wait until at most `wanted` descriptors are open, or time is up. Return their number."""
    until = time.monotonic() + limit_s
    while server.descriptors() > wanted and time.monotonic() < until:
        time.sleep(0.05)
    return server.descriptors()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--malformed", type=int, default=10_000)
    parser.add_argument("--killed", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as server:
        # Memory allocators keep some of the memory that the first requests took.
        send_malformed(server, 200, seed=1)
        kill_clients(server, 100, seed=1)
        check_serves(server)
        time.sleep(3)
        memory, descriptors = server.memory(), server.descriptors()
        print(f"before: {memory / 2**20:.1f} MiB, {descriptors} descriptors")
        print("malformed:", send_malformed(server, options.malformed))
        check_serves(server)
        kill_clients(server, options.killed)
        check_serves(server)
        print(f"{options.killed} clients killed")
        check_failing_kernel(server, 50)
        check_serves(server)
        held = hold_connections(server, 90)
        check_serves(server)
        left = settled_descriptors(server, descriptors, 15)
        for connection in held:
            connection.close()
        check_serves(server)
        time.sleep(3)
        print(f"after: {server.memory() / 2**20:.1f} MiB, {left} descriptors")
        assert left <= descriptors + 2
        assert server.memory() < memory * 1.1 + 2**23
        code = server.stop()
        print(f"ended with {code}")
        assert code == 0
        assert "Traceback" not in server.log.read_text()


if __name__ == "__main__":
    main()
