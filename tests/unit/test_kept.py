"""Tests the files kept between compilations: they are found again, and damaged files are
replaced."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import onnx
import pytest
from typer.testing import CliRunner

import tvm_interop
from tests import nets
from tests.output_bits import bits
from tvm_interop._native.library import LIBRARY_PATH
from tvm_interop.cli.app import app
from tvm_interop.compiler import backend, compilation, kept_choice
from tvm_interop.measure.kept_files import KeptFiles, kept_beside
from tvm_interop.scheduling import registry


@pytest.fixture(autouse=True)
def _kept_beside_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVM_INTEROP_KEPT", raising=False)


def test_what_is_kept_is_found(tmp_path: Path) -> None:
    kept = KeptFiles(tmp_path / "kept")
    assert kept.get("kernels", "a") is None
    kept.put("kernels", "a", b"code")
    assert kept.get("kernels", "a") == b"code"
    assert kept.get("choice", "a") is None
    assert kept.get("kernels", "b") is None
    assert (tmp_path / "kept").stat().st_mode & 0o077 == 0
    assert kept.clear() == 1
    assert kept.get("kernels", "a") is None


@pytest.mark.parametrize("damage", ["cut", "empty", "changed"])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, damage: str) -> None:
    kept = KeptFiles(tmp_path)
    kept.put("kernels", "a", b"0123456789")
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    changed = {"cut": content[:-3], "empty": b"", "changed": content[:-1] + b"x"}
    path.write_bytes(changed[damage])
    assert kept.get("kernels", "a") is None
    assert not path.exists()


def test_the_oldest_go_above_the_limit(tmp_path: Path) -> None:
    kept = KeptFiles(tmp_path, max_bytes=3 * 1032)
    for i, name in enumerate("abc"):
        kept.put("kernels", name, bytes(1000))
        os.utime(max(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime), (i, i))
    assert kept.get("kernels", "a") is not None  # `a` was just used, so `b` is the oldest.
    kept.put("kernels", "d", bytes(1000))
    assert [name for name in "abcd" if kept.get("kernels", name) is None] == ["b"]


def _put_often(folder: Path, byte: int) -> None:
    kept = KeptFiles(folder)
    for _ in range(50):
        kept.put("kernels", "a", bytes([byte]) * 100_000)


def test_writers_at_the_same_time_do_no_harm(tmp_path: Path) -> None:
    writers = [
        multiprocessing.get_context("fork").Process(target=_put_often, args=(tmp_path, byte))
        for byte in (1, 2)
    ]
    for writer in writers:
        writer.start()
    kept, found = KeptFiles(tmp_path), set()
    while any(writer.is_alive() for writer in writers):
        data = kept.get("kernels", "a")
        if data is not None:
            assert len(data) == 100_000
            found |= set(data)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert found <= {1, 2}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    KeptFiles(tmp_path / "file" / "kept").put("kernels", "a", b"code")
    assert "nothing is written to or read from" in caplog.text


def compiled(db: Path, net: Any = nets.inception_like, **fields: Any) -> tvm_interop.Artifact:
    return tvm_interop.compile(net(), streams=2, latency_db=db, **fields)


@pytest.mark.parametrize("scheduler", ["auto", "nimble"])
def test_warm_and_cold_artifacts_are_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    db = tmp_path / "latency.db"
    cold = compiled(db, scheduler=scheduler)

    def built_again(*_: Any) -> None:
        raise AssertionError("the second compilation must build and measure nothing")

    with monkeypatch.context() as patch:
        patch.setattr(backend.Kernels, "_built", built_again)
        patch.setattr(compilation.Compilation, "measure", built_again)
        patch.setattr(compilation.Compilation, "schedule", built_again)
        warm = compiled(db, scheduler=scheduler)
    assert warm.kernels == cold.kernels
    assert warm.plan == cold.plan
    assert warm.schedule.to_json() == cold.schedule.to_json()
    assert warm.manifest.speed_check == cold.manifest.speed_check
    assert bits(warm) == bits(cold)


def noted_schedules(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A list to which each later call of a scheduler adds its arguments."""
    scheduled: list[tuple[Any, ...]] = []
    original = compilation.Compilation.schedule

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        scheduled.append(args)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(compilation.Compilation, "schedule", noted)
    return scheduled


