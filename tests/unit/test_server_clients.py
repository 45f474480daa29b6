"""Tests the server with real clients: tritonclient over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.served import direct, perceptron, rows, two_types
from tvm_interop.serving import Server

PROTOCOLS = ("http", "grpc")
_SYNC: dict[str, Any] = {"http": tritonclient.http, "grpc": tritonclient.grpc}
_ASYNC: dict[str, Any] = {"http": tritonclient.http.aio, "grpc": tritonclient.grpc.aio}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    two_types().save(folder / "more.tar")
    (folder / "broken.tar").write_bytes(b"no artifact")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    models = {"net": perceptron(), "two": two_types()}
    with Server(models, http_port=0, grpc_port=0, model_folder=folder, policy="batching") as server:
        yield server


def url(server: Server, protocol: str) -> str:
    return server.http_url if protocol == "http" else server.grpc_url


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(server: Server, protocol: str) -> Iterator[Any]:
    with _SYNC[protocol].InferenceServerClient(url(server, protocol)) as client:
        yield client


def told(answer: Any, protocol: str) -> dict[str, Any]:
    """The answer of a client of either protocol, as a dictionary with numbers."""
    if protocol == "http":
        return dict(answer)
    from google.protobuf import json_format

    return dict(
        json_format.MessageToDict(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    )


def given(protocol: str, array: np.ndarray, name: str = "x", **options: Any) -> Any:
    kinds = {"float32": "FP32", "int64": "INT64"}
    made = _SYNC[protocol].InferInput(name, list(array.shape), kinds[str(array.dtype)])
    made.set_data_from_numpy(array, **options)
    return made


def test_health(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("net")
    assert client.is_model_ready("net", "1")


def test_metadata(client: Any, protocol: str) -> None:
    server = told(client.get_server_metadata(), protocol)
    assert server["name"] == "tvm_interop"
    assert {"statistics", "binary_tensor_data", "model_repository"} <= set(server["extensions"])
    net = told(client.get_model_metadata("net"), protocol)
    assert net["versions"] == ["1"]
    (x,) = net["inputs"]
    assert (x["name"], x["datatype"], [int(d) for d in x["shape"]]) == ("x", "FP32", [-1, 12])
    two = told(client.get_model_metadata("two", "1"), protocol)
    assert [(o["name"], o["datatype"]) for o in two["outputs"]] == [("s", "FP32"), ("t", "INT64")]


def test_configuration(client: Any, protocol: str) -> None:
    config = told(client.get_model_config("net"), protocol)
    config = config.get("config", config)
    assert config["max_batch_size"] == 4
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert [int(d) for d in config["input"][0]["dims"]] == [12]
    assert config["dynamic_batching"]["preferred_batch_size"] == [1, 2, 4]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_answers_are_those_of_the_graph_module(client: Any, protocol: str, count: int) -> None:
    got = client.infer("net", [given(protocol, rows(count))], request_id="mine")
    np.testing.assert_array_equal(got.as_numpy("y"), direct(perceptron(), {"x": rows(count)})[0])
    response = told(got.get_response(), protocol)
    assert response["id"] == "mine"


def test_several_inputs_and_chosen_outputs(client: Any, protocol: str) -> None:
    a, k = np.full((2, 3), 1.25, np.float32), np.arange(6).reshape(2, 3)
    inputs = [given(protocol, k, "k"), given(protocol, a, "a")]
    wanted = direct(two_types(), {"a": a, "k": k})
    got = client.infer("two", inputs)
    np.testing.assert_array_equal(got.as_numpy("s"), wanted[0])
    np.testing.assert_array_equal(got.as_numpy("t"), wanted[1])
    one = client.infer("two", inputs, outputs=[_SYNC[protocol].InferRequestedOutput("t")])
    np.testing.assert_array_equal(one.as_numpy("t"), wanted[1])
    assert one.as_numpy("s") is None


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ServerLive"])
def test_bytes_that_are_no_message_are_a_wrong_argument(server: Server, method: str) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        path, data = f"/inference.GRPCInferenceService/{method}", b"\xff\xff\xff"
        if method == "ModelStreamInfer":
            call = functools.partial(next, channel.stream_stream(path)(iter([data])))
        else:
            call = functools.partial(channel.unary_unary(path), data)
        with pytest.raises(grpc.RpcError, match=r"the bytes are not a `.*Request`") as refused:
            call()
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_json_gives_the_same_bits(server: Server, binary_in: bool, binary_out: bool) -> None:
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        got = client.infer(
            "net",
            [given("http", rows(2), binary_data=binary_in)],
            outputs=[tritonclient.http.InferRequestedOutput("y", binary_data=binary_out)],
        )
    assert ("data" in got.get_response()["outputs"][0]) is not binary_out
    np.testing.assert_array_equal(got.as_numpy("y"), direct(perceptron(), {"x": rows(2)})[0])


def test_large_bodies(server: Server) -> None:
    """Large bodies are read and written by other threads than the thread of the event loop."""
    x = rows(4)
    text = json.dumps({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [4, 12], "data": x.tolist()}],
        "parameters": {"comment": "x" * 100_000},
    })  # fmt: skip
    answer = json.loads(post(server, "/v2/models/net/infer", text.encode()))
    np.testing.assert_array_equal(
        np.array(answer["outputs"][0]["data"], np.float32).reshape(4, 5),
        direct(perceptron(), {"x": x})[0],
    )


def test_values_in_messages_of_grpc(server: Server) -> None:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="net")
    added = request.inputs.add(name="x", datatype="FP32", shape=[1, 12])
    added.contents.fp32_contents.extend(rows(1)[0].tolist())
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        response = stub.ModelInfer(request)
        got = np.frombuffer(response.raw_output_contents[0], np.float32).reshape(1, 5)
        np.testing.assert_array_equal(got, direct(perceptron(), {"x": rows(1)})[0])
        request.raw_input_contents.append(bytes(48))
        with pytest.raises(grpc.RpcError, match="both `contents` and `raw_input_contents`"):
            stub.ModelInfer(request)
        with pytest.raises(grpc.RpcError) as refused:
            stub.SystemSharedMemoryStatus(service_pb2.SystemSharedMemoryStatusRequest())
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_shared_memory_is_refused_by_name(client: Any, protocol: str) -> None:
    """A request for shared memory must be refused. If the server sent the bytes in its answer
    instead, the client would ignore them and read old bytes from its shared memory."""
    x = _SYNC[protocol].InferInput("x", [1, 12], "FP32")
    x.set_shared_memory("region", 48)
    y = _SYNC[protocol].InferRequestedOutput("y")
    y.set_shared_memory("region", 20)
    refused = r"put `[xy]`: this server has no shared memory with its clients: send tensors"
    for inputs, outputs in (([x], None), ([given(protocol, rows(1))], [y])):
        with pytest.raises(InferenceServerException, match=refused):
            client.infer("net", inputs, outputs=outputs)
    for ask in (
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
        client.unregister_system_shared_memory,
        lambda: client.register_system_shared_memory("region", "/region", 48),
    ):
        with pytest.raises(InferenceServerException, match="has no shared memory with its clients"):
            ask()


def test_asynchronous_clients(server: Server, protocol: str) -> None:
    async def ask() -> list[np.ndarray]:
        library = _ASYNC[protocol]
        async with library.InferenceServerClient(url(server, protocol)) as client:
            answers = await asyncio.gather(
                *(client.infer("net", [given(protocol, rows(4, i))]) for i in range(8))
            )
        return [answer.as_numpy("y") for answer in answers]

    for i, got in enumerate(asyncio.run(ask())):
        np.testing.assert_array_equal(got, direct(perceptron(), {"x": rows(4, i)})[0])


def test_streams_of_grpc(server: Server) -> None:
    answers: list[Any] = []
    done = threading.Semaphore(0)

    def take(result: Any, error: Any) -> None:
        answers.append(error or result.as_numpy("y"))
        done.release()

    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(take)
        for name in ("net", "nett", "net"):
            client.async_stream_infer(name, [given("grpc", rows(1))])
        for _ in range(3):
            assert done.acquire(timeout=20)
        client.stop_stream()
    assert isinstance(answers[1], InferenceServerException)
    for i in (0, 2):
        np.testing.assert_array_equal(answers[i], direct(perceptron(), {"x": rows(1)})[0])


def test_statistics_count(client: Any, protocol: str) -> None:
    def stats() -> dict[str, Any]:
        (row,) = told(client.get_inference_statistics("net"), protocol)["model_stats"]
        return dict(row)

    def count(row: dict[str, Any], part: str) -> int:
        return int(row["inference_stats"][part]["count"])

    before = stats()
    for _ in range(3):
        client.infer("net", [given(protocol, rows(2))])
    with pytest.raises(InferenceServerException):
        client.infer("net", [given(protocol, rows(5))])
    after = stats()
    assert count(after, "success") - count(before, "success") == 3
    assert int(after["inference_count"]) - int(before["inference_count"]) == 6
    assert int(after["inference_stats"]["compute_infer"]["ns"]) > 0
    assert any(int(batch["batch_size"]) == 2 for batch in after["batch_stats"])
    everything = told(client.get_inference_statistics(), protocol)["model_stats"]
    assert {row["name"] for row in everything} >= {"net", "two"}


def test_models_of_the_folder_come_and_go(client: Any, protocol: str) -> None:
    index = client.get_model_repository_index()
    rows_ = index if protocol == "http" else told(index, protocol)["models"]
    states = {row["name"]: row["state"] for row in rows_}
    assert states == {
        "broken": "UNAVAILABLE", "more": "UNAVAILABLE", "net": "READY", "two": "READY",
    }  # fmt: skip
    client.load_model("more")
    assert client.is_model_ready("more")
    client.unload_model("more")
    assert not client.is_model_ready("more")
    with pytest.raises(InferenceServerException, match="no model `more`"):
        client.get_model_metadata("more")
    with pytest.raises(InferenceServerException, match="broken"):
        client.load_model("broken")


def test_a_model_is_loaded_as_it_is(client: Any) -> None:
    """The server cannot take a configuration, so it must not answer as if it had taken it."""
    content = bytes(2**17)
    for options in (
        {"config": "{}"},
        {"config": "{}", "files": {"file:1/model.onnx": b"a"}},
        {"config": "{}", "files": {"file:1/model.onnx": content}},
    ):
        with pytest.raises(InferenceServerException, match="loads artifacts of its model folder"):
            client.load_model("more", **options)
    assert not client.is_model_ready("more")


@pytest.mark.parametrize(
    "name", ["../more", "..", "more/../more", "/etc/passwd", "nothing", "a\0b"]
)
def test_names_do_not_leave_the_folder(server: Server, name: str) -> None:
    with (
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as client,
        pytest.raises(InferenceServerException, match=r"cannot be called|folder has no"),
    ):
        client.load_model(name)


def test_links_do_not_leave_the_folder(server: Server, folder: Path, tmp_path: Path) -> None:
    two_types().save(tmp_path / "outside.tar")
    (folder / "link.tar").symlink_to(tmp_path / "outside.tar")
    try:
        with (
            tritonclient.http.InferenceServerClient(server.http_url) as client,
            pytest.raises(InferenceServerException, match="folder has no"),
        ):
            client.load_model("link")
    finally:
        (folder / "link.tar").unlink()


@pytest.mark.parametrize(
    ("model", "array", "name", "said", "http", "grpc"),
    [
        ("nett", rows(1), "x", "no model `nett`", "404", "NOT_FOUND"),
        ("net", rows(1), "z", "no input `z`", "400", "INVALID_ARGUMENT"),
        ("net", rows(5), "x", "batches of 1 to 4", "400", "INVALID_ARGUMENT"),
        ("net", rows(1)[:, :3], "x", r"shape \(1, 3\)", "400", "INVALID_ARGUMENT"),
        ("net", np.ones((1, 12), np.int64), "x", "got int64", "400", "INVALID_ARGUMENT"),
    ],
)
def test_errors_of_the_protocol(
    client: Any, protocol: str, model: str, array: np.ndarray, name: str, said: str, http: str,
    grpc: str,
) -> None:  # fmt: skip
    with pytest.raises(InferenceServerException, match=said) as refused:
        client.infer(model, [given(protocol, array, name)])
    assert refused.value.status() == (http if protocol == "http" else f"StatusCode.{grpc}")


@pytest.mark.parametrize(
    ("options", "said"),
    [({"priority": 99}, "`priority` is 99"), ({"sequence_id": 7}, "no state between requests")],
)
def test_parameters_of_no_use(
    client: Any, protocol: str, options: dict[str, int], said: str
) -> None:
    with pytest.raises(InferenceServerException, match=said):
        client.infer("net", [given(protocol, rows(1))], **options)


def test_deadlines_of_clients(client: Any, protocol: str) -> None:
    with pytest.raises(InferenceServerException, match=r"in the 0\.0 ms that the client allows"):
        client.infer("net", [given(protocol, rows(1))], timeout=1)
    client.infer("net", [given(protocol, rows(1))], timeout=60_000_000, priority=1)


def test_metrics(server: Server) -> None:
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        client.infer("two", [
            given("http", np.ones((2, 3), np.float32), "a"),
            given("http", np.ones((2, 3), np.int64), "k"),
        ])  # fmt: skip
    with urllib.request.urlopen(f"http://{server.http_url}/metrics") as response:
        text = response.read().decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['tvm_interop_requests_total{model="two",outcome="served"}']) >= 1
    assert float(lines['tvm_interop_run_seconds_count{model="two"}']) >= 1
    assert float(lines['tvm_interop_waiting{model="two"}']) == 0
    assert float(lines['tvm_interop_model_bytes{kind="weights",model="net"}']) > 2000
    assert "process_open_fds" in lines


def test_ids_come_back_and_are_logged(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    body = json.dumps({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 12], "data": [0.5] * 12}]
    }).encode()  # fmt: skip
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/net/infer", body, {"X-Request-Id": "from-a-proxy"}
    )
    with (
        caplog.at_level("INFO", "tvm_interop.serving.requests"),
        urllib.request.urlopen(request) as response,
    ):
        assert response.headers["X-Request-Id"] == "from-a-proxy"
    logged = [json.loads(record.getMessage()) for record in caplog.records]
    (line,) = [line for line in logged if line["request_id"] == "from-a-proxy"]
    assert (line["model"], line["status"], line["protocol"]) == ("net", "OK", "http")
    assert line["took_us"] >= line["queue_us"] + line["run_us"]


def post(server: Server, path: str, body: bytes, **headers: str) -> bytes:
    request = urllib.request.Request(f"http://{server.http_url}{path}", body, headers)
    with urllib.request.urlopen(request) as response:
        return bytes(response.read())
