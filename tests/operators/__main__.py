"""`python -m tests.operators FAMILY ...`: judges families of cases in processes that may crash."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from .families import FAMILIES
from .judge import FAULTS, Trial, judge, trials

_AT_ONCE = 128
"""The number of trials (cases with a choice of constant inputs) whose verdicts are written to the
log together."""


def main() -> int:
    """Print the faults. Returns 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.operators", description=__doc__)
    parser.add_argument(
        "family", nargs="*", choices=[[], *FAMILIES], help="the families to judge; default: all"
    )
    parser.add_argument("--every", type=int, default=1, help="judge only one of every N cases")
    parser.add_argument("--only", default="", help="judge only the cases of this operator")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.family or [*FAMILIES]
    todo = selected(names, given.every, given.only)
    if given.child:
        child(todo, Path(given.child))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        records = watched(todo, sys.argv[1:], Path(folder) / "log")
    counts = Counter(verdict for verdict, _ in records)
    shown: dict[str, list[str]] = {}
    for verdict, line in records:
        if verdict in (*FAULTS, "crash"):
            case, way, why = line.split(" | ", 2)
            shown.setdefault(f"{case} | {why}", []).append(way)
    for line, ways in shown.items():
        print(f"{line} | {'; '.join(ways)}")
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return int(any(counts[verdict] for verdict in (*FAULTS, "crash")))


def selected(names: list[str], every: int = 1, only: str = "") -> list[Trial]:
    """The trials of these families."""
    cases = [case for name in names for case in list(FAMILIES[name]())[::every]]
    return trials([case for case in cases if only in ("", case.op)])


def watched(todo: list[Trial], arguments: list[str], log: Path) -> list[tuple[str, str]]:
    """The verdict and the log's line for each trial. If a process crashes, another process
    continues."""
    log.touch()
    while True:
        command = [sys.executable, "-m", "tests.operators", *arguments, "--child", str(log)]
        code = subprocess.run(command, check=False).returncode
        records = [tuple(json.loads(line)) for line in log.read_text().splitlines()]
        if code == 0:
            return records
        # If a process crashed while it judged a group, the trials of the group are judged one by
        # one.
        if records and records[-1][0] == "begun":
            place = len(records) - 1
            _replace(log, records[:-1], ("crash", f"crash: {todo[place]} (process ended: {code})"))
        elif (log.parent / "alone").exists():
            raise SystemExit(f"the process that judges ended with {code}")
        else:
            (log.parent / "alone").touch()


def _replace(log: Path, records: list[tuple[str, ...]], last: tuple[str, str]) -> None:
    log.write_text("".join(json.dumps(record) + "\n" for record in [*records, last]))
    (log.parent / "alone").unlink()


def child(todo: list[Trial], log: Path) -> None:
    """Judge the trials that are not in the log yet, and add their verdicts."""
    done = len(log.read_text().splitlines())
    alone = (log.parent / "alone").exists()
    while done < len(todo):
        group = todo[done : done + (1 if alone else _AT_ONCE)]
        before = log.read_text()
        if alone:
            log.write_text(before + json.dumps(["begun", ""]) + "\n")
        judge(group)
        lines = [json.dumps([trial.verdict, str(trial)]) + "\n" for trial in group]
        log.write_text(before + "".join(lines))
        done += len(group)


if __name__ == "__main__":
    sys.exit(main())
