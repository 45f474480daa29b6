"""Tests sessions that use, for new input shapes, the kernels that were chosen for other shapes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.nets import branches
from tvm_interop import Session
from tvm_interop.artifact.artifact import Artifact
from tvm_interop.compiler import api
from tvm_interop.session import known_kernels

OPTIONS: dict[str, Any] = {"latency_db": ":memory:", "scheduler": "sequential"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("known") / "branches.onnx"
    onnx.save(branches(batch="batch"), path)
    return path


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    return tmp_path / "kept" / "artifacts"


@pytest.fixture
def likes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list that gets a bool for each compilation: whether it got the kernels of other shapes."""
    found: list[bool] = []
    usual = api.compile

    def compile(model: Any, **options: Any) -> Artifact:
        found.append(options.get("like") is not None)
        return usual(model, **options)

    monkeypatch.setattr(api, "compile", compile)
    return found


def run(session: Session, path: Path, sizes: Sequence[int]) -> None:
    theirs = onnxruntime.InferenceSession(path)
    for size in sizes:
        x = np.random.default_rng(size).standard_normal((size, 8, 8, 8)).astype(np.float32)
        for mine, wanted in zip(
            session.run(None, {"x": x}), theirs.run(None, {"x": x}), strict=True
        ):
            np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5)


def test_only_shapes_far_from_all_others_are_measured(
    path: Path, likes: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Session(path, **OPTIONS) as session:
        run(session, path, [1, 3, 8, 1])
        assert likes == [False, True, True]
        assert "`branches` for {'x': (3, 8, 8, 8)}, with the kernels that were" in caplog.text
        run(session, path, [9])  # A batch of 9 is more than eight times a batch of 1.
        assert likes[3:] == [False]
        run(session, path, [6])
        assert likes[4:] == [True]
        # The kernels for batches of 1 and 9 are known, and 6 is nearer to 9.
        assert "chosen for {'x': (9, 8, 8, 8)}" in caplog.text


def test_another_session_finds_artifacts_and_kernels(path: Path, likes: list[bool]) -> None:
    with Session(path, **OPTIONS) as session:
        run(session, path, [2, 3])
    likes.clear()
    with Session(path, **OPTIONS) as session:
        run(session, path, [3, 2])
        assert likes == []
        run(session, path, [4])
        assert likes == [True]


@pytest.mark.parametrize("options", [{"fresh": True}, {"time_budget": 0}, {"max_error": 0.1}])
def test_options_that_ask_for_a_choice_at_each_shape(
    options: dict[str, Any], path: Path, likes: list[bool]
) -> None:
    with Session(path, **OPTIONS, **options) as session:
        run(session, path, [2, 3])
    assert likes == [False, False]


def test_auto_becomes_sequential_and_other_schedulers_stay(path: Path) -> None:
    for scheduler, wanted in (("auto", "sequential"), ("greedy", "greedy")):
        with Session(path, latency_db=":memory:", scheduler=scheduler) as session:
            run(session, path, [2, 3])
            pool = session._by_shape.get(((3, 8, 8, 8),))
            assert pool is not None
            assert pool.artifact.manifest.scheduler == wanted


def test_a_damaged_list_is_ignored(path: Path, kept: Path, likes: list[bool]) -> None:
    with Session(path, **OPTIONS) as session:
        run(session, path, [2])
        (stored,) = kept.glob("*.kernels.json")
        stored.write_text(stored.read_text()[:-9])
        run(session, path, [3, 4])
    assert likes == [False, False, True]


def test_old_entries_are_dropped(
    path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, likes: list[bool]
) -> None:
    monkeypatch.setattr(known_kernels, "_MOST", 1)
    monkeypatch.setattr(known_kernels, "_FAR", 1.5)
    with Session(path, **OPTIONS) as session:
        # Only the kernels for one batch are remembered: first for 1, then for 4.
        run(session, path, [1, 4, 1])
        run(session, path, [5, 2])
    assert likes == [False, False, True, False]


def test_quick_answers_use_known_kernels(path: Path, likes: list[bool]) -> None:
    with Session(path, **OPTIONS) as session:
        run(session, path, [2])
    likes.clear()
    with Session(path, **OPTIONS, compile_in_background=True) as session:
        run(session, path, [3])
        assert likes == [True]
        assert [state.runs_on for state in session.states] == ["quick"]
        assert session.wait_until_compiled()
        run(session, path, [3])
        assert [state.runs_on for state in session.states] == ["whole"]
