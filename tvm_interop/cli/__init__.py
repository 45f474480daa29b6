"""The command line, `tvm-interop`. It takes the verbs and flags of tvmc that make sense here."""

from __future__ import annotations

import sys

from .app import run_app


def main() -> None:
    """Run the `tvm-interop` command, and exit with its code: see `run_app`."""
    sys.exit(run_app(sys.argv[1:]))
