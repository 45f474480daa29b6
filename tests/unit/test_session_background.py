"""Tests sessions that answer before their model is compiled in full."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.forks import in_forked_child
from tests.nets import branches, chain, feeds
from tvm_interop import InputError, Session
from tvm_interop.session import background
from tvm_interop.session.compiled_once import Order

QUICK = {"scheduler": "sequential", "latency_db": ":memory:"}
IN_BACKGROUND = {**QUICK, "compile_in_background": True}
PATIENT_S = 120

FAILS = """
import sys
sys.stderr.write("it is full")
{how}
"""
WAITS = """
import os, sys, time
open({mark!r}, "w").write(str(os.getpid()))
while os.read(0, 1 << 20):
    pass
"""
ANSWERS = """
import json, os, sys, time
from pathlib import Path
while not Path({gate!r}).exists():
    time.sleep(0.01)
os.write(1, json.dumps({{"path": {path!r}, "is_kept": False}}).encode())
os.close(1)
while os.read(0, 1 << 20):
    pass
"""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    return tmp_path / "kept" / "artifacts"


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The program of the process that compiles. Each test adds the text of a program to the
    list."""
    program: list[str] = []
    monkeypatch.setattr(background, "_command", lambda: [sys.executable, "-c", *program])
    return program


def gated(child: list[str], tmp_path: Path, model: onnx.ModelProto, **options: object) -> Path:
    """A process that delivers an artifact of `model` as soon as the returned file exists."""
    path = tmp_path / "given.tar"
    tvm_interop.compile(model, **QUICK, **options, out=path)
    child.append(ANSWERS.format(gate=str(tmp_path / "gate"), path=str(path)))
    return tmp_path / "gate"


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "State:\tZ" not in status


def wait_for(ended: object, what: str) -> None:
    until = time.monotonic() + PATIENT_S
    while not ended():  # type: ignore[operator]
        assert time.monotonic() < until, what
        time.sleep(0.02)


