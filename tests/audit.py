"""`python -m tests.audit`: known weaknesses of what is installed, where anybody knows of them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def main() -> int:
    """Print what is known; 1 if anything is."""
    command = [sys.executable, "-m", "pip_audit", "--local", "--format", "json"]
    done = subprocess.run(
        [*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False
    )
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"not audited: no advisory service answers\n{done.stderr[-500:]}")
        return 0
    lines, code = judged(found)
    print("\n".join(lines))
    return code


def judged(found: list[dict[str, Any]]) -> tuple[list[str], int]:
    """What to print, and the exit code, of what `pip-audit` says of each package."""
    asked = [package for package in found if "vulns" in package]
    if not asked:
        return ["not audited: no advisory service answers"], 0
    weak = [
        f"{package['name']} {package['version']}: {weakness['id']}, mended in "
        f"{', '.join(weakness['fix_versions']) or 'no version'}"
        for package in asked
        for weakness in package["vulns"]
    ]
    return [*weak, f"{len(asked)} packages audited, {len(found) - len(asked)} unknown"], bool(weak)


if __name__ == "__main__":
    sys.exit(main())
