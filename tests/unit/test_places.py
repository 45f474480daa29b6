"""Tests that a path where no file can be written is refused before work begins."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.nets import Net, chain
from tvm_interop import DeviceError, InputError
from tvm_interop._native.library_path import library_path
from tvm_interop.atomic_file import check_place, replacing
from tvm_interop.checking.stream_program import Access, StreamOperator, StreamProgram
from tvm_interop.cli.app import run_app


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_place(pipe)
    with replacing(pipe) as place:
        Path(place).write_text("all of it")
    assert os.read(reader, 100) == b"all of it"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_dev_null_stays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if os.geteuid() == 0 and not os.access("/dev", os.W_OK):
        pytest.skip("the folder /dev cannot be written to")
    before = os.stat("/dev/null")
    with replacing("/dev/null") as place:
        assert place == "/dev/null", "a file in /dev would replace the device"
    assert os.stat("/dev/null").st_ino == before.st_ino


def test_places_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"is a folder: give the name of a file in it"):
        check_place(tmp_path)
    with pytest.raises(InputError, match=r"there is no folder `.*nowhere` to write"):
        check_place(tmp_path / "nowhere" / "model.tar")
    monkeypatch.setattr(os, "access", lambda *_: False)  # Root may write to each folder.
    with pytest.raises(InputError, match="may not be written to"):
        check_place(tmp_path / "model.tar")


def test_found_out_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(chain(2), tmp_path / "net.onnx")
    net, tar, folder = str(tmp_path / "net.onnx"), str(tmp_path / "net.tar"), str(tmp_path / "out")
    Path(folder).mkdir()
    assert run_app(["compile", net, "-o", tar, "--scheduler", "sequential"]) == 0
    for name in ("compiler.api._compilation", "execution.graph_module.GraphModule",
                 "perf.contest.hold", "compiler.api.new_compilation"):  # fmt: skip
        monkeypatch.setattr(f"tvm_interop.{name}", None)  # Work would fail.
    for arguments in (
        ["compile", net, "-o", folder],
        ["run", tar, "-o", folder],
        ["run", tar, "--profile", folder],
        ["tune", net, "-o", folder],
        ["schedule", net, "-o", folder],
        ["show", tar, "-o", folder, "--format", "svg"],
    ):
        assert run_app(arguments) == 2
        assert f"`{folder}` is a folder" in capsys.readouterr().err, arguments
    missing = str(tmp_path / "nowhere" / "all.svg")
    for arguments in (["perf", tar, "--picture", missing], ["check", tar, "-o", missing]):
        assert run_app(arguments) == 2
        assert "there is no folder" in capsys.readouterr().err


def test_pictures_are_utf8_in_every_locale(tmp_path: Path) -> None:
    operators = tuple(
        StreamOperator(name, name, (), (Access("x"),), ()) for name in ("r\u00e9seau", "b")
    )
    (tmp_path / "program.json").write_text(StreamProgram(operators=operators).to_json(), "utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "tvm_interop", "check", "program.json", "-o", "fault.svg", "--json"],
        cwd=tmp_path, check=False, capture_output=True,
        env=os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    assert "r\u00e9seau" in (tmp_path / "fault.svg").read_text("utf-8")


def test_names_of_files_need_not_be_utf8(tmp_path: Path) -> None:
    onnx.save(chain(2), tmp_path / "net.onnx")
    name = os.fsencode(tmp_path) + b"/net\xff.tar"
    command = [sys.executable, "-m", "tvm_interop"]
    for arguments in (["compile", "net.onnx", "--time-budget", "0", "-o", name], ["run", name]):
        ran = subprocess.run([*command, *arguments], cwd=tmp_path, check=False, capture_output=True)
        assert ran.returncode == 0, ran.stderr
        assert arguments[0] == "run" or b"wrote " + name in ran.stdout


def test_an_output_may_be_called_file(tmp_path: Path) -> None:
    net = Net()
    net.op("Relu", [net.input("x", [2, 3])], "file")
    onnx.save(net.model("file"), tmp_path / "net.onnx")
    tar, out = str(tmp_path / "net.tar"), str(tmp_path / "out.npz")
    assert run_app(["compile", str(tmp_path / "net.onnx"), "-o", tar, "--time-budget", "0"]) == 0
    assert run_app(["run", tar, "-o", out, "--fill-mode", "ones"]) == 0
    with np.load(out) as outputs:
        np.testing.assert_array_equal(outputs["file"], np.ones((2, 3), np.float32))


def test_a_damaged_file_of_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(chain(2), tmp_path / "net.onnx")
    tar, inputs = str(tmp_path / "net.tar"), tmp_path / "in.npz"
    net = str(tmp_path / "net.onnx")
    assert run_app(["compile", net, "-o", tar, "--scheduler", "sequential"]) == 0
    np.savez_compressed(inputs, x=np.random.default_rng(0).standard_normal(4096))
    data = bytearray(inputs.read_bytes())
    for i in range(100, 2000):
        data[i] ^= 0x5A
    inputs.write_bytes(data)
    assert run_app(["run", tar, "-i", str(inputs)]) == 2
    assert "is not an .npz file of plain arrays" in capsys.readouterr().err


def test_a_file_of_latencies_that_is_not_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)))
    database = ["--latency-db", str(tmp_path / "latency.db")]
    assert run_app(["db", "import", str(tmp_path / "binary"), *database]) == 2
    assert "is not a text in UTF-8" in capsys.readouterr().err


def test_a_port_that_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = ["--rpc-tracker", "localhost:99999", "--rpc-key", "mine"]
    assert run_app(["run", str(tmp_path / "net.tar"), *server]) == 2
    assert "the tracker is `localhost:99999`" in capsys.readouterr().err


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVM_INTEROP_LIBRARY", str(tmp_path / "nowhere.so"))
    with pytest.raises(DeviceError, match=r"nowhere\.so`, which TVM_INTEROP_LIBRARY names"):
        library_path()
