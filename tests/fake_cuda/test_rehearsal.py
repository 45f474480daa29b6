"""Rehearses a visit to a GPU on the fake GPU, without TVM's compiler.

A visit runs all steps of the bundle that `benchmarks.gpu_bundle` packs for a machine with a GPU.
`pytest -s` prints how long each step took. On the fake GPU, kernels of TVM compute nothing. So the
checks of numbers must fail, and all other steps must run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks import gpu_bundle
from benchmarks.gpu_bundle_models import CASES, IN_FLOAT16, TWO_ATTENTIONS
from tests.fake_cuda.test_under_fake_cuda import fake_cuda_folder
from tests.nets import branches, inception_like

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed"),
]

MOST_RESULT_BYTES = 16 * 2**20
KILLED = "library-cases"
"""The step during which the test kills the visit."""


def python_of_gpu_machines() -> Path:
    """The path of Python 3.12, which machines with GPUs have, or of this Python if 3.12 is
    missing."""
    installed = [Path(path) for path in [shutil.which("python3.12")] if path]
    for python in [*installed, *Path.home().glob(".pyenv/versions/3.12*/bin/python3.12")]:
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return Path(sys.executable)


@pytest.fixture(scope="module")
def python() -> Path:
    return python_of_gpu_machines()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Path:
    folder = tmp_path_factory.mktemp("visit")
    onnx.save(inception_like(), folder / "first.onnx")
    onnx.save(branches(), folder / "second.onnx")
    text = "import sys; print('{}.{}'.format(*sys.version_info))"
    version = subprocess.check_output([python, "-c", text], text=True).strip()
    packing = ["gpu_bundle", str(folder / "bundle.tar.xz")]
    networks = [str(folder / "first.onnx"), str(folder / "second.onnx")]
    # Pack the bundle in this process, because it can reuse kernels that other tests have compiled.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys,
            "argv",
            [*packing, "--python", version, "--networks", *networks, "--cpu-networks", networks[1]],
        )
        gpu_bundle.main()
    with tarfile.open(folder / "bundle.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return folder / "gpu-bundle"


def start(bundle: Path, python: Path, *options: str) -> subprocess.Popen[str]:
    """Start `run.sh` as on another machine: no search path leads to this repository."""
    fake = fake_cuda_folder()
    ours = ("PYTHON", "TVM_", "LD_LIBRARY_PATH", "UNDER_FAKE_CUDA")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    environment |= {
        "PYTHON": str(python),
        "LD_LIBRARY_PATH": str(fake),
        "TVM_INTEROP_CUDNN_LIBRARY": f"{fake}/libcudnn.so.9",
        "TVM_INTEROP_CUBLASLT_LIBRARY": f"{fake}/libcublasLt.so.13",
    }
    return subprocess.Popen(
        ["sh", str(bundle / "run.sh"), "--copy", str(bundle.parent / "out"), *options],
        cwd=bundle.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def records(bundle: Path) -> dict[str, dict[str, Any]]:
    """The state of each step according to `visit.json`."""
    path = bundle / "results" / "visit.json"
    found: dict[str, dict[str, Any]] = (
        json.loads(path.read_text())["steps"] if path.exists() else {}
    )
    return found


def test_the_visit(bundle: Path, python: Path) -> None:
    killed = start(bundle, python, "--call", "1")
    while records(bundle).get(KILLED, {}).get("state") != "running":
        assert killed.poll() is None, killed.communicate()[0]
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    began = {name: record["began_s"] for name, record in records(bundle).items()}
    first = start(bundle, python, "--call", "1")
    printed, _ = first.communicate()
    assert f"{KILLED}: an earlier visit ended in the middle of this step" in printed
    assert "== versions: done before" in printed
    assert first.returncode == 1
    found = records(bundle)
    assert found[KILLED]["state"] == "stopped"
    assert all(found[name]["began_s"] == began_s for name, began_s in began.items())
    assert start(bundle, python, "--only", KILLED).wait() == 0
    for call in ("2", "3", "4", "5"):
        start(bundle, python, "--call", call).communicate()
    found = records(bundle)
    for name, record in found.items():
        print(f"{record['seconds'] / 60:6.2f} min  {name}: {record['state']} {record['why']}")
    assert {name: record["state"] for name, record in found.items()} == expected_states(found)
    check_facts(found)
    results = list((bundle.parent / "out").iterdir())
    assert {path.name for path in results} == {"visit.json", "visit.log"}
    assert all(path.stat().st_size < MOST_RESULT_BYTES for path in results)


def expected_states(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The state in which each step must end on the fake GPU."""
    cases = [*CASES, *(f"{name}_float16" for name in IN_FLOAT16), TWO_ATTENTIONS]
    has_torch = found["versions"]["found"]["torch"] is not None
    has_sanitizer = found["versions"]["found"]["compute-sanitizer"] is not None
    # The fake GPU computes nothing with TVM's kernels, and runs no program that nvcc built.
    wrong = ["check first", *(f"check {name}" for name in cases), "time first", "time second"]
    wrong += [f"interfaces {cases[0]}", "probes", "probes, 32 connections"]
    done = ["versions", KILLED, "flight first", "flight second", "cores second"]
    states = dict.fromkeys(wrong, "failed") | dict.fromkeys(done, "done")
    states["sanitizer"] = "failed" if has_sanitizer else "missing"
    # The sanitizer examines the network `first` because the check of this network failed.
    states["sanitizer first"] = states["sanitizer"]
    states["ncu first"] = "missing" if found["versions"]["found"]["ncu"] is None else "failed"
    assert not has_torch, "PyTorch would look for a real GPU: rehearse with a Python without it"
    return states | dict.fromkeys(["compile first", "compile second"], "missing")


def check_facts(found: dict[str, dict[str, Any]]) -> None:
    """Check that the results of the steps are in `visit.json`."""
    for network in ("first", "second"):
        timed = found[f"time {network}"]["found"]
        assert timed["wrong"] == ["numbers or bits are wrong"]
        assert timed["numbers"] == "WRONG"
        assert timed["first_wrong"].startswith("operator 0 of ")
        assert set(timed["bits"].values()) == {"same"}
        assert {"sequential", "sequential, again", "ios", "nimble"} <= set(timed["median_us"])
        assert set(timed["launch_us"]) == set(timed["bits"])
        rates = found[f"flight {network}"]["found"]["runs_per_s"]
        assert all(rate > 0 for of_plan in rates.values() for rate in of_plan.values())
    used = found[f"interfaces {next(iter(CASES))}"]["found"]
    assert {used[way] for way in ("session", "program in C", "threads")} == {"same bits"}
    told = [fact["implementation"] for fact in found[KILLED]["found"].values() if "error" in fact]
    assert all(told)
    assert any(text.endswith("fused") for text in told)
    assert found["versions"]["found"]["tvm_interop"] != "0+unknown"
    here = len(os.sched_getaffinity(0))
    cores = [name for name in found["cores second"]["found"] if name.endswith(" cores")]
    assert len(cores) == len([number for number in (1, 2, 4, 8, 16, 32, 64) if number <= here])
