"""The command line, `tvm-interop`: tvmc's verbs and flags where they still mean something."""

from __future__ import annotations

import sys

from .app import run_app


def main() -> None:
    """Entry point of the `tvm-interop` command: exits with 0, or 2 for a request that is wrong."""
    sys.exit(run_app(sys.argv[1:]))
