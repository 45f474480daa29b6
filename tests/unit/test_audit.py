"""The audit of dependencies tells weaknesses from silence."""

from __future__ import annotations

from tests.audit import judged

SKIPPED = {"name": "numpy", "skip_reason": "Dependency not found on PyPI"}
FINE = {"name": "rich", "version": "15.0", "vulns": []}
WEAK = {
    "name": "jinja2",
    "version": "3.1",
    "vulns": [{"id": "CVE-2024-1", "fix_versions": ["3.2"], "aliases": [], "description": ""}],
}


def test_a_weakness_fails() -> None:
    lines, code = judged([SKIPPED, FINE, WEAK])
    assert lines == [
        "jinja2 3.1: CVE-2024-1, mended in 3.2",
        "2 packages audited, 1 unknown",
    ]
    assert code == 1


def test_nothing_known_passes() -> None:
    assert judged([FINE, SKIPPED]) == (["1 packages audited, 1 unknown"], 0)


def test_where_nobody_answers_that_is_said() -> None:
    assert judged([SKIPPED]) == (["not audited: no advisory service answers"], 0)
