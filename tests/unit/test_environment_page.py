"""Tests that `docs/environment.rst` has exactly the environment variables that the code reads."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "environment.rst"


def test_the_page_has_every_variable_that_is_read() -> None:
    read = {
        name
        for folder in ("tvm_interop", "runtime", "passes", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cc", ".h")
        for name in re.findall(r"""["'](TVM_INTEROP_[A-Z_]+)["']""", path.read_text())
    }
    told = set(re.findall(r"^``(TVM_INTEROP_[A-Z_]+)``$", PAGE.read_text(), flags=re.MULTILINE))
    assert {"TVM_INTEROP_NUM_THREADS", "TVM_INTEROP_CUDART_LIBRARY"} <= read
    assert read - told == set(), "not in docs/environment.rst"
    assert told - read == set(), "in docs/environment.rst, and read nowhere"


def test_the_page_has_the_variables_of_other_programs_that_are_read() -> None:
    read = {
        name
        for folder in ("tvm_interop", "runtime", "passes")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cc", ".h")
        for name in re.findall(
            r"""(?:environ(?:\.get|\.setdefault)?[\[(]|getenv\()["']([A-Z_]+)["']""",
            path.read_text(),
        )
    }
    assert {"CUDA_HOME", "TMPDIR"} <= read
    assert {name for name in read if f"``{name}``" not in PAGE.read_text()} == set()
