"""The command line, `tvm-interop`. It takes the verbs and flags of tvmc that make sense here."""

from __future__ import annotations

import io
import sys

from .app import run_app


def main() -> None:
    """Run the `tvm-interop` command, and exit with its code: see `run_app`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file's name need not be UTF-8. Python has then replaced some of its bytes by surrogates,
        # and this writes the same bytes again.
        sys.stdout.reconfigure(errors="surrogateescape")
    sys.exit(run_app(sys.argv[1:]))
