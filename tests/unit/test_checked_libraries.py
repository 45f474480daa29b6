"""Tests that kernels of libraries are checked before artifacts use them, like TVM's kernels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_interop
from tests import nets
from tvm_interop._native import cpu as _native
from tvm_interop.compiler import checked_libraries
from tvm_interop.compiler.checked_libraries import FencedLibraryKernel
from tvm_interop.compiler.cpu import BF16_FEATURE
from tvm_interop.kernels.numpy_kernel import NumpyKernel
from tvm_interop.machine.cpu_features import host_features
from tvm_interop.machine.kernel_libraries import library_version
from tvm_interop.program.library_op import library_op

ONEDNN = "onednn"
pytestmark = pytest.mark.skipif(library_version(ONEDNN) is None, reason="oneDNN is not here")

CONV = library_op(
    op="conv2d",
    shapes=((1, 20, 6, 7), (8, 20, 3, 3), (1, 8, 4, 5)),
    layouts=("plain", "plain", "plain"),
    window=(3, 3),
    strides=(1, 1),
    padding=(0, 0, 0, 0),
    dilation=(1, 1),
)


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_libraries, "_right", set())
    monkeypatch.setattr(checked_libraries, "_not_evaluated", set())


def compiled(**options: Any) -> tvm_interop.Artifact:
    options = {
        "scheduler": "sequential",
        "latency_db": ":memory:",
        "providers": [ONEDNN],
        **options,
    }
    return tvm_interop.compile(nets.inception_like(), **options)


def output(artifact: tvm_interop.Artifact) -> np.ndarray:
    module = tvm_interop.GraphModule(artifact)
    for name, value in nets.feeds(nets.inception_like()).items():
        module.set_input(name, value)
    module.run()
    return module.get_output(0).numpy()


def test_what_a_library_does_is_checked() -> None:
    artifact = compiled()
    check = artifact.manifest.kernel_check
    assert check is not None
    assert check.libraries > 0
    assert not check.plain
    assert any(op.library == ONEDNN for op in artifact.plan.operators)


def test_of_a_kernel_at_fault_tvm_does_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = compiled()
    checked_libraries._right.clear()
    run = FencedLibraryKernel.run_fenced

    def wrong(
        self: FencedLibraryKernel,
        tensors: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        *others: Any,
    ) -> str:
        said = run(self, tensors, results, *others)
        if self.description.op == "conv2d":
            results[0].reshape(-1)[-1] += np.float32(1.0)
        return said

    monkeypatch.setattr(FencedLibraryKernel, "run_fenced", wrong)
    with caplog.at_level(logging.WARNING):
        mended = compiled()
    check = mended.manifest.kernel_check
    assert check is not None
    libraries = {op.name.partition("[")[0]: op.library for op in mended.plan.operators}
    assert check.plain
    for name, fault in check.plain.items():
        assert libraries[name] is None
        assert "1 of" in fault
    warnings = [r.getMessage() for r in caplog.records if "TVM's runs instead" in r.getMessage()]
    for name in check.plain:
        assert sum(f"`{name}`" in warning for warning in warnings) == 1
    left = [op for op in mended.plan.operators if op.library == ONEDNN]
    assert left, "the library must keep the operators that it computes correctly"
    assert not any(op.description and op.description.op == "conv2d" for op in left)
    np.testing.assert_allclose(output(mended), output(right), 1e-4, 1e-5)


def test_no_fault_is_seen_in_a_normalisation_over_channels() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[1, 16, 8, 9] x) => (float[1, 16, 8, 9] y) { y = LRN <size = 5> (x) }""")
    artifact = tvm_interop.compile(
        model, scheduler="sequential", latency_db=":memory:", providers=[ONEDNN]
    )
    check = artifact.manifest.kernel_check
    assert check is not None
    assert check.libraries == 1
    assert not check.plain


@pytest.mark.skipif(BF16_FEATURE not in host_features(), reason="needs AVX512-BF16")
@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_kernel_that_rounds_its_factors_is_checked_on_rounded_numbers(
    is_wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A convolution that reads and writes float32, but rounds the factors of its products to
    bfloat16."""
    checked_libraries._right.clear()
    run = FencedLibraryKernel.run_fenced

    def perhaps_wrong(
        self: FencedLibraryKernel,
        tensors: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        *others: Any,
    ) -> str:
        said = run(self, tensors, results, *others)
        results[0][:] *= np.float32(0.999 if is_wrong else 1)
        return said

    monkeypatch.setattr(FencedLibraryKernel, "run_fenced", perhaps_wrong)
    net = nets.Net()
    net.input("x", (1, 8, 12, 12))
    net.conv("x", "y", (8, 32), 3)
    artifact = tvm_interop.compile(
        net.model("y"), scheduler="sequential", latency_db=":memory:", precision="bf16"
    )
    check = artifact.manifest.kernel_check
    assert check is not None
    assert bool(check.plain) == is_wrong
    assert {op.library for op in artifact.plan.operators} == {None if is_wrong else ONEDNN}


def test_what_is_kept_is_not_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVM_INTEROP_KEPT", raising=False)
    calls = []
    find = checked_libraries.find_faults
    monkeypatch.setattr(
        checked_libraries,
        "find_faults",
        lambda kernels: calls.append(len(kernels)) or find(kernels),
    )
    cold = compiled(latency_db=tmp_path / "latency.db").manifest.kernel_check
    checked_libraries._right.clear()  # Forget all verdicts on kernels, as in a new process.
    warm = compiled(latency_db=tmp_path / "latency.db").manifest.kernel_check
    assert calls[0] > 0
    assert sum(calls[1:]) == 0
    assert warm == cold


def test_what_numpy_fails_on_counts_as_not_checked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(NumpyKernel, "__call__", broken)
    known = tmp_path / "latency.db"  # With the same latencies, both compilations choose alike.
    with caplog.at_level(logging.WARNING):
        check = compiled(latency_db=known).manifest.kernel_check
    assert check is not None
    assert check.libraries == 0
    assert not check.plain
    assert not checked_libraries._right
    assert "is not checked: NumPy cannot evaluate TVM's" in caplog.text
    before = len(caplog.records)
    again = compiled(latency_db=known).manifest.kernel_check
    assert again == check, "the next compilation must not count the kernel as checked"
    assert len(caplog.records) == before, "the next compilation must not warn again"


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("layouts", [("plain", "plain"), ("blocked16", "blocked16")])
def test_a_kernel_runs_on_plain_tensors(layouts: tuple[str, str], constant: bool) -> None:
    rng = np.random.default_rng(0)
    x, w, y = (rng.standard_normal(shape).astype(np.float32) for shape in CONV.shapes)
    laid_out = CONV.with_fields(layouts=(layouts[0], "plain", layouts[1]))
    kernel = FencedLibraryKernel(ONEDNN, laid_out, (False, constant))
    assert kernel.run_fenced([x, w], [y], True, 0xFF) == ""
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    wanted = np.einsum("nchwij,ocij->nohw", windows, w)
    np.testing.assert_allclose(y, wanted, 1e-4, 1e-5)


@pytest.mark.parametrize("before_fence", [True, False])
def test_what_it_touches_beside_its_tensors_is_told(before_fence: bool) -> None:
    """A kernel treats its tensors as larger than they are."""
    x, w = (np.zeros(shape, np.float32) for shape in CONV.shapes[:2])
    y = np.zeros((1, 8, 4, 4), np.float32)
    said = _native.run_library_fenced(
        ONEDNN, CONV.fields(), [x, w], [y], [False, True], before_fence, 0xFF
    )
    assert "output 0" in said
