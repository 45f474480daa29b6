"""`python -m tests.audit`: known weaknesses of what is installed, where anybody knows of them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_NOT_AUDITED = "not audited: no advisory service answers"
_NOBODY_ANSWERS = "your network may be blocking this service"
"""What `pip-audit` says where it cannot reach the service."""


def main() -> int:
    """Print what is known; 1 if a weakness is, or if nothing could be asked for another reason."""
    command = [sys.executable, "-m", "pip_audit", "--local", "--format", "json"]
    done = subprocess.run(
        [*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False
    )
    lines, code = said(done.stdout, done.stderr)
    print("\n".join(lines))
    return code


def said(output: str, errors: str) -> tuple[list[str], int]:
    """What to print, and the exit code, of all that `pip-audit` wrote."""
    try:
        found = json.loads(output)["dependencies"]
    except (ValueError, KeyError):
        if _NOBODY_ANSWERS in errors:
            return [_NOT_AUDITED], 0
        return [f"pip-audit failed:\n{errors.strip()[-1000:]}"], 1
    return judged(found)


def judged(found: list[dict[str, Any]]) -> tuple[list[str], int]:
    """What to print, and the exit code, of what `pip-audit` says of each package."""
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
