"""Tests that `tests.house` counts correctly, and that the code stays within its limits."""

from __future__ import annotations

import ast
import runpy

from tests import house

MODULE = '''"""What it is."""

import os  # For its name.


LIMIT = 3
"""How many there may be."""


def f(a, /, b, *rest, c=1, **options):
    """One line.

    Another.
    """
    text = """not
    documentation"""

    return text  # Done.
'''

HEADER = """// Says what it is.
#pragma once

/* Over
   lines. */
const char* kUrl = "https://x";  // A URL is not a comment.
int f();
"""


def test_lines_of_code_are_without_comments_documentation_and_blanks() -> None:
    assert house.python_lines(MODULE, ast.parse(MODULE)) == 6
    assert house.cxx_lines(HEADER) == 3
    found = house.house_of({"tvm_interop/a.py": MODULE, "passes/a.h": HEADER})
    assert found.code_lines == {"tvm_interop": 6, "passes": 3}


def test_parameters_are_counted_of_every_kind() -> None:
    assert house.house_of({"a/m.py": MODULE}).widest == ("a/m.py:10 f", 5)


def test_what_is_long_is_named_with_its_lines() -> None:
    long = "def g():\n" + "    x = 1\n" * house.LONG_FUNCTION
    exact = "def h():\n" + "    x = 1\n" * (house.LONG_FUNCTION - 1)
    found = house.house_of({"a/m.py": long + exact, "a/n.cc": "x;\n" * (house.LONG_FILE + 1)})
    assert found.long_functions == {"a/m.py:1 g": house.LONG_FUNCTION + 1}
    assert found.long_files == {"a/n.cc": house.LONG_FILE + 1}


def test_circles_are_found_through_relative_imports_and_inside_functions() -> None:
    files = {
        "p/__init__.py": "from .a import x",
        "p/a.py": "from . import b",
        "p/b.py": "def f():\n    from ..p.c import y",
        "p/c.py": "import p.a",
        "p/d.py": "from .a import x",
    }
    assert house.house_of(files).circles == [["p.a", "p.b", "p.c"]]


def test_the_code_gets_no_worse() -> None:
    now = house.house_of(house.files_now())
    assert sum(now.code_lines.values()) > 10_000
    assert now.circles == []
    assert len(now.long_functions) <= house.MOST_LONG_FUNCTIONS, house.report(now)
    assert len(now.long_files) <= house.MOST_LONG_FILES, house.report(now)
    assert now.widest[1] <= house.MOST_PARAMETERS, house.report(now)


def test_each_planted_fault_of_the_native_code_still_has_its_place() -> None:
    planted = runpy.run_path(str(house.ROOT / "tests" / "cpp" / "mutations.py"))
    lost = [
        fault.name
        for fault in planted["MUTATIONS"]
        if (house.ROOT / "runtime" / "cpu" / fault.file).read_text().count(fault.right) != 1
    ]
    assert lost == []
