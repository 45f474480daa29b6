"""Tests that the wheel of the runtime holds every file that its files import."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tvm_interop"
FILES = set(runpy.run_path(str(ROOT / ".ci" / "split_wheel.py"))["FILES"])


def imported(name: str) -> Iterator[str]:
    """The files of the package that the file `name` imports at its top level."""
    path = PACKAGE / name
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
        for found in (folder.with_suffix(".py"), *(folder / f"{n.name}.py" for n in node.names)):
            if found.exists():
                yield str(found.relative_to(PACKAGE))


def test_the_runtime_wheel_holds_what_its_files_import() -> None:
    python = {name for name in FILES if name.endswith(".py")}
    missing = {needed for name in python for needed in imported(name)} - FILES
    assert not missing, f".ci/split_wheel.py lacks {sorted(missing)}"
    assert all((PACKAGE / name).exists() for name in python)
