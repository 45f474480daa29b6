"""Runs the examples in docstrings of the package and of the tests' own tools."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.code_blocks import small_model

ROOT = Path(__file__).resolve().parents[2]


def modules_with_examples() -> list[str]:
    """The names of the modules with examples in their docstrings."""
    return sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for folder in ("tvm_interop", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
    )


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of a docstring find the files `model.onnx` and `model.tar` of a small model, and
    an input for this model as `image`."""
    monkeypatch.chdir(tmp_path)
    model = small_model("image")
    onnx.save(model, "model.onnx")
    tvm_interop.compile(model, scheduler="sequential", out="model.tar")
    image = np.array([[-1, 0, 1]], dtype=np.float32)
    given = {"image": image, "tvm_interop": tvm_interop}
    result = doctest.testmod(importlib.import_module(name), extraglobs=given)
    assert result.failed == 0, "the output above says which example failed"


def test_the_main_classes_and_functions_have_examples() -> None:
    documented = ("Session", "GraphModule", "compile", "load", "OpGraph", "Schedule", "schedule")
    for name in documented:
        assert ">>> " in (getattr(tvm_interop, name).__doc__ or ""), name


def test_a_wrong_example_is_noticed() -> None:
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    assert doctest.DocTestRunner(verbose=False).run(example, out=lambda _: None).failed == 1
