"""Runs the tests of `inside/` in a process that loads the fake CUDA in place of CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
INSIDE = sorted((Path(__file__).parent / "inside").glob("test_*.py"))
# One process runs all of these files, which saves the time to start more processes. The tests in
# these files do not depend on earlier tests.
TOGETHER = (
    "test_asynchronous",
    "test_biased_measuring",
    "test_c_interface",
    "test_compile",
    "test_conformance",
    "test_device_inputs",
    "test_device_outputs",
    "test_executor",
    "test_first_wrong",
    "test_gpu_interfaces",
    "test_kernels",
    "test_multi_gpu",
    "test_no_gpu",
    "test_opara_streams",
    "test_planted_bugs",
    "test_sanitized_run",
    "test_stage_prices",
    "test_staging",
    "test_strict_calls",
    "test_strict_captures",
    "test_two_gpus",
)
# Each file that is not listed above needs a new process. Some files expect that no earlier test has
# chosen an algorithm.
ALONE = [path for path in INSIDE if path.stem not in TOGETHER]
# The tests in these files do not depend on times, so they also pass if the fake CUDA works
# asynchronously.
WITHOUT_TIMES = [path for path in INSIDE if path.stem in ("test_conformance", "test_two_gpus")]
SLOW = [path for path in INSIDE if "mark.slow" in path.read_text()]


def fake_cuda_folder() -> Path:
    """The folder of the fake libraries: `$TVM_INTEROP_FAKE_CUDA`, or a build folder of CMake."""
    override = os.environ.get("TVM_INTEROP_FAKE_CUDA")
    if override:
        return Path(override)
    built = sorted(REPOSITORY.glob("build/*/tests/fake_cuda/libcudart.so.13"))
    assert built, "the fake CUDA is not built: run `make cpp-test`"
    return built[-1].parent


@pytest.mark.parametrize("tests", ALONE, ids=lambda path: path.stem)
def test_inside(tests: Path) -> None:
    run_inside([tests], "not slow")


def test_files_inside() -> None:
    run_inside([path for path in INSIDE if path.stem in TOGETHER], "not slow")


def test_inside_asynchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_ASYNC", "3")
    run_inside(WITHOUT_TIMES, "not slow")


@pytest.mark.slow
@pytest.mark.parametrize("tests", SLOW, ids=lambda path: path.stem)
def test_slow_inside(tests: Path) -> None:
    run_inside([tests], "slow")


def run_inside(tests: Sequence[Path], marks: str) -> None:
    """Run the tests in some files that the expression `marks` selects, with the fake CUDA
    loaded."""
    folder = str(fake_cuda_folder())
    searched = os.pathsep.join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))
    environment = {**os.environ, "LD_LIBRARY_PATH": searched, "UNDER_FAKE_CUDA": "1"}
    # The real libraries may be installed too, because PyTorch contains them.
    environment["TVM_INTEROP_CUDNN_LIBRARY"] = f"{folder}/libcudnn.so.9"
    environment["TVM_INTEROP_CUBLASLT_LIBRARY"] = f"{folder}/libcublasLt.so.13"
    # Switch off the plugin of hypothesis: these tests do not use it, and it takes two seconds at
    # the end.
    plugins = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "-m", marks]
    done = subprocess.run(
        [*command, *map(str, tests)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
