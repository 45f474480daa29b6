"""`python -m tests.random_graphs FIRST LAST`: judges random graphs in processes that may crash."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

FAILURES = ("wrong", "bits", "raw", "crash", "slow")
LIMIT_S = 60.0
"""The limit for one graph, in seconds of processor time.

Processor time does not depend on how busy the machine is. A graph that takes longer counts as slow,
and is given up.
"""
_HANGS_S = 900
"""The limit for one graph in seconds of real time. It ends a graph that waits forever."""
_NICE = 5
_TOGETHER = 100
"""The number of graphs in one process."""
CHILD = (sys.executable, "-m", "tests.random_graphs")


def main() -> int:
    """Judge the graphs that are not in the log yet. Returns 1 if a graph failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_graphs", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, help="the seed after the last seed to judge")
    parser.add_argument("--log", type=Path, default=Path("build/random_graphs.jsonl"))
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="start no further graph after this number of seconds",
    )
    parser.add_argument(
        "--ranges", action="store_true", help="graphs with dimensions of any size, for ranges"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given.first, given.last, given.log, ranges=given.ranges)
    given.log.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + given.seconds
    done = {record["seed"] for record in read(given.log)}
    seeds = [seed for seed in range(given.first, given.last) if seed not in done]
    while seeds and time.monotonic() < until:
        seeds = seeds[run(seeds, given.log, until, ranges=given.ranges) :]
    return summary([r for r in read(given.log) if given.first <= r["seed"] < given.last])


def child(first: int, last: int, log: Path, *, ranges: bool) -> int:
    """Judge the graphs of these seeds, and write a line of the log for each graph.

    A graph that takes too long ends the process.
    """
    from . import judge
    from . import ranges as judge_of_ranges

    judged = judge_of_ranges.judged if ranges else judge.judged

    os.nice(max(0, _NICE - os.nice(0)))
    for seed in range(first, last):
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        signal.alarm(_HANGS_S)
        append(log, judged(seed))
    return 0


def run(seeds: list[int], log: Path, until: float, *, ranges: bool = False) -> int:
    """Judge the first graphs in one process, as far as their seeds are consecutive numbers. Return
    the number of graphs that are judged."""
    ends = (i for i in range(1, len(seeds)) if seeds[i] != seeds[0] + i or i == _TOGETHER)
    count = next(ends, len(seeds))
    before = len(read(log))
    left_s = until - time.monotonic()
    try:
        ended = subprocess.run(
            [
                *CHILD,
                str(seeds[0]),
                str(seeds[0] + count),
                "--log",
                str(log),
                "--child",
                *(["--ranges"] if ranges else []),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=left_s if math.isfinite(left_s) else None,
            env={**os.environ, "TVM_INTEROP_KEPT": ""},
        )
    except subprocess.TimeoutExpired:
        return len(seeds)
    done = len(read(log)) - before
    if done == count:
        return count
    append(log, {"seed": seeds[done]} | ending(ended))
    return done + 1


def ending(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The record of the graph that a process was judging when it ended too early."""
    if ended.returncode == -signal.SIGPROF:
        return {"slow": f"over {LIMIT_S:.0f} s of processor time"}
    if ended.returncode == -signal.SIGALRM:
        return {"slow": f"hangs: no end after {_HANGS_S} s"}
    if ended.returncode < 0:
        return {"crash": signal.Signals(-ended.returncode).name}
    said = ended.stderr.strip().splitlines() or [""]
    return {"crash": f"exit code {ended.returncode}: {said[-1][:200]}"}


def append(log: Path, record: dict[str, Any]) -> None:
    with log.open("a") as file:
        file.write(json.dumps(record) + "\n")


def read(log: Path) -> list[dict[str, Any]]:
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def _reason(refused: str) -> str:
    """The reason that the error of a refused graph gives, or the whole error."""
    return refused.partition("this could change results, since ")[2] or refused


def summary(records: list[dict[str, Any]]) -> int:
    """Print the number of graphs of each kind. Returns 1 if a graph failed."""
    kinds = (*FAILURES, "refused", "unclear", "settled", "rounded", "noise", "unjudged")
    counts = Counter(kind for record in records for kind in kinds if kind in record)
    fine = sum(1 for record in records if not any(kind in record for kind in kinds))
    seconds = [float(record.get("s", 0)) for record in records]
    print(f"{len(records)} graphs, {fine} right; longest {max(seconds, default=0):.1f} s")
    print(", ".join(f"{kind} {counts[kind]}" for kind in kinds))
    reasons = Counter(
        re.sub(r"`[^`]*`|\d+", "_", _reason(str(record["refused"])))[:160]
        for record in records
        if "refused" in record
    )
    for reason, count in reasons.most_common():
        print(f"{count:5} refused: {reason}")
    for record in records:
        for kind in (*FAILURES, "unclear"):
            if kind in record:
                print(f"seed {record['seed']}: {kind}: {record[kind]}")
    if counts["wrong"]:
        print(
            "`python -m tests.random_graphs.minimise SEED` finds the wrong nodes, without --ranges"
        )
    return 1 if any(counts[kind] for kind in FAILURES) else 0


if __name__ == "__main__":
    raise SystemExit(main())
