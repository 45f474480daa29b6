"""The GPU benchmark, as far as a GPU that computes nothing can take it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.gpu import PREFERRING, SCHEDULERS, Bench, Report
from benchmarks.gpu_bundle import add_network, repeat_weights
from tests.nets import inception_like

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("bundle")
    onnx.save(inception_like(), scratch / "net.onnx")
    add_network(scratch / "net", str(scratch / "net.onnx"), ["sm_90"])
    return scratch / "net"


def test_every_schedule_is_checked_and_timed(folder: Path) -> None:
    report = Bench(folder, deadline=time.monotonic() + 600).run()
    assert set(report.median_us) == set(report.bits)
    assert {"sequential", "sequential, linked", *SCHEDULERS} <= set(report.median_us)
    # Others find the fake GPU's kernels too short for a second stream.
    assert "nimble" + PREFERRING in report.median_us
    assert set(report.bits.values()) == {"same"}
    assert report.no_graph == {}
    assert report.stages_measured > 0
    # The fake GPU computes nothing, and is found out.
    assert report.numbers == "WRONG"
    assert not report.is_right


def test_what_is_not_run_is_said(folder: Path) -> None:
    report = Bench(folder, deadline=time.monotonic() - 1).run()
    assert report.not_run == [f"{name}: out of time" for name in SCHEDULERS]
    assert not Report("net").is_right


def test_weights_repeat_and_keep_their_spread() -> None:
    model = inception_like(channels=64)
    spreads = {i.name: onnx.numpy_helper.to_array(i).std() for i in model.graph.initializer}
    repeat_weights(model)
    changed = [onnx.numpy_helper.to_array(i) for i in model.graph.initializer]
    long = [(i.name, w) for i, w in zip(model.graph.initializer, changed, strict=True)]
    long = [(name, w.ravel()) for name, w in long if w.size > 2 * 4093]
    assert long
    for name, weight in long:
        np.testing.assert_array_equal(weight[:4093], weight[4093 : 2 * 4093])
        assert weight.std() == pytest.approx(spreads[name], rel=0.1)
