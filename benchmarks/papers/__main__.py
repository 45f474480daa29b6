"""Runs experiments of the papers, keeps their results, and draws their pictures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import pages, store
from .record import verdict
from .registry import PAPERS, Experiment, chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen experiments; returns 0, or 2 if there is no such experiment."""
    parser = argparse.ArgumentParser(prog="benchmarks.papers", description=__doc__)
    parser.add_argument("paper", nargs="?", choices=[*PAPERS], help="default: all papers")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--figure", help="number of a figure")
    which.add_argument("--table", help="number of a table")
    which.add_argument("--only", help="the full name of an experiment, such as RQ1")
    parser.add_argument("--quick", action="store_true", help="leave out what is slow")
    parser.add_argument("--list", action="store_true", help="list the experiments; run nothing")
    parser.add_argument("--out", type=Path, default=store.FOLDER, help="folder of results")
    options = parser.parse_args(arguments)
    name = options.only
    if options.figure or options.table:
        name = f"Figure {options.figure}" if options.figure else f"Table {options.table}"
    if name and not options.paper:
        parser.error("say of which paper the table or figure is")
    papers = [options.paper] if options.paper else [*PAPERS]
    try:
        found = [each for paper in papers for each in chosen(paper, name)]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for each in found:
        if options.list:
            print(_line(each))
        elif not (options.quick and each.slow):
            record = store.run(each, options.out)
            holds = sum(check.holds for check in record.checks)
            print(
                f"{each.paper}, {each.name}: {verdict(record)}, {holds} of {len(record.checks)} "
                "checks hold",
                flush=True,
            )
    if not options.list and options.out == store.FOLDER:
        for paper in papers:
            pages.draw(paper)
    return 0


def _line(found: Experiment) -> str:
    slow = "slow" if found.slow else "quick"
    return f"{found.paper:6s} {found.name:14s} {slow:6s} {found.seconds:6.0f} s  {found.title}"


if __name__ == "__main__":
    raise SystemExit(main())
