"""Third tests on a GPU: compute-sanitizer finds no wrong access and no race within a block.

`racecheck` does not look for races between streams, because it watches the shared memory of each
block. The checker proves plans free of such races, and other tests look for them in the log of the
fake CUDA.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tvm_interop
from tests.nets import inception_like

REPOSITORY = Path(__file__).resolve().parents[2]
FOUND = 9
"""The exit code of the sanitizer if it finds a fault."""


def compute_sanitizer() -> str | None:
    """The path of compute-sanitizer, from PATH or the toolkit's folder; None if it is missing."""
    homes = filter(None, (os.environ.get("CUDA_HOME"), "/usr/local/cuda"))
    folders = os.pathsep.join([os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes)])
    return shutil.which("compute-sanitizer", path=folders)


SANITIZER = compute_sanitizer()
pytestmark = pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not installed")


def watched(tool: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the arguments `command` under a tool of the sanitizer."""
    sanitizer = [str(SANITIZER), "--tool", tool, "--error-exitcode", str(FOUND)]
    return subprocess.run(
        [*sanitizer, sys.executable, *command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sanitizer") / "model.tar"
    tvm_interop.compile(
        inception_like(), target="cuda", scheduler="nimble", keep_slower=True, out=out
    )
    return out


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_nothing_is_found(tool: str, artifact: Path) -> None:
    done = watched(tool, "-m", "tests.gpu.sanitized_run", str(artifact))
    assert done.returncode == 0, done.stdout + done.stderr
    # If the summary is missing, the sanitizer has watched nothing.
    assert "SUMMARY: 0 " in done.stdout + done.stderr


def test_an_access_out_of_bounds_is_found() -> None:
    done = watched("memcheck", "-m", "tests.gpu.out_of_bounds")
    assert done.returncode == FOUND, done.stdout + done.stderr
    assert "Invalid __global__ read" in done.stdout + done.stderr
