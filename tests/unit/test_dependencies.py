"""Tests that new releases of other packages do not change what is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def requirements() -> list[str]:
    """All requirements in pyproject.toml: to build, to run, and of each extra."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = told["project"]["optional-dependencies"].values()
    return [
        *told["build-system"]["requires"],
        *told["project"]["dependencies"],
        *(requirement for extra in extras for requirement in extra),
    ]


def is_bounded(requirement: str) -> bool:
    bounds = Requirement(requirement).specifier
    return any(bound.operator in ("<", "<=", "==", "~=") for bound in bounds)


def test_each_has_an_upper_bound() -> None:
    assert [each for each in requirements() if not is_bounded(each)] == []


@pytest.mark.parametrize(
    ("requirement", "bounded"),
    [("numpy>=1.26,<3", True), ("torch==2.13.0", True), ("numpy>=1.26", False), ("numpy", False)],
)
def test_a_bound_is_seen(requirement: str, bounded: bool) -> None:
    assert is_bounded(requirement) == bounded
