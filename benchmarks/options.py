"""Options that many of the scripts here have."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_rounds(parser: argparse.ArgumentParser, default: int) -> None:
    """Add `--rounds`: how often each contestant is measured."""
    parser.add_argument("--rounds", type=int, default=default, help="default: %(default)s")


def add_json(parser: argparse.ArgumentParser, what: str = "what was found") -> None:
    """Add the option `--json FILE`. Its help text says that `what` is written to this file."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {what} to this file")


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add `--force`, for `machine_state.observe_quiet`."""
    parser.add_argument("--force", action="store_true", help="measure on a busy machine too")
