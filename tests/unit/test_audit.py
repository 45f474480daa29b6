"""Tests that the audit of dependencies tells known vulnerabilities from a service that does not
answer."""

from __future__ import annotations

import json

from tests.audit import judged, said

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


def test_a_tool_that_fails_is_no_silence() -> None:
    """A tool that fails must not pass for a service that does not answer. `pip-audit` fails here
    because it is not installed, or cannot read the installed packages."""
    lines, code = said("", "No module named pip_audit")
    assert code == 1
    assert "No module named pip_audit" in lines[0]


def test_a_network_that_blocks_the_service_is_no_failure() -> None:
    errors = "ERROR:pip_audit._cli:Tip: your network may be blocking this service. Try another"
    assert said("", errors) == (["not audited: no advisory service answers"], 0)


def test_what_it_finds_is_read() -> None:
    assert said(json.dumps({"dependencies": [WEAK]}), "")[1] == 1
