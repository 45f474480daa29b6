"""Tests that every tutorial runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "tutorials"
LEARNED = "plot_5_tune_with_the_learned_model.py"
SCRIPTS = sorted(path.name for path in FOLDER.glob("plot_*.py"))


def test_there_are_tutorials() -> None:
    assert SCRIPTS


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that keeps kernels for later compilations, as on users' machines."""
    return tmp_path_factory.mktemp("kept")


@pytest.mark.parametrize("script", SCRIPTS)
def test_tutorial(script: str, tmp_path: Path, kept: Path) -> None:
    if script == LEARNED:
        pytest.importorskip("xgboost", reason="xgboost is not installed (extra `learned`)")
    assert run(tmp_path, kept, str(FOLDER / script))


def test_without_xgboost_the_extra_is_named(tmp_path: Path, kept: Path) -> None:
    without = "import runpy, sys; sys.modules['xgboost'] = None; runpy.run_path(sys.argv[1])"
    said = run(tmp_path, kept, "-c", without, str(FOLDER / LEARNED))
    assert "tvm-interop[learned]" in said
    assert "round" not in said


def run(folder: Path, kept: Path, *arguments: str) -> str:
    """Run Python with these arguments in `folder`, and return what it prints."""
    ran = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "TVM_INTEROP_KEPT": str(kept)},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
