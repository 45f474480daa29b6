"""`python -m tests.audit`: prints known vulnerabilities of the installed packages.

The program says so if it cannot reach a service that lists known vulnerabilities.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_NOT_AUDITED = "not audited: no advisory service answers"
_NOBODY_ANSWERS = "your network may be blocking this service"
"""The message of `pip-audit` if it cannot reach the service."""


def main() -> int:
    """Run the audit and print its result.

    Returns 1 if a vulnerability is known, or if the audit failed although the service answers.
    """
    command = [sys.executable, "-m", "pip_audit", "--local", "--format", "json"]
    done = subprocess.run(
        [*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False
    )
    lines, code = said(done.stdout, done.stderr)
    print("\n".join(lines))
    return code


def said(output: str, errors: str) -> tuple[list[str], int]:
    """Return the lines to print and the exit code for the output of `pip-audit`."""
    try:
        found = json.loads(output)["dependencies"]
    except (ValueError, KeyError):
        if _NOBODY_ANSWERS in errors:
            return [_NOT_AUDITED], 0
        return [f"pip-audit failed:\n{errors.strip()[-1000:]}"], 1
    return judged(found)


def judged(found: list[dict[str, Any]]) -> tuple[list[str], int]:
    """Return the lines to print and the exit code for the packages that `pip-audit` found."""
    asked = [package for package in found if "vulns" in package]
    if not asked:
        return [_NOT_AUDITED], 0
    weak = [
        f"{package['name']} {package['version']}: {weakness['id']}, mended in "
        f"{', '.join(weakness['fix_versions']) or 'no version'}"
        for package in asked
        for weakness in package["vulns"]
    ]
    return [*weak, f"{len(asked)} packages audited, {len(found) - len(asked)} unknown"], bool(weak)


if __name__ == "__main__":
    sys.exit(main())
