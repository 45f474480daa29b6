"""Tests that code and documents use the same plain words for the same thing."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = (
    "tvm_interop",
    "passes",
    "runtime",
    "benchmarks",
    "tests",
    "docs",
    "tutorials",
    "README.md",
)
SUFFIXES = frozenset((".py", ".cc", ".h", ".cu", ".md", ".rst"))
COMPARED = "better|faster|greater|higher|larger|less|longer|lower|more|slower|smaller|wider|worse"
IS_NO = re.compile(rf"(?<!here )\b(?:is|are) no (?!(?:{COMPARED})\b)\w+")
"""Says of a thing that it "is no file" (but not "there is no file"), instead of "is not a file"."""
SHARED = (
    "it is not a file",
    "it is truncated or not an artifact of tvm_interop",
    "a schedule has either a field `stages` or a field `streams`",
    "` is not a kind of operator that this version knows",
    " dimensions; images have 4",
    ", which is not a multiple of ",
    "reads or writes a value that the plan does not have",
    "waits for an operator that is not planned before it",
)
"""Texts of messages about faults that both the Python package and the C++ runtime find."""


@functools.cache
def texts(*places: str) -> dict[str, str]:
    """The texts of source files and documents by path, with lines and pieces of strings joined."""
    files = [
        path
        for place in places
        for path in ((ROOT / place).rglob("*") if (ROOT / place).is_dir() else [ROOT / place])
        if path.suffix in SUFFIXES and path != Path(__file__)
    ]
    return {str(path.relative_to(ROOT)): joined(path.read_text(encoding="utf-8")) for path in files}


def joined(text: str) -> str:
    """Join the pieces of strings that continue on the next line, and lines of prose.

    Examples
    --------
    >>> joined('"it is "' + chr(10) + '    f"a file"'), joined("# it is" + chr(10) + "# a file")
    ('"it is a file"', '# it is a file')
    """
    text = re.sub(r'"\s*\n\s*f?"', "", text)
    return re.sub(r"\s*\n\s*(?:#|///?|\*)?\s*", " ", text)


def test_nothing_is_called_no_thing() -> None:
    found = [
        f"{path}: {match.group()}"
        for path, text in texts(*PLACES).items()
        for match in IS_NO.finditer(text)
    ]
    assert found == [], "write `is not a`, as all other messages and comments do"


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("it is no file", True),
        ("these are no basis for a claim", True),
        ("there is no file", False),
        ("There are no more files", False),
        ("it is no longer there", False),
    ],
)
def test_which_texts_say_that_a_thing_is_no_thing(text: str, fits: bool) -> None:
    assert bool(IS_NO.search(text)) == fits


@pytest.mark.parametrize("text", SHARED)
def test_python_and_cxx_report_a_fault_in_the_same_words(text: str) -> None:
    missing = [
        folder
        for folder in ("tvm_interop", "runtime")
        if not any(text in content for content in texts(folder).values())
    ]
    assert missing == [], f"no message in these folders says {text!r}"
