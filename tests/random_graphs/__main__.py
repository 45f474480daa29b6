"""`python -m tests.random_graphs FIRST LAST`: random graphs, in processes that may crash."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

FAILURES = ("wrong", "bits", "raw", "crash", "slow")
LIMIT_S = 60.0
"""A graph that takes longer counts as slow, and is given up."""
_START_S = 30.0
_TOGETHER = 100
"""Graphs in one process."""


def main() -> int:
    """Run what the log does not have yet; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_graphs", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, help="behind the last seed")
    parser.add_argument("--log", type=Path, default=Path("build/random_graphs.jsonl"))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given.first, given.last, given.log)
    given.log.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + given.seconds
    done = {record["seed"] for record in read(given.log)}
    seeds = [seed for seed in range(given.first, given.last) if seed not in done]
    while seeds and time.monotonic() < until:
        seeds = seeds[run(seeds, given.log, until) :]
    return summary([r for r in read(given.log) if given.first <= r["seed"] < given.last])


def child(first: int, last: int, log: Path) -> int:
    """Judge these seeds, a line of the log each."""
    from .judge import judged

    os.nice(5)
    for seed in range(first, last):
        append(log, judged(seed))
    return 0


def run(seeds: list[int], log: Path, until: float) -> int:
    """Run the first few of `seeds` in one process, and say how many are done with."""
    ends = (i for i in range(1, len(seeds)) if seeds[i] != seeds[0] + i or i == _TOGETHER)
    count = next(ends, len(seeds))
    before = len(read(log))
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.random_graphs",
            str(seeds[0]),
            str(seeds[0] + count),
            "--log",
            str(log),
            "--child",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TVM_INTEROP_KEPT": ""},
    )
    done, last_seen = 0, time.monotonic() + _START_S
    while process.poll() is None:
        time.sleep(0.2)
        found, now = len(read(log)) - before, time.monotonic()
        if found > done:
            done, last_seen = found, now
        if now > until:
            process.kill()
            process.wait()
            return len(seeds)
        if now - last_seen > LIMIT_S:
            process.kill()
            process.wait()
            append(log, {"seed": seeds[done], "slow": LIMIT_S})
            return done + 1
    done = len(read(log)) - before
    if done < count:
        append(log, {"seed": seeds[done], "crash": process.returncode})
    return min(done + 1, count)


def append(log: Path, record: dict[str, Any]) -> None:
    with log.open("a") as file:
        file.write(json.dumps(record) + "\n")


def read(log: Path) -> list[dict[str, Any]]:
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def summary(records: list[dict[str, Any]]) -> int:
    """Print what became of the graphs; 1 if one failed."""
    kinds = (*FAILURES, "refused", "unclear", "noise", "unjudged")
    counts = Counter(kind for record in records for kind in kinds if kind in record)
    fine = sum(1 for record in records if not any(kind in record for kind in kinds))
    seconds = [float(record.get("s", 0)) for record in records]
    print(f"{len(records)} graphs, {fine} right; longest {max(seconds, default=0):.1f} s")
    print(", ".join(f"{kind} {counts[kind]}" for kind in kinds))
    reasons = Counter(
        re.sub(r"`[^`]*`|\d+", "_", str(record["refused"]))[:160]
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
        print("`python -m tests.random_graphs.minimise SEED` cuts out what is wrong")
    return 1 if any(counts[kind] for kind in FAILURES) else 0


if __name__ == "__main__":
    raise SystemExit(main())
