"""Every tutorial runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "tutorials"
SCRIPTS = sorted(path.name for path in FOLDER.glob("plot_*.py"))


def test_there_are_tutorials() -> None:
    assert SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_tutorial(script: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(FOLDER / script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
