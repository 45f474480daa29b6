"""Tests `benchmarks.gpu_interfaces` on the fake GPU, whose bits are always the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import torch_gpu
from benchmarks.gpu_bundle import add_runtime_library
from benchmarks.gpu_bundle_models import add_case, reference
from benchmarks.gpu_interfaces import RUNTIME, Ways, look
from benchmarks.step_facts import MISSING, WRONG, Facts
from tests.nets import branches


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    model = branches()
    add_case(folder / "branches", model, ["sm_90"], reference(model))
    add_runtime_library(folder / RUNTIME, Path(__file__).resolve().parents[3])
    return folder


def test_all_interfaces_are_tried(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_gpu, "why_not", lambda: "no PyTorch")
    ways = Ways(bundle / "branches", bundle)
    expected = [ways.by_host_arrays(which) for which in (0, 1)]
    ways.reference = expected  # The fake GPU's own numbers are the reference.
    facts = Facts(tmp_path / "out.json")
    assert look(ways, facts) == MISSING
    text = (tmp_path / "out.json").read_text()
    for name in ("session", "program in C", "threads"):
        assert f'"{name}": "same bits"' in text


def test_other_bits_and_failures_are_told(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = Ways(bundle / "branches", bundle)
    ways.reference = [ways.by_host_arrays(which) for which in (0, 1)]

    def other(which: int) -> list[np.ndarray]:
        return [array + 1 for array in ways.by_host_arrays(which)]

    def failing(which: int) -> Any:
        raise OSError("no compiler")

    monkeypatch.setattr(torch_gpu, "why_not", lambda: "no PyTorch")
    monkeypatch.setattr(ways, "by_session", other)
    monkeypatch.setattr(ways, "by_program", failing)
    assert look(ways, Facts(tmp_path / "out.json")) == WRONG
    text = (tmp_path / "out.json").read_text()
    assert "session: different bits" in text
    assert "program in C: OSError: no compiler" in text