@pytest.mark.parametrize(
    ("net", "fields"),
    [
        (nets.chain, {"keep_slower": True}),
        (nets.chain, {"scheduler": "greedy"}),
        (nets.chain, {"fresh": True}),
        (lambda: nets.chain(7), {}),
    ],
    ids=["option", "scheduler", "fresh", "model"],
)
def test_another_way_of_compiling_chooses_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, net: Any, fields: dict[str, Any]
) -> None:
    db = tmp_path / "latency.db"
    compiled(db, nets.chain, scheduler="nimble")
    scheduled = noted_schedules(monkeypatch)
    compiled(db, nets.chain, scheduler="nimble")
    assert scheduled == []
    compiled(db, net, **{"scheduler": "nimble", **fields})
    assert len(scheduled) == 1


def test_another_native_library_chooses_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "latency.db"
    compiled(db, nets.chain, scheduler="nimble")
    rebuilt = tmp_path / "rebuilt.so"
    rebuilt.write_bytes(LIBRARY_PATH.read_bytes() + b"\0")
    monkeypatch.setattr(kept_choice, "LIBRARY_PATH", rebuilt)
    scheduled = noted_schedules(monkeypatch)
    for _ in range(2):
        compiled(db, nets.chain, scheduler="nimble")
    assert len(scheduled) == 1  # The second compilation finds the kept schedule of the first.


def test_schedulers_of_others_are_asked_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def mine(graph: Any, latency: Any) -> tvm_interop.Schedule:
        """Schedule all operators one after the other."""
        asked.append(graph)
        return tvm_interop.Schedule("mine", graph.names, streams=[list(range(len(graph.names)))])

    monkeypatch.setitem(registry._REGISTRY, "mine", mine)
    for _ in range(2):
        compiled(tmp_path / "latency.db", nets.chain, scheduler="mine")
    assert len(asked) == 2


def test_nothing_is_kept_where_nobody_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept_beside(":memory:") is None
    monkeypatch.setenv("TVM_INTEROP_KEPT", "")
    compiled(tmp_path / "latency.db", nets.chain, scheduler="sequential")
    assert sorted(path.name for path in tmp_path.glob("*kept*")) == []


class Told:
    """A progress function that notes the names of the steps and how far each step had come."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.counts: dict[str, list[tuple[int, int]]] = {}

    def __call__(self, stages_done: int, stages_total: int) -> None:
        assert 0 <= stages_done <= stages_total
        self.counts.setdefault(self.said[-1], []).append((stages_done, stages_total))

    def say(self, what: str) -> None:
        self.said.append(what)


def test_progress_is_told_what_is_done(tmp_path: Path) -> None:
    told = Told()
    compiled(tmp_path / "latency.db", nets.chain, scheduler="nimble", progress=told)
    assert told.said[:3] == [
        "reading the model",
        "lowering the model to kernels",
        "choosing kernels",
    ]
    assert any(text.startswith("compiling ") for text in told.said)
    assert "scheduling by nimble" in told.said


def test_kernels_are_counted_as_they_are_compiled(tmp_path: Path) -> None:
    told = Told()
    # Nothing is measured, so the progress function counts only kernels.
    compiled(tmp_path / "latency.db", scheduler="sequential", providers=("tvm",), progress=told)
    (text,) = (text for text in told.said if text.startswith("compiling "))
    kernels = int(text.split()[1])
    counts = told.counts[text]
    assert len(counts) > 1
    assert max(counts) == (kernels, kernels)
    assert {total for _, total in counts} == {kernels}


def test_the_command_line_clears_what_is_kept(tmp_path: Path) -> None:
    model, db = tmp_path / "net.onnx", tmp_path / "latency.db"
    onnx.save(nets.chain(), model)
    args = ["compile", str(model), "-o", str(tmp_path / "m.tar"), "--scheduler", "nimble"]
    assert CliRunner().invoke(app, [*args, "--latency-db", str(db)]).exit_code == 0
    kept = list((tmp_path / "latency.db.kept").iterdir())
    assert len(kept) == 3  # The files hold kernels, the kernels' check, and a schedule.
    told = CliRunner().invoke(app, ["db", "clear-kept", "--latency-db", str(db)])
    assert told.exit_code == 0, told.output
    assert "removed 3 files" in told.output
    assert list((tmp_path / "latency.db.kept").iterdir()) == []
