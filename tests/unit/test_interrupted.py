"""Tests commands that are stopped, that are killed, or that cannot write their files."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests import nets
from tvm_interop import scratch
from tvm_interop.measure.store import open_store

COMPILE = """
import signal, sys, time
import tvm_ffi
# A shell that runs the tests in the background has told its processes to ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
import tvm_interop.compiler.cpu as cpu
from tvm_interop.cli.app import run_app

def wait():
    print("here", flush=True)
    for _ in range(600):  # A signal between Python's last look and one long sleep would be missed.
        time.sleep(0.1)

def waits(module, target, path, **_):
    path.write_bytes(b"half a library")
    # TVM calls Python functions, such as passes. An interrupt in one of them must stay one.
    tvm_ffi.convert(wait)()

cpu.build_kernels = waits
sys.exit(run_app(["compile", "net.onnx", "-o", "out.tar", "--latency-db", ":memory:"]))
"""


@pytest.fixture
def stopped(tmp_path: Path) -> subprocess.Popen[str]:
    """A process that is in the middle of a compilation. Its folder for temporary files is `tmp`."""
    onnx.save(nets.chain(), tmp_path / "net.onnx")
    (tmp_path / "tmp").mkdir()
    started = subprocess.Popen(
        [sys.executable, "-c", COMPILE],
        cwd=tmp_path,
        env=os.environ
        | {
            "TMPDIR": str(tmp_path / "tmp"),
            "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ["PYTHONPATH"]]),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "here\n", started.communicate()
    assert list((tmp_path / "tmp").iterdir())
    return started


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "terminated"),
    ],
    ids=["Ctrl-C", "SIGTERM", "a closed terminal"],
)
def test_a_compilation_that_is_stopped_leaves_nothing(
    stopped: subprocess.Popen[str], tmp_path: Path, number: int, code: int, said: str
) -> None:
    stopped.send_signal(number)
    _, told = stopped.communicate(timeout=60)
    assert stopped.returncode == code
    assert told == f"tvm-interop: error: {said}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx", "tmp"]
    assert list((tmp_path / "tmp").iterdir()) == []


def old(folder: Path) -> Path:
    os.utime(folder, (0, 0))
    return folder


def test_what_a_killed_process_left_is_removed(
    stopped: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    (left,) = temporary.iterdir()
    (foreign := temporary / "other_tools").mkdir()
    (unlocked := temporary / f"{scratch.PREFIX}of_an_older_version").mkdir()
    for folder in (left, foreign, unlocked):
        old(folder)
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(temporary))
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(temporary))
    scratch._remove_those_of_the_dead.cache_clear()
    with scratch.scratch_folder():
        assert left.exists(), "a folder must stay while the process that made it lives"
    stopped.kill()
    stopped.communicate()
    scratch._remove_those_of_the_dead.cache_clear()
    with scratch.scratch_folder() as own:
        assert not left.exists()
        assert foreign.exists()
        assert unlocked.exists()
        assert own.exists()
    assert not own.exists()
    scratch._remove_those_of_the_dead.cache_clear()


def test_latencies_stay_in_memory_where_there_is_no_home(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("no folder")
    monkeypatch.delenv("TVM_INTEROP_LATENCY_DB", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    with caplog.at_level(logging.WARNING):
        store = open_store()
    assert store.path == ":memory:"
    assert "latencies are not kept in" in caplog.text
    assert "TVM_INTEROP_LATENCY_DB" in caplog.text


def test_a_database_that_was_named_must_be_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="file"):
        open_store(tmp_path / "file" / "latency.db")
    monkeypatch.setenv("TVM_INTEROP_LATENCY_DB", str(tmp_path / "file" / "latency.db"))
    with pytest.raises(OSError, match="file"):
        open_store()
