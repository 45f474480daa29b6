"""Tests that `tvm_interop._native` has each function of the native library exactly once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tvm_ffi.registry

import tvm_interop
from tvm_interop._native import cpu, cuda, passes

PACKAGE = Path(tvm_interop.__file__).parent
_FUNCTIONS = {
    "runtime": r'_function\(\s*"(\w+)"\s*\)',
    "cuda": r'_function\(\s*"(\w+)"\s*\)',
    "": r'_find\(\s*"(\w+)"\s*\)',
}


@pytest.mark.parametrize(("module", "group"), [(cpu, "runtime"), (cuda, "cuda"), (passes, "")])
def test_each_function_of_the_library_is_there_once(module: object, group: str) -> None:
    source = Path(str(module.__file__)).read_text()  # type: ignore[attr-defined]
    named = re.findall(_FUNCTIONS[group], source)
    start = f"tvm_interop.{group}." if group else "tvm_interop."
    registered = [
        name.removeprefix(start)
        for name in map(str, tvm_ffi.registry.list_global_func_names())
        if name.startswith(start) and "." not in name.removeprefix(start)
    ]
    assert sorted(named) == sorted(registered)


def test_nobody_else_looks_the_library_up() -> None:
    others = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "_native"
        and re.search(r'get_global_func\(f?"tvm_interop', path.read_text())
    ]
    assert others == []
