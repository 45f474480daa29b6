"""Tests the program that compute-sanitizer watches on a real GPU: it ends, and notices faults."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tvm_interop
from tests.fake_cuda import fake_gpu
from tests.gpu import out_of_bounds, sanitized_run
from tests.nets import inception_like
from tvm_interop.execution.cuda import CudaInstance

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sanitizer") / "model.tar"
    tvm_interop.compile(
        inception_like(), target="cuda", scheduler="nimble", keep_slower=True, out=out
    )
    return out


def test_it_runs_and_gives_everything_back(
    artifact: Path, check_log: Callable[..., list[str]]
) -> None:
    assert sanitized_run.main(str(artifact)) == 0
    assert check_log() == []


def test_each_tensor_has_memory_of_its_own(artifact: Path) -> None:
    loaded = tvm_interop.load(artifact)
    instance = sanitized_run.TensorsApart(loaded.plan, loaded.load_kernels(), loaded.weights)
    owners = [v for v, value in enumerate(loaded.plan.values) if value.storage != "alias"]
    places = sorted((fake_gpu.address_of(instance.tensors[v]), v) for v in owners)
    for (address, v), (following, _) in itertools.pairwise(places):
        assert address + loaded.plan.values[v].nbytes <= following
    shared = CudaInstance(loaded.plan, loaded.load_kernels(), loaded.weights)
    assert len({fake_gpu.address_of(shared.tensors[v]) for v in owners}) < len(owners)


def test_other_results_are_seen(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = iter(range(10))
    monkeypatch.setattr(sanitized_run, "outputs", lambda *_: [np.full(1, next(runs))])
    assert sanitized_run.main(str(artifact)) == 1
    assert "other results" in capsys.readouterr().out


def test_a_missing_graph_is_seen(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_gpu.fail_next("cudaStreamBeginCapture", 900)
    assert sanitized_run.main(str(artifact)) == 1
    assert "captured: `cudaStreamBeginCapture` failed" in capsys.readouterr().out


def test_the_kernel_to_be_found_is_launched() -> None:
    out_of_bounds.main()  # The fake GPU runs no kernel's code, so nothing is read.
