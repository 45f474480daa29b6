"""Tests who may use a server: web pages, other host names, and clients without its token."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import queue
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.served import direct, perceptron, rows, two_types
from tvm_interop.cli.app import run_app
from tvm_interop.errors import AccessError, InputError, TokenError
from tvm_interop.serving import Server, ServerConfig
from tvm_interop.serving.server.access import Access, is_loopback
from tvm_interop.serving.server.config import read_config

_BODY = json.dumps({
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 12], "data": [0.5] * 12}]
}).encode()  # fmt: skip
_TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    two_types().save(folder / "two.tar")
    options: dict[str, Any] = {
        "model_folder": folder, "policy": "sequential", "allowed_hosts": ["models.example"],
        "allowed_origins": ["https://page.example"],
    }  # fmt: skip
    with Server({"net": perceptron()}, http_port=0, grpc_port=0, **options) as server:
        yield server


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(_TOKEN + "\n")
    options: dict[str, Any] = {"policy": "sequential", "token_file": path}
    with Server({"net": perceptron()}, http_port=0, grpc_port=0, **options) as server:
        yield server


def ask(
    server: Server, path: str, headers: dict[str, str], body: bytes | None = _BODY
) -> tuple[int, str]:
    """The status and the text of an answer to a request with exactly these headers."""
    assert server.http_port is not None
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
    try:
        connection.putrequest("GET" if body is None else "POST", path, skip_host=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


INFER = "/v2/models/net/infer"
UNLOAD = "/v2/repository/models/net/unload"


@pytest.mark.parametrize("path", [INFER, UNLOAD, "/v2/repository/index"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        # Web pages of other origins, with various headers.
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "https://evil.example", "Content-Type": "text/plain"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        # A host name that points to the loopback address.
        ({"Host": "evil.example:8000"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "evil.example@127.0.0.1"}, 403),
        ({"Host": "[::1"}, 403),
        # Types of content that HTML forms send.
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "Text/Plain; charset=utf-8"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
    ],
)  # fmt: skip
def test_web_pages_and_other_names_are_refused(
    server: Server, path: str, headers: dict[str, str], status: int
) -> None:
    got, said = ask(server, path, {"Host": "localhost", **headers})
    assert got == status, said
    assert json.loads(said)["error"]
    assert server.service is not None
    assert "net" in server.service.executor.models


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "127.0.0.1:8000"},
        {"Host": "LOCALHOST:9"},
        {"Host": "[::1]:8000"},
        {"Host": "192.168.1.7"},
        {"Host": "Models.Example:80"},
        {"Host": "localhost:8000", "Origin": "http://localhost:8000"},
        {"Host": "models.example", "Origin": "https://models.example"},
        {"Host": "localhost", "Origin": "https://page.example"},
        {"Host": "localhost", "Content-Type": "application/json; charset=utf-8"},
        {"Host": "localhost", "Content-Type": "application/octet-stream"},
        {"Host": "localhost", "Content-Type": "application/x-www-form-urlencoded"},
    ],
)
def test_clients_and_pages_of_ones_own_are_served(server: Server, headers: dict[str, str]) -> None:
    status, said = ask(server, INFER, headers)
    assert status == 200, said
    got = np.array(json.loads(said)["outputs"][0]["data"], np.float32).reshape(1, 5)
    x = np.full((1, 12), 0.5, np.float32)
    np.testing.assert_array_equal(got, direct(perceptron(), {"x": x})[0])


@pytest.mark.parametrize("origin", ["https://page.example", "https://evil.example"])
def test_a_browser_lets_only_pages_of_allowed_origins_read_answers(
    server: Server, origin: str
) -> None:
    """A browser asks by OPTIONS before a page sends JSON, and a page reads what a header allows."""
    assert server.http_port is not None
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    allowed = []
    for method, body, headers in (
        ("OPTIONS", None, asks),
        ("POST", _BODY, {"Content-Type": "application/json"}),
    ):
        connection.request(method, INFER, body, {"Origin": origin, **headers})
        response = connection.getresponse()
        response.read()
        is_told = response.getheader("Access-Control-Allow-Origin") == origin
        allowed.append(response.status == 200 and is_told)
    connection.close()
    assert allowed == [origin == "https://page.example"] * 2


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_clients_reach_an_address_of_ipv6() -> None:
    given = tritonclient.grpc.InferInput("x", [1, 12], "FP32")
    given.set_data_from_numpy(rows(1))
    wanted = direct(perceptron(), {"x": rows(1)})[0]
    options: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "policy": "sequential"}
    with Server({"net": perceptron()}, host="::1", **options) as server:
        assert server.http_url == f"[::1]:{server.http_port}"
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            np.testing.assert_array_equal(client.infer("net", [given]).as_numpy("y"), wanted)
        with urllib.request.urlopen(f"http://{server.http_url}/v2/health/ready") as answer:
            assert answer.status == 200


def test_beyond_the_loopback_names_are_taken_but_pages_are_not() -> None:
    beyond = Access("0.0.0.0", None, (), None)
    beyond.check_http("/v2", {"host": "net.default.svc.cluster.local"})
    beyond.check_http("/v2", {"host": "10.0.0.1", "origin": "http://10.0.0.1"})
    # The owner of a web page can let the name `evil.example` point to the address of this server.
    with pytest.raises(AccessError, match="allowed_origins"):
        beyond.check_http("/v2", {"host": "evil.example", "origin": "http://evil.example"})
    named = Access("0.0.0.0", ["mine.example"], (), None)
    named.check_http("/v2", {"host": "mine.example", "origin": "http://mine.example"})
    with pytest.raises(AccessError, match="allowed_hosts"):
        named.check_http("/v2", {"host": "net.default.svc.cluster.local"})
    Access("127.0.0.1", ["*"], ["*"], None).check_http("/", {"host": "a", "origin": "http://b"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer a-token"}, 401),
        ({"Authorization": f"Bearer {_TOKEN}x"}, 401),
        ({"Authorization": "Bearer t\xf6ken"}, 401),
        ({"Authorization": f"Basic {_TOKEN}"}, 401),
        ({"Authorization": f"Bearer {_TOKEN}"}, 200),
        ({"authorization": f"bearer {_TOKEN}"}, 200),
    ],
)
def test_a_token_over_http(locked: Server, headers: dict[str, str], status: int) -> None:
    for path, body in ((INFER, _BODY), ("/v2/models/net", None), ("/metrics", None)):
        got, said = ask(locked, path, {"Host": "localhost", **headers}, body)
        assert got == status, said
        assert _TOKEN not in said
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert ask(locked, path, {"Host": "localhost", **headers}, None)[0] == 200


def test_a_token_over_grpc(locked: Server) -> None:
    given = tritonclient.grpc.InferInput("x", [1, 12], "FP32")
    given.set_data_from_numpy(rows(1))
    right = {"authorization": f"Bearer {_TOKEN}"}
    with tritonclient.grpc.InferenceServerClient(locked.grpc_url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        for headers in ({}, {"authorization": "Bearer wrong"}):
            for call in (
                lambda headers: client.infer("net", [given], headers=headers),
                lambda headers: client.get_model_metadata("net", headers=headers),
                lambda headers: client.unload_model("net", headers=headers),
            ):
                with pytest.raises(InferenceServerException) as refused:
                    call(headers)
                assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        got = client.infer("net", [given], headers=right).as_numpy("y")
    np.testing.assert_array_equal(got, direct(perceptron(), {"x": rows(1)})[0])


def test_a_token_over_streams_of_grpc(locked: Server) -> None:
    given = tritonclient.grpc.InferInput("x", [1, 12], "FP32")
    given.set_data_from_numpy(rows(1))
    for headers, served in (({}, False), ({"authorization": f"Bearer {_TOKEN}"}, True)):
        answers: queue.Queue[Any] = queue.Queue()
        with tritonclient.grpc.InferenceServerClient(locked.grpc_url) as client:
            client.start_stream(
                lambda result, error, answers=answers: answers.put(error or result),
                headers=headers,
            )
            # The server may have refused the stream already.
            with contextlib.suppress(InferenceServerException):
                client.async_stream_infer("net", [given])
            answer = answers.get(timeout=20)
            client.stop_stream()
        assert isinstance(answer, InferenceServerException) is not served


def test_clients_of_triton_send_a_token(locked: Server) -> None:
    given = tritonclient.http.InferInput("x", [1, 12], "FP32")
    given.set_data_from_numpy(rows(1))
    with tritonclient.http.InferenceServerClient(locked.http_url) as client:
        got = client.infer("net", [given], headers={"Authorization": f"Bearer {_TOKEN}"})
        with pytest.raises(InferenceServerException, match="requires a token"):
            client.infer("net", [given])
    np.testing.assert_array_equal(got.as_numpy("y"), direct(perceptron(), {"x": rows(1)})[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"token": ""}, "`token` holds no token"),
        ({"token": "two words"}, "`token` holds no token"),
        ({"token": "t\xf6ken"}, "`token` holds no token"),
        ({"token": "a", "token_file": "b"}, "give one"),
        ({"allowed_hosts": "a.example"}, "`allowed_hosts` is 'a.example'"),
        ({"allowed_origins": [1]}, r"`allowed_origins` is \[1\]"),
    ],
)
def test_options_of_no_use(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ServerConfig(**options)


@pytest.mark.parametrize("text", [None, "", "two words\n"])
def test_files_without_a_token(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match="token"):
        _ = ServerConfig(token_file=path).access


def test_a_configuration_says_them(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(_TOKEN)
    path = tmp_path / "serve.toml"
    path.write_text('token_file = "secret"\nallowed_hosts = ["a.example"]\n')
    config, _ = read_config(path)
    config.access.check_token(f"Bearer {_TOKEN}")
    with pytest.raises(TokenError):
        config.access.check_token(None)
    assert _TOKEN not in repr(ServerConfig(token=_TOKEN))


@pytest.mark.parametrize(
    ("arguments", "file", "environment", "token"),
    [
        ([], "", None, None),
        ([], "", "of-the-environment", "of-the-environment"),
        ([], 'token = "of-the-file"', "of-the-environment", "of-the-file"),
        (["--token-file", "secret"], 'token = "of-the-file"', "of-the-environment", _TOKEN),
    ],
)
def test_which_token_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], file: str,
    environment: str | None, token: str | None,
) -> None:  # fmt: skip
    made: list[ServerConfig] = []
    monkeypatch.setattr(Server, "run", lambda self: made.append(self.config) or 0)
    monkeypatch.setattr("tvm_interop.serving.server.server.log_to_stderr", lambda level: None)
    monkeypatch.delenv("TVM_INTEROP_TOKEN", raising=False)
    if environment is not None:
        monkeypatch.setenv("TVM_INTEROP_TOKEN", environment)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(_TOKEN)
    (tmp_path / "serve.toml").write_text(f'{file}\n[models]\nnet = "net.tar"\n')
    assert run_app(["serve", "--config", "serve.toml", *arguments]) == 0
    access = made[0].access
    if token is None:
        access.check_token(None)
    else:
        access.check_token(f"Bearer {token}")
        with pytest.raises(TokenError):
            access.check_token(None)


def test_a_token_of_the_environment_that_is_empty_is_no_open_door(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TVM_INTEROP_TOKEN", "")
    assert run_app(["serve", "a.tar"]) == 2
    assert "`token` holds no token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({"host": "0.0.0.0"}, "can use the models, because"),
        (
            {"host": "0.0.0.0", "model_folder": "."},
            "and load and unload the models of the model folder",
        ),
        ({"host": "0.0.0.0", "token": _TOKEN}, None),
        ({}, None),
    ],
)
def test_an_open_server_says_so(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], warns: str | None
) -> None:
    with (
        caplog.at_level(logging.WARNING, "tvm_interop.serving"),
        Server({"net": perceptron()}, http_port=0, grpc_port=None, policy="sequential", **options),
    ):
        pass
    said = [r.getMessage() for r in caplog.records if "can use the models" in r.getMessage()]
    assert len(said) == (warns is not None)
    assert warns is None or warns in said[0]


def test_loads_need_a_folder(locked: Server) -> None:
    headers = {"Host": "localhost", "Authorization": f"Bearer {_TOKEN}"}
    assert ask(locked, UNLOAD, headers, b"")[0] == 503


@pytest.mark.parametrize(
    ("host", "is_one"),
    [
        ("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("LocalHost", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("box", False),
    ],
)  # fmt: skip
def test_what_is_the_loopback(host: str, is_one: bool) -> None:
    assert is_loopback(host) is is_one
