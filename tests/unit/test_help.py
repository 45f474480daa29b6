"""Tests the help of the functions and commands that users call."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import tvm_interop
from tvm_interop.cli.app import VERBS, run_app
from tvm_interop.cli.console import help_of

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
    told_by_help = {"out", "options"}
    among_options = {"time_budget", "shapes", "most_sizes", "fallback", "winograd", "like"}
    parameters = set(inspect.signature(tvm_interop.compile).parameters)
    assert (parameters | among_options) - told_by_help == named


CALLS = [(name,) for name in VERBS] + [("db", name) for name in ("stats", "export", "prune")]


@pytest.mark.parametrize("verb", [(), *CALLS], ids=" ".join)
def test_help_of_a_verb_is_whole_on_a_narrow_terminal(
    verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run_app([*verb, "--help"]) == 0
    assert "…" not in capsys.readouterr().out, "a word is too long for its column"


def test_the_lines_of_the_help_are_left_to_the_terminal() -> None:
    for name, verb in VERBS.items():
        text = help_of(verb)
        assert text, name
        assert "\n" not in text.replace("\n\n", ""), name
        assert text.split() == (inspect.getdoc(verb) or "").split()
