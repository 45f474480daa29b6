"""Tests requests that wait while their model is loaded again, unloaded, or the server stops."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nets import Net
from tests.served import Slow, direct, perceptron, rows, two_types
from tests.unit.test_server_executor import Gate, sequential
from tvm_interop import Artifact, compile
from tvm_interop.errors import ArtifactError, InputError, UnavailableError
from tvm_interop.serving import Server
from tvm_interop.serving.server.config import ServerConfig
from tvm_interop.serving.server.executor import Executor
from tvm_interop.serving.server.model import Model
from tvm_interop.serving.server.protocol import InferCall
from tvm_interop.serving.server.repository import Repository
from tvm_interop.serving.server.service import Service
from tvm_interop.serving.server.ticket import Waiter

THREADS_OF_ASYNCIO = min(32, (os.cpu_count() or 1) + 4)
"""The number of threads of `asyncio.to_thread`."""


def two_outputs(first: str, second: str) -> Artifact:
    """A model with an input `x` of 12 numbers and the outputs `twice` and `minus`, in a given
    order."""
    net = Net()
    x = net.input("x", [1, 12])
    net.op("Add", [x, x], "twice")
    net.op("Neg", [x], "minus")
    return compile(
        net.model(first, second), scheduler="sequential", streams=1, providers=["tvm"],
        latency_db=":memory:",
    )  # fmt: skip


class Held:
    """An executor whose model `net` runs one request, and holds this run until `go_on`."""

    def __init__(self, artifact: Artifact) -> None:
        model, self._gate = Slow("net", artifact), Gate()
        self.executor = Executor([model], sequential)
        model.gate = self._gate
        self.first = Waiter()
        self.executor.submit("net", {"x": rows(1)}, self.first)
        assert self._gate.entered.acquire(timeout=20)

    def while_held(self, change: Callable[[], None]) -> None:
        """Start `change` in a thread, allow the first run to end, and wait for the thread."""
        thread = threading.Thread(target=change, daemon=True)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive(), "a change waits for the run"
        self.go_on()
        thread.join(20)
        assert not thread.is_alive()

    def go_on(self) -> None:
        self._gate.open()


@pytest.fixture
def held() -> Iterator[Callable[[Artifact], Held]]:
    made: list[Held] = []

    def make(artifact: Artifact) -> Held:
        made.append(Held(artifact))
        return made[-1]

    yield make
    for each in made:
        each.go_on()
        each.executor.close(5.0)


def asked(executor: Executor, x: np.ndarray) -> Waiter:
    waiter = Waiter()
    executor.submit("net", {"x": x}, waiter)
    return waiter


def test_waiting_requests_run_on_the_new_model(held: Callable[[Artifact], Held]) -> None:
    each = held(perceptron())
    waiting = asked(each.executor, rows(2, 1))
    other = perceptron((1, 4, 8))
    each.while_held(lambda: each.executor.add(Model("net", other)))
    padded = np.concatenate([rows(2, 1), np.repeat(rows(2, 1)[-1:], 2, axis=0)])
    np.testing.assert_array_equal(waiting.outputs()[0], direct(other, {"x": padded})[0][:2])


def test_what_the_new_model_does_not_take_is_refused_alone(
    held: Callable[[Artifact], Held],
) -> None:
    each, new = held(perceptron()), Model("net", perceptron((1, 2)))
    large, small = asked(each.executor, rows(4)), asked(each.executor, rows(1))
    each.while_held(lambda: each.executor.add(new))
    with pytest.raises(InputError, match="batches of 1 to 2, got 4"):
        large.outputs()
    assert small.outputs()[0].shape == (1, 5)
    each.executor.add(Model("net", two_types()))
    assert each.executor.broken is None
    assert each.executor.in_flight == 0
    assert each.executor.waiting("net") == 0


def test_outputs_keep_their_names(held: Callable[[Artifact], Held]) -> None:
    """The new model gives the same outputs in another order."""
    each = held(two_outputs("twice", "minus"))
    service = Service(ServerConfig(policy="sequential"))
    service._executor = each.executor

    async def ask() -> dict[str, np.ndarray]:
        answer = asyncio.ensure_future(service.infer(InferCall("net", "", {"x": rows(1, 3)})))
        await asyncio.sleep(0)
        new = Model("net", two_outputs("minus", "twice"))
        await asyncio.to_thread(each.while_held, lambda: each.executor.add(new))
        return {spec.name: array for spec, array in (await answer).outputs}

    found = asyncio.run(ask())
    np.testing.assert_array_equal(found["twice"], 2 * rows(1, 3))
    np.testing.assert_array_equal(found["minus"], -rows(1, 3))


def test_a_change_ends_with_the_executor(held: Callable[[Artifact], Held]) -> None:
    each = held(perceptron())
    refused: list[Exception] = []

    def add() -> None:
        try:
            each.executor.add(Model("more", perceptron()))
        except UnavailableError as error:
            refused.append(error)

    changing = threading.Thread(target=add, daemon=True)
    changing.start()
    deadline = time.monotonic() + 20
    while not each.executor._is_paused:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not each.executor.drain(0.1)
    each.executor.close(0.1)
    each.go_on()
    changing.join(20)
    assert not changing.is_alive()
    add()
    assert ["shutting down" in str(error) for error in refused] == [True, True]


def test_loads_leave_large_requests_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large bodies are decoded in threads, which models that are being loaded must not occupy."""
    go_on, loads = threading.Event(), 2 * THREADS_OF_ASYNCIO

    def load(self: Repository, executor: Executor, name: str) -> None:
        assert go_on.wait(60)

    monkeypatch.setattr(Repository, "load", load)
    large = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 12], "data": [0.0] * 12}],
        "parameters": {"comment": "x" * 100_000},
    }
    with (
        Server({"net": perceptron()}, http_port=0, grpc_port=None, model_folder=tmp_path) as server,
        ThreadPoolExecutor(loads) as clients,
    ):

        def post(path: str, body: Any) -> int:
            url = f"http://{server.http_url}/v2/{path}"
            data = json.dumps(body).encode()
            request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=20) as response:
                return int(response.status)

        loading = [clients.submit(post, "repository/models/a/load", {}) for _ in range(loads)]
        time.sleep(0.5)  # The loads arrive.
        try:
            assert post("models/net/infer", large) == 200
            assert not any(each.done() for each in loading)
        finally:
            go_on.set()
        assert {each.result() for each in loading} == {200}


def test_a_file_of_the_folder_may_be_overwritten(tmp_path: Path) -> None:
    """A model keeps its weights while somebody copies the next file over the model's file."""
    file = tmp_path / "folder" / "net.tar"
    file.parent.mkdir()
    perceptron().save(file)
    old = file.read_bytes()
    call = InferCall("net", "", {"x": rows(1)})
    with Server({}, http_port=0, grpc_port=None, model_folder=file.parent) as server:
        assert server.service is not None
        service = server.service

        def answer() -> np.ndarray:
            return asyncio.run(service.infer(call)).outputs[0][1]

        asyncio.run(service.load_model("net"))
        wanted = direct(perceptron(), {"x": rows(1)})[0]
        np.testing.assert_array_equal(answer(), wanted)
        file.write_bytes(bytes(len(old)))
        np.testing.assert_array_equal(answer(), wanted)
        with pytest.raises(ArtifactError, match=re.escape(f"`{file}`: ")):
            asyncio.run(service.load_model("net"))
        np.testing.assert_array_equal(answer(), wanted)
        file.write_bytes(old)
        asyncio.run(service.load_model("net"))
        np.testing.assert_array_equal(answer(), wanted)