@pytest.mark.parametrize("given", ["bytes", "weights beside it"])
def test_the_first_answer_comes_before_the_whole_artifact(
    tmp_path: Path, kept: Path, given: str
) -> None:
    """In this test, the background process really compiles."""
    model, path = branches(), tmp_path / "net.onnx"
    onnx.save(branches(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    source = model.SerializeToString() if given == "bytes" else path
    with Session(source, **IN_BACKGROUND) as session:
        first = session.run(None, feeds(model))
        assert session.path is None
        (state,) = session.states
        assert (state.runs_on, state.shapes, state.error) == ("quick", {}, None)
        assert session.wait_until_compiled(PATIENT_S), session.states
        (state,) = session.states
        assert (state.runs_on, state.background) == ("whole", "done")
        assert session.path is not None
        assert session.path.parent == kept
        later = session.run(None, feeds(model))
        with Session(session.path) as whole:
            wanted = whole.run(None, feeds(model))
    for one, other, early in zip(later, wanted, first, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(early, other, rtol=1e-4, atol=1e-5)
    assert {file.name for file in kept.iterdir()} == {session.path.name, ".compiling"}
    with Session(source, **IN_BACKGROUND) as again:
        assert again.path == session.path
        assert [state.runs_on for state in again.states] == ["whole"]
    assert Session(source, **QUICK).path == session.path


def test_each_new_shape(kept: Path) -> None:
    model = branches(batch="batch")
    with Session(model, **IN_BACKGROUND) as session:
        assert session.states == []
        for size in (2, 1, 2):
            x = np.ones((size, 8, 8, 8), "float32")
            assert session.run(None, {"x": x})[0].shape[0] == size
        assert [state.shapes for state in session.states] == [
            {"x": (2, 8, 8, 8)}, {"x": (1, 8, 8, 8)},
        ]  # fmt: skip
        assert session.wait_until_compiled(PATIENT_S), session.states
        assert [state.runs_on for state in session.states] == ["whole", "whole"]
        later = session.run(None, {"x": x})
    with Session(model, **QUICK) as whole:
        for one, other in zip(later, whole.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(one, other)
        assert whole.path is not None
    assert len(list(kept.glob("*.tar"))) == 2


def test_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_INTEROP_KEPT", "")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Session(branches(), **IN_BACKGROUND) as session:
        assert session.wait_until_compiled(PATIENT_S), session.states
        session.run(None, feeds(branches()))
        wait_for(lambda: not list(tmp_path.glob("*/model.tar")), "the file is not removed")


def test_runs_in_flight_end_and_memory_comes_back(child: list[str], tmp_path: Path) -> None:
    model = branches()
    gate = gated(child, tmp_path, model)
    wanted = tvm_interop.GraphModule(tmp_path / "given.tar")(*feeds(model).values())
    with Session(model, **IN_BACKGROUND, instances=2) as session:
        assert session._pool is not None
        old = [weakref.ref(session._pool.first), weakref.ref(session._pool.artifact)]
        wrong: list[str] = []
        is_over = threading.Event()

        def work() -> None:
            while not is_over.is_set():
                for one, other in zip(session.run(None, feeds(model)), wanted, strict=True):
                    if not np.allclose(one, other.numpy(), rtol=1e-4, atol=1e-5):
                        wrong.append("another answer")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        gate.touch()
        assert session.wait_until_compiled(PATIENT_S), session.states
        future = session.run_async(None, feeds(model))
        is_over.set()
        for thread in threads:
            thread.join()
        assert not wrong
        for one, other in zip(future.result(), wanted, strict=True):
            np.testing.assert_array_equal(one, other.numpy())
        gc.collect()
        assert [each() for each in old] == [None, None]
        assert len(session.profile(feeds(model))) > 0


def test_a_binding_follows(child: list[str], tmp_path: Path) -> None:
    model = branches()
    gate = gated(child, tmp_path, model, providers=["tvm"])
    (x,) = feeds(model).values()
    with Session(model, **IN_BACKGROUND) as session:
        binding = session.io_binding()
        given = tvm_interop.aligned_empty(x.shape, "float32")
        given[...] = x
        binding.bind_cpu_input("x", given)
        name = session.outputs[0].name
        out = binding.bind_output(name)
        session.run_with_iobinding(binding)
        quick = out.copy()
        gate.touch()
        assert session.wait_until_compiled(PATIENT_S), session.states
        given *= 2
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(out, session.run([name], {"x": given})[0])
        assert binding.get_outputs()[0].ctypes.data == out.ctypes.data
        assert repr(binding).startswith("Binding(in place: x, y;")
        assert not np.array_equal(out, quick)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("os = __import__('os'); os.kill(os.getpid(), 9)", "ended by SIGKILL: it is full"),
        ("sys.exit(3)", "ended with status 3: it is full"),
        ("""print('{"error": "no kernel is right"}')""", "no kernel is right"),
        ("""print('{"path": "gone.tar", "is_kept": false}')""", "gone.tar"),
    ],
    ids=["killed", "ended", "error", "no file"],
)
def test_a_failure_is_told_once(
    child: list[str], caplog: pytest.LogCaptureFixture, how: str, told: str
) -> None:
    child.append(FAILS.format(how=how))
    with Session(branches(), **IN_BACKGROUND) as session:
        since = session.states[0].since
        assert not session.wait_until_compiled(PATIENT_S)
        (state,) = session.states
        assert (state.runs_on, state.background, state.since) == ("quick", "failed", since)
        assert told in (state.error or "")
        for _ in range(2):
            session.run(None, feeds(branches()))
    said = [record for record in caplog.records if "in the background failed" in record.message]
    assert len(said) == 1
    assert told in said[0].message


def test_shapes_that_were_dropped_are_left_out(
    child: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are three sessions. The first is dropped while its model is compiled, the second waits
    for its model, and the compilation for the third fails."""
    monkeypatch.setattr("tvm_interop.session.session._MOST_SHAPES", 1)
    gate = gated(child, tmp_path, branches())
    with Session(branches(batch="batch"), **IN_BACKGROUND) as session:
        for size in (1, 2, 3):
            session.run(None, {"x": np.ones((size, 8, 8, 8), "float32")})
        gate.touch()
        assert not session.wait_until_compiled(PATIENT_S)
        (state,) = session.states
        assert (state.shapes, state.background) == ({"x": (3, 8, 8, 8)}, "failed")
        assert "other inputs or outputs" in (state.error or "")
    assert caplog.text.count("in the background failed") == 1


def test_another_model_is_not_used(child: list[str], tmp_path: Path) -> None:
    gate = gated(child, tmp_path, chain())
    gate.touch()
    with Session(branches(), **IN_BACKGROUND) as session:
        assert not session.wait_until_compiled(PATIENT_S)
        assert "other inputs or outputs" in (session.states[0].error or "")
        session.run(None, feeds(branches()))


@pytest.mark.parametrize("how", ["close", "garbage"])
def test_the_process_ends_with_the_session(child: list[str], tmp_path: Path, how: str) -> None:
    mark = tmp_path / "pid"
    child.append(WAITS.format(mark=str(mark)))
    session = Session(branches(), **IN_BACKGROUND)
    wait_for(lambda: mark.exists() and mark.read_text(), "no process")
    assert is_running(int(mark.read_text()))
    if how == "close":
        session.close()
        assert not is_running(int(mark.read_text()))
        assert not session.wait_until_compiled(0)
    else:
        del session
        gc.collect()
        wait_for(lambda: not is_running(int(mark.read_text())), "it goes on")


def test_a_fork_neither_compiles_nor_ends_the_process(child: list[str], tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    child.append(WAITS.format(mark=str(mark)))
    with Session(branches(), **IN_BACKGROUND) as session:
        wait_for(lambda: mark.exists() and mark.read_text(), "no process")

        def work() -> None:
            assert [state.background for state in session.states] == ["failed"]
            assert not session.wait_until_compiled(PATIENT_S)
            session.run(None, feeds(branches()))
            session.close()

        assert in_forked_child(work) == ""
        assert is_running(int(mark.read_text()))
        assert session.states[0].background == "compiling"


PROGRAM = """
import sys, time
from tvm_interop.session import background_process as process
from tvm_interop.session import background
import tvm_interop

child = '''
import sys
sys.path[:] = %r
import tvm_interop.compiler.cpu as cpu
import time
def waits(module, target, path, **_):
    path.write_bytes(b"half a library")
    open(%r, "w").write(str(__import__("os").getpid()))
    for _ in range(6000):
        time.sleep(0.1)
cpu.build_kernels = waits
from tvm_interop.session.background_process import main
main()
''' % (sys.path, sys.argv[2])
background._command = lambda: [sys.executable, "-c", child]
session = tvm_interop.Session(
    sys.argv[1], scheduler="sequential", latency_db=":memory:", compile_in_background=True
)
print("first", flush=True)
if sys.argv[3] == "wait":
    time.sleep(600)
while not __import__("os").path.exists(sys.argv[2]):
    time.sleep(0.05)
"""


@pytest.mark.parametrize("how", ["SIGKILL", "the end"])
def test_nothing_stays_when_the_program_ends(tmp_path: Path, kept: Path, how: str) -> None:
    onnx.save(branches(), tmp_path / "net.onnx")
    (tmp_path / "tmp").mkdir()
    mark = tmp_path / "pid"
    wait = "wait" if how == "SIGKILL" else "go on"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "net.onnx"), str(mark), wait],
        env=os.environ
        | {
            "TMPDIR": str(tmp_path / "tmp"),
            "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
        },
        stdout=subprocess.PIPE,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == b"first\n"
    wait_for(lambda: mark.exists() and mark.read_text(), "no process")
    if how == "SIGKILL":
        program.send_signal(signal.SIGKILL)
    program.wait(PATIENT_S)
    program.stdout.close()
    wait_for(lambda: not is_running(int(mark.read_text())), "it goes on")
    assert not list((tmp_path / "tmp").iterdir())
    left = [path for path in kept.parent.rglob("*") if path.is_file()]
    assert [path.name for path in left if path.suffix != ".kept"] == [".compiling"]
    assert not [path for path in left if path.suffix == ".kept" and path.name.startswith(".")]


def test_two_programs_compile_a_model_once(tmp_path: Path, kept: Path) -> None:
    onnx.save(branches(), tmp_path / "net.onnx")
    with (
        Session(tmp_path / "net.onnx", **IN_BACKGROUND) as one,
        Session(tmp_path / "net.onnx", **IN_BACKGROUND) as other,
    ):
        assert one.wait_until_compiled(PATIENT_S), one.states
        assert one.path is not None
        written = one.path.stat().st_ino
        assert other.wait_until_compiled(PATIENT_S), other.states
        assert other.path == one.path
        assert other.path.stat().st_ino == written


def test_a_model_that_changed_is_not_compiled(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(branches(), path)
    quickly = Order.compiled_quickly

    def and_change(order: Order) -> tvm_interop.Artifact:
        artifact = quickly(order)
        onnx.save(chain(), path)
        return artifact

    monkeypatch.setattr(Order, "compiled_quickly", and_change)
    with Session(path, **IN_BACKGROUND) as session:
        assert not session.wait_until_compiled(PATIENT_S)
        assert "has changed since the session was made" in (session.states[0].error or "")
    assert not list(kept.glob("*.tar"))


def test_what_cannot_be_compiled_in_the_background_is_refused(tmp_path: Path) -> None:
    def refused(told: str, **options: object) -> None:
        with pytest.raises(InputError, match=told):
            Session(branches(), compile_in_background=True, **options)

    refused("`target`: only models for CPUs", target="cuda")
    refused("`precision` is bf16", precision="bf16")
    refused("`time_budget` is 0", time_budget=0)
    artifact = tvm_interop.compile(branches(), **QUICK)
    refused("option `schedule` is a `Schedule`", schedule=artifact.schedule)
    try:
        tvm_interop.register_scheduler("of this test")(lambda graph, latency: None)
        refused("scheduler `of this test` was registered in this process", scheduler="of this test")
    finally:
        from tvm_interop.scheduling import registry

        del registry._REGISTRY["of this test"]
    # An artifact is compiled already, so nothing can be compiled in the background.
    path = tmp_path / "model.tar"
    artifact.save(path)
    with Session(path, compile_in_background=True) as session:
        assert session.states == []
        assert session.wait_until_compiled()


def test_a_program_that_knows_no_python(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.frozen", True, raising=False)
    with (
        caplog.at_level(logging.WARNING, "tvm_interop"),
        Session(branches(), **IN_BACKGROUND) as session,
    ):
        assert not session.wait_until_compiled(PATIENT_S)
    assert "does not know which Python interpreter" in caplog.text


def test_the_job_has_all_that_decides_the_artifact(tmp_path: Path) -> None:
    model = branches(batch="batch")
    progress = lambda done, total: None  # noqa: E731
    session = Session(model, **IN_BACKGROUND, progress=progress, input_shapes={})
    assert session._source is not None
    order = session._order(session._source, {"x": (2, 8, 8, 8)})
    job = background.job_of(order)
    assert json.loads(json.dumps(job["options"])) == QUICK
    assert job["shapes"] == {"x": (2, 8, 8, 8)}
    assert job["digest"] == session._source.digest
    assert job["threads"] == tvm_interop.num_threads()
