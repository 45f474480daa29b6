"""Tests the options of the server, which come from a file, the command line or Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.served import perceptron
from tvm_interop.cli import names
from tvm_interop.cli.app import run_app
from tvm_interop.errors import DeviceError, InputError
from tvm_interop.serving import Server, ServerConfig
from tvm_interop.serving.server.choice import POLICIES
from tvm_interop.serving.server.config import read_config


def test_a_file_says_options_and_models(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    path = tmp_path / "serve.toml"
    path.write_text(
        'grpc_port = false\nmax_queue = 7\nmodel_folder = "models"\n[models]\nnet = "a/net.tar"\n'
    )
    config, models = read_config(path)
    assert (config.http_port, config.grpc_port, config.max_queue) == (8000, None, 7)
    assert config.model_folder == tmp_path / "models"
    assert models == {"net": tmp_path / "a" / "net.tar"}
    assert Server(config=path, max_queue=9).config.max_queue == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_que = 1", r"no option `max_que` \(did you mean `max_queue`\?\)"),
        ("max_queue = 0", "`max_queue` is 0"),
        ("http_port = 70000", "`http_port` is 70000"),
        ("http_port = false\ngrpc_port = false", "HTTP and gRPC are both turned off"),
        ('policy = "pos"', "compiled models run by their own plans"),
        ('policy = "top"', "needs agents trained for these models"),
        ("blocks = 0", "`blocks` is 0"),
        ('policy = "best"', "no policy `best`"),
        ('model_folder = "nothing"', "which is not a folder"),
        ("keep_alive_s = nan", "`keep_alive_s` is nan"),
        ("[models]\nnet = 1", "must be lines such as"),
        ("= 1", "not a TOML file"),
    ],
)
def test_files_of_no_use_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_config(path)


@pytest.mark.parametrize(
    ("models", "options", "said"),
    [
        ({}, {}, "nothing to serve"),
        ({"a/b": "x.tar"}, {}, "cannot be called 'a/b'"),
        ({"..": "x.tar"}, {}, r"cannot be called '\.\.'"),
        ({"a": "x.tar"}, {"host": ""}, "`host` is ''"),
        ({"a": "x.tar"}, {"port": 1}, "`Server` has no option `port`"),
    ],
)
def test_python_is_told_the_same(
    models: dict[str, str], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        Server(models, **options)


def test_without_its_libraries_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(DeviceError, match=r"tvm-interop\[serve\]"):
        Server({"a": "a.tar"})


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    perceptron().save(tmp_path / "net.tar")
    with Server({"net": tmp_path / "net.tar"}, http_port=0, grpc_port=0) as server:
        for options in ({"grpc_port": None}, {"http_port": None}):
            ports = {"http_port": server.http_port, "grpc_port": server.grpc_port, **options}
            named = r"cannot listen on .*: .*; choose another `(http|grpc)_port`"
            with pytest.raises(OSError, match=named):
                Server({"net": perceptron()}, **ports).start()


def test_a_model_that_does_not_load_ends_it(tmp_path: Path) -> None:
    (tmp_path / "net.tar").write_bytes(b"nothing")
    with pytest.raises(Exception, match=r"net\.tar"):
        Server({"net": tmp_path / "net.tar"}, http_port=0, grpc_port=0).start()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.tar", "b/a.tar"], "two artifacts are called `a`"),
        (["a.tar", "--name", "x", "--name", "y"], "2 names for 1 artifacts"),
        (["a.tar", "--log-level", "loud"], "--log-level `loud`"),
        (["a.tar", "--policy", "streems"], "did you mean `streams`"),
        ([], "nothing to serve"),
        (
            ["nothing.tar", "--http-port", "0", "--grpc-port", "0"],
            "`nothing.tar`: it is not a file",
        ),
    ],
)
def test_command_lines_of_no_use(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["serve", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_names_are_those_there_are() -> None:
    assert names.POLICIES == POLICIES


def test_help_waits_neither_for_tvm_nor_for_the_libraries() -> None:
    script = (
        "import sys; from tvm_interop.cli.app import run_app; run_app(['serve', '--help']); "
        "heavy = {'tvm', 'tvm_ffi', 'onnx', 'starlette', 'uvicorn', 'grpc', 'prometheus_client'}; "
        "print('imported', sorted(heavy & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--max-queue" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "imported []"


def test_options_have_their_defaults() -> None:
    config = ServerConfig()
    assert config.host == "127.0.0.1"
    assert config.model_folder is None
    assert config.choice.num_instances == 2
    assert ServerConfig(policy="sequential").choice.num_instances == 1
