"""Tests the server as a process: its end, and clients that do everything wrong."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests import server_faults as faults
from tests.served import direct, heavy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[faults.Process]:
    with faults.served(tmp_path_factory.mktemp("served")) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()


def test_malformed_requests_are_answered(server: faults.Process) -> None:
    statuses = faults.send_malformed(server, 400)
    assert {"400", "404", "405", "INVALID_ARGUMENT", "NOT_FOUND"} <= statuses.keys()
    faults.check_serves(server)


def test_a_kernel_that_fails_in_native_code_fails_its_request_alone(
    server: faults.Process,
) -> None:
    faults.check_failing_kernel(server, 3)


def test_killed_and_slow_clients_leave_nothing_behind(server: faults.Process) -> None:
    faults.check_serves(server)
    before = server.descriptors()
    faults.kill_clients(server, 40)
    held = faults.hold_connections(server, 12)
    faults.check_serves(server)
    assert faults.settled_descriptors(server, before + 1, 15) <= before + 1
    for connection in held:
        connection.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (faults.http_request(bytes(2**20 + 1)), b"413"),
        (faults.http_request(b"{}", ["Content-Encoding: gzip"]), b"415"),
        (faults.http_request(b"{}", ["X: " + "a" * 100_000]), b"400"),
        (faults.http_request(b"{}").replace(b"h: 2", b"h: 99999999999"), b"413"),
        (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET /v2/models/net/infer HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
    ],
)  # fmt: skip
def test_limits(server: faults.Process, data: bytes, status: bytes) -> None:
    assert faults.send(server.http_port, data)[9:12] == status


def test_loads_are_refused_without_a_folder(server: faults.Process) -> None:
    url = f"127.0.0.1:{server.http_port}"
    with (
        tritonclient.http.InferenceServerClient(url) as client,
        pytest.raises(InferenceServerException, match="models are fixed"),
    ):
        client.load_model("net")


def test_sigterm_under_load_loses_nothing(tmp_path: Path) -> None:
    """Every accepted request is answered correctly. Then the process ends with code 0."""
    x = np.random.default_rng(0).standard_normal((192, 192)).astype(np.float32)
    wanted = direct(heavy(), {"x": x})[0]
    answers: list[bool] = []
    refused: list[str] = []
    with faults.served(tmp_path, max_queue=4) as server:

        def ask() -> None:
            url = f"127.0.0.1:{server.http_port}"
            with tritonclient.http.InferenceServerClient(url) as client:
                given = tritonclient.http.InferInput("x", [192, 192], "FP32")
                given.set_data_from_numpy(x)
                while True:
                    try:
                        got = client.infer("heavy", [given]).as_numpy("y3")
                    except InferenceServerException as error:
                        refused.append(str(error.status()))
                        if error.status() == "503":
                            return
                        time.sleep(0.005)
                    except (OSError, EOFError) as error:
                        # Nobody listens any more, so this request was never accepted.
                        refused.append(type(error).__name__)
                        return
                    else:
                        answers.append(np.array_equal(got, wanted))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        while len(answers) < 20:
            time.sleep(0.01)
        os.kill(server.process.pid, signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert server.process.wait(30) == 0
        log = server.log.read_text()
    assert all(answers)
    assert set(refused) <= {"429", "503", "ConnectionRefusedError"}, refused
    assert log.count('"status": "OK"') == len(answers)
    assert "could not be served in time" not in log
