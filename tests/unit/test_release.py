"""Tests that the changelog and the version of the package agree."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tvm_interop

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RELEASES = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]


def test_the_newest_release_is_the_project_s_version() -> None:
    unreleased, newest = RELEASES[:2]
    assert unreleased.startswith("[Unreleased]\n")
    assert re.match(rf"\[{re.escape(PROJECT['version'])}\] - \d{{4}}-\d\d-\d\d\n", newest)


def test_a_release_has_each_kind_of_change_once() -> None:
    for release in RELEASES:
        kinds = re.findall(r"^### (\w+)$", release, flags=re.MULTILINE)
        assert kinds == sorted(set(kinds)), release[:40]
        assert set(kinds) <= {"Added", "Changed", "Deprecated", "Fixed", "Removed", "Security"}


def test_the_package_is_typed() -> None:
    assert (Path(tvm_interop.__file__).parent / "py.typed").is_file()
