"""`python -m tests.fuzz`: tries inputs by the thousand, in processes that may crash."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .compiled import FOLDER

SHARES = {
    "command": 0.02,
    "model": 0.03,
    "artifact": 0.10,
    "remade": 0.10,
    "schedule": 0.35,
    "plan": 0.40,
}
"""The share of each kind among all inputs. Kinds with slow inputs have small shares."""
_CHUNK = 2500
"""The number of inputs of one process."""
_DONE = "done.jsonl"
"""The file, in the folder `--keep`, that lists the processes without findings.

A later call with `--resume` skips these processes.
"""


@dataclass(frozen=True)
class Outcome:
    """The results of one process."""

    kind: str
    tried: int
    taken: int
    failure: str | None = None


def main() -> int:
    """Run the fuzz test, print a line for each kind, and return 1 if a defect was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="number of inputs of all kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kinds", default=",".join(SHARES), help="kinds of inputs, separated by commas"
    )
    parser.add_argument("--jobs", type=int, default=2, help="number of processes at once")
    parser.add_argument(
        "--keep", type=Path, default=Path("build/fuzz"), help="folder for failing inputs"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="skip the processes that found nothing in an earlier call",
    )
    parser.add_argument("--replay", type=Path, help="try this kept input again")
    given = parser.parse_args()
    if given.replay is not None:
        os.environ[FOLDER] = str(given.replay.absolute().parent / "artifacts")
        kind = given.replay.name.partition("-")[0]
        return subprocess.run(_child(kind, "--replay", str(given.replay))).returncode
    kinds = given.kinds.split(",")
    whole = sum(SHARES[kind] for kind in kinds)
    given.keep.mkdir(parents=True, exist_ok=True)
    os.environ[FOLDER] = str(given.keep.absolute() / "artifacts")
    if "remade" in kinds:  # Compile only once, and not in two processes at the same time.
        subprocess.run(
            [sys.executable, "-m", "tests.fuzz.compiled", os.environ[FOLDER]], check=True
        )
    done = _done(given.keep) if given.resume else {}
    began = time.monotonic()
    with ThreadPoolExecutor(given.jobs) as pool:
        chunks = [
            (kind, inputs, given.seed + i)
            for kind in kinds
            for i, inputs in enumerate(_chunks(round(given.inputs * SHARES[kind] / whole)))
        ]
        outcomes = list(
            pool.map(lambda chunk: done.get(chunk) or _run(*chunk, keep=given.keep), chunks)
        )
    for kind in kinds:
        mine = [outcome for outcome in outcomes if outcome.kind == kind]
        tried, taken = sum(o.tried for o in mine), sum(o.taken for o in mine)
        print(f"{kind:9} {tried:7} tried, {taken:6} taken, {tried - taken:6} refused")
    failures = [outcome.failure for outcome in outcomes if outcome.failure]
    took_s = time.monotonic() - began
    print(f"{sum(o.tried for o in outcomes)} inputs in {took_s:.0f} s, {len(failures)} failures")
    print("\n".join(failures))
    return 1 if failures else 0


def _chunks(inputs: int) -> list[int]:
    whole, rest = divmod(inputs, _CHUNK)
    return [_CHUNK] * whole + ([rest] if rest else [])


def _done(keep: Path) -> dict[tuple[str, int, int], Outcome]:
    """The results of processes of earlier calls, if the processes found no defect."""
    log = keep / _DONE
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return {(kind, n, seed): Outcome(kind, *counts) for kind, n, seed, *counts in rows}


def _child(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.fuzz.child", *arguments]


def _run(kind: str, inputs: int, seed: int, keep: Path) -> Outcome:
    """Run one process. If it fails, keep its last input and its output."""
    with tempfile.TemporaryDirectory(prefix="fuzz_") as folder:
        current = Path(folder) / "input"
        done = subprocess.run(
            _child(kind, "--inputs", str(inputs), "--seed", str(seed), "--current", str(current)),
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode == 0:
            counts = json.loads(done.stdout.splitlines()[-1])
            with open(keep / _DONE, "a") as log:
                log.write(json.dumps([kind, inputs, seed, counts["tried"], counts["taken"]]) + "\n")
            return Outcome(kind, counts["tried"], counts["taken"])
        kept = keep / f"{kind}-{seed}"
        if current.exists():
            shutil.copy(current, kept)
        kept.with_suffix(".log").write_text(done.stdout + done.stderr)
        how = f"signal {-done.returncode}" if done.returncode < 0 else "an error"
        said = (done.stderr.strip().splitlines() or [""])[-1]
        failure = f"{kind}: {how}, {said}; try it again with: python -m tests.fuzz --replay {kept}"
        return Outcome(kind, 0, 0, failure)


if __name__ == "__main__":
    sys.exit(main())
