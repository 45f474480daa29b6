"""Tests replicas of the server on a local Ray."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.served import direct, perceptron, rows
from tvm_interop.errors import DeviceError, InputError
from tvm_interop.serving.ray import application


@pytest.mark.parametrize(
    ("models", "options", "said"),
    [
        ({}, {}, "nothing to serve"),
        ({"a/b": "x.tar"}, {}, "cannot be called"),
        ({"a": "x.tar"}, {"host": "0.0.0.0"}, "`host` cannot be set for replicas"),
        ({"a": "x.tar"}, {"model_folder": "."}, "models are fixed"),
        ({"a": "x.tar"}, {"max_que": 1}, "did you mean `max_queue`"),
    ],
)
def test_options_of_no_use(
    models: dict[str, str], options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray.serve", reason="Ray is not installed (extra `ray`)")
    with pytest.raises(InputError, match=said):
        application(models, **options)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeviceError, match=r"tvm-interop\[ray\]"):
        application({"a": "a.tar"})


PORT = 18431


@pytest.fixture(scope="module")
def two_replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra `ray`)")
    serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed (extra `ray`)")
    folder = tmp_path_factory.mktemp("ray")
    perceptron().save(folder / "net.tar")
    root = str(Path(__file__).parents[2])
    ray.init(
        num_cpus=4, include_dashboard=False, configure_logging=False,
        object_store_memory=100 * 2**20, runtime_env={"env_vars": {"PYTHONPATH": root}},
    )  # fmt: skip
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        app = application(
            {"net": folder / "net.tar"}, policy="batching",
            deployment={"num_replicas": 2, "ray_actor_options": {"num_cpus": 1}},
        )  # fmt: skip
        serve.run(app, name="models")
        yield f"127.0.0.1:{PORT}"
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.mark.slow
def test_a_replica_dies_under_load(two_replicas: str) -> None:
    """Ray refuses the requests of the dead replica.

    No answer is wrong, and a new replica starts.
    """
    import ray

    def replicas() -> dict[str, str]:
        """The names of the living actors of replicas, with their namespaces."""
        named = ray.util.list_named_actors(all_namespaces=True)
        return {a["name"]: a["namespace"] for a in named if "REPLICA" in a["name"].upper()}

    wanted = direct(perceptron(), {"x": rows(1)})[0]
    stop = threading.Event()
    answers: list[np.ndarray] = []
    refused: Counter[str] = Counter()

    def ask() -> None:
        with tritonclient.http.InferenceServerClient(two_replicas) as client:
            given = tritonclient.http.InferInput("x", [1, 12], "FP32")
            given.set_data_from_numpy(rows(1))
            while not stop.is_set():
                try:
                    answers.append(client.infer("net", [given]).as_numpy("y"))
                except InferenceServerException as error:
                    refused[str(error.status())] += 1

    with tritonclient.http.InferenceServerClient(two_replicas) as client:
        assert client.is_server_ready()
        assert client.get_model_config("net")["max_batch_size"] == 4
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        _until(lambda: len(answers) > 50)
        alive = replicas()
        assert len(alive) == 2
        victim, namespace = next(iter(alive.items()))
        ray.kill(ray.get_actor(victim, namespace=namespace), no_restart=True)
        before = len(answers)
        _until(lambda: len(answers) > before + 100)
        _until(lambda: len(replicas()) == 2 and victim not in replicas(), 90)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for got in answers:
        np.testing.assert_array_equal(got, wanted)
    print(json.dumps({"served": len(answers), "refused": dict(refused)}))
    # At most the requests that the four clients had sent to the dead replica are refused.
    assert sum(refused.values()) <= 4
    assert set(refused) <= {"500", "503"}


def _until(condition: Any, limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
