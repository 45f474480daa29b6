"""Tests that the help of each function that users call fits a screen."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import tvm_interop

SCREEN = 50
"""The number of lines of a screen."""
AROUND = 5
"""The number of lines that `help` prints besides a function's documentation.

These lines hold the name, the module and the signature.
"""

FUNCTIONS = [
    name for name in tvm_interop.__all__ if inspect.isfunction(getattr(tvm_interop, name, None))
]
OPTIONS = Path(__file__).parents[2] / "docs" / "compile.rst"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_fits_a_screen(name: str) -> None:
    documentation = inspect.getdoc(getattr(tvm_interop, name))
    assert documentation is not None
    lines = documentation.splitlines()
    assert len(lines) <= SCREEN - AROUND
    assert max(map(len, lines)) <= 96


def test_every_option_of_compile_is_explained_on_its_page() -> None:
    explained = set(re.findall(r"^``.*``$", OPTIONS.read_text(), re.MULTILINE))
    named = set(re.findall(r"\w+", " ".join(explained))) | {"keep_slower"}
    told_by_help = {"target", "scheduler", "out", "options"}
    among_options = {"time_budget", "shapes", "most_sizes", "fallback", "winograd"}
    parameters = set(inspect.signature(tvm_interop.compile).parameters)
    assert (parameters | among_options) - told_by_help == named
