"""Runs a visit to a machine with a GPU, step by step, and keeps the findings of each step.

The bundle that `make gpu-bundle` makes contains this program; `sh run.sh` runs it:
    sh run.sh --list              # the steps, with their limits
    sh run.sh --call 1            # the steps of one group, which fit into 10 minutes
    sh run.sh --only versions     # one step, even if it was done before

Each step is a process of its own with a limit of seconds. So all other steps run even if a step
hangs, or makes the GPU unusable for its process. After each step, `visit.json` has all findings so
far, and `visit.log` has all output. A visit that was stopped goes on when it is started again:
Steps that ended are not run again. The step that was stopped before its end is named and left out;
`--only` runs it again.

If a step lacks something (a compiler, PyTorch, a library), its output says so, and the visit goes
on. The exit code is 0 if all other steps ran.

This program needs only Python.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .step_facts import DONE, MISSING, MISSING_KEY, WRONG_KEY

NOT_NEEDED = "not needed"
"""The state of a step that examines failures of other steps, if none of them has failed."""
DONE_STATES = ("done", "missing", NOT_NEEDED)
"""States of steps that ran, or that could not be run here, or that are not needed."""
ENDED_STATES = ("done", "missing", "failed", "killed", "stopped")
"""States of steps that are not run again. "stopped" means that the visit ended in the step."""
MOST_FACTS_BYTES = 2 * 10**6
MOST_LOG_BYTES = 8 * 10**6
"""The most bytes that one step may add to `visit.json`, and the most bytes of `visit.log`."""
LEAST_SHARE = 0.4
"""A step begins only if the visit has at least this share of the step's time limit left."""
TIME_LIMITS = {"squeezenet": 60, "inception_v3": 110, "randwire": 140, "nasnet_a": 180}
OTHER_TIME_LIMIT = 60
"""Seconds for the part `time` of `gpu.py`, by network."""
_DIE_WITH_PARENT = 1
"""The number of `PR_SET_PDEATHSIG` in Linux."""


@dataclass(frozen=True)
class Step:
    """One step of the visit, in which the bundle's programs run on a machine with a GPU.

    Attributes
    ----------
    call: the number of the group that the step belongs to. Each group fits into 10 minutes.
    limit_s: seconds after which the step is killed.
    command: the arguments of Python. `{out}` stands for the file that the step writes, `{bundle}`
        for the bundle's folder, and `{seconds}` for the seconds that the step should take.
    environment: variables that are set for this step only.
    after_failure_of: names of steps. If the list is not empty, this step is needed only if one of
        these steps has failed.
    """

    name: str
    call: int
    limit_s: int
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    after_failure_of: tuple[str, ...] = ()


def steps_of(bundle: Path) -> list[Step]:
    """All steps for the networks in a bundle, in the order in which they run."""
    networks, cases, on_cpu = (_names(bundle / part) for part in ("networks", "cases", "cpu"))
    papers = [name for name in networks if name in TIME_LIMITS] or networks[:1]
    others = [name for name in networks if name not in papers]
    return [
        _own("versions", 1, 60),
        *(_network("check", name, 1, 45) for name in networks[:1]),
        *(_network("check", name, 1, 20, "cases") for name in cases),
        *(_interfaces(name, 1, 40) for name in cases[:1]),
        _own("library-cases", 1, 60),
        _own("sanitizer", 1, 70),
        _own("probes", 1, 30),
        _own("probes", 1, 30, "probes, 32 connections", CUDA_DEVICE_MAX_CONNECTIONS="32"),
        *(_network("time", name, 2, TIME_LIMITS.get(name, OTHER_TIME_LIMIT)) for name in papers),
        *(_network("time", name, 3, OTHER_TIME_LIMIT) for name in others),
        *(_network("flight", name, 3, 40) for name in networks),
        *(_network("compile", name, 4, 60) for name in networks),
        *(_cpu(name, 4, 50) for name in on_cpu),
        *(_tool("ncu", name, 5, 90) for name in networks[:1]),
        *(_tool("sanitizer", name, 5, 110, f"check {name}", f"time {name}") for name in papers),
    ]


def _own(step: str, call: int, limit_s: int, name: str = "", **environment: str) -> Step:
    command = ("-m", "benchmarks.gpu_steps", step, "--bundle", "{bundle}", "--out", "{out}")
    return Step(name or step, call, limit_s, command, environment)


def _network(part: str, name: str, call: int, limit_s: int, folder: str = "networks") -> Step:
    command = ("-m", "benchmarks.gpu", part, f"{{bundle}}/{folder}/{name}")
    given = ("--out", "{out}", "--seconds", "{seconds}")
    return Step(f"{part} {name}", call, limit_s, (*command, *given))


def _interfaces(name: str, call: int, limit_s: int) -> Step:
    command = ("-m", "benchmarks.gpu_interfaces", f"{{bundle}}/cases/{name}")
    given = ("--bundle", "{bundle}", "--out", "{out}")
    return Step(f"interfaces {name}", call, limit_s, (*command, *given))


def _tool(step: str, name: str, call: int, limit_s: int, *after_failure_of: str) -> Step:
    own = _own(step, call, limit_s, f"{step} {name}")
    command = (*own.command, "--network", name)
    return replace(own, command=command, after_failure_of=after_failure_of)


def _cpu(name: str, call: int, limit_s: int) -> Step:
    files = (f"{{bundle}}/networks/{name}", f"{{bundle}}/cpu/{name}/model.tar")
    command = ("-m", "benchmarks.cpu_cores", *files, "--out", "{out}")
    return Step(f"cores {name}", call, limit_s, command)


def _names(folder: Path) -> list[str]:
    listed = folder / "order.txt"
    return listed.read_text().split() if listed.is_file() else []


class Visit:
    """The steps that were run so far, and the files that record them."""

    def __init__(self, bundle: Path, results: Path, copy: Path | None) -> None:
        """Read the findings of an earlier visit.

        Parameters
        ----------
        results: folder of `visit.json` and `visit.log`.
        copy: folder into which both files are copied after each step.
        """
        self._bundle, self._results, self._copy = bundle, results, copy
        results.mkdir(parents=True, exist_ok=True)
        self._file, self._log = results / "visit.json", results / "visit.log"
        self.records: dict[str, dict[str, Any]] = {}
        if self._file.is_file():
            self.records = json.loads(self._file.read_text())["steps"]
        for name, record in self.records.items():
            if record["state"] == "running":
                record |= {"state": "stopped", "why": "the visit ended in the middle of this step"}
                print(f"{name}: an earlier visit ended in the middle of this step")
        self._running: subprocess.Popen[str] | None = None

    def run(self, step: Step, limit_s: float) -> None:
        """Run a step, and keep its findings. Its output is printed at once."""
        record = self.records[step.name] = {
            "state": "running",
            "began_s": time.time(),
            "limit_s": round(limit_s),
        }
        self._write()
        self._say(f"== {step.name}, at most {limit_s:.0f} s")
        out = self._results / "step.json"
        out.unlink(missing_ok=True)
        began = time.monotonic()
        filled = {"out": out, "bundle": self._bundle, "seconds": f"{limit_s * 0.75:.0f}"}
        command = [part.format(**filled) for part in step.command]
        self._running = subprocess.Popen(
            [sys.executable, "-u", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_die_with_parent,
            env={**os.environ, **step.environment},
        )
        reader = threading.Thread(target=self._pass_on, args=(self._running.stdout,))
        reader.start()
        try:
            code: int | None = self._running.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # Kill the step also when an exception stops the visit.
            self._kill_running()
            reader.join()
        record |= self._outcome(code, out, limit_s)
        out.unlink(missing_ok=True)
        record["seconds"] = round(time.monotonic() - began, 1)
        self._say(f"   {step.name}: {record['state']}, {record['seconds']} s. {record['why']}")
        self._write()

    def _kill_running(self) -> None:
        """Kill the step that is running, and the processes that it started and left behind."""
        assert self._running is not None
        with contextlib.suppress(ProcessLookupError):  # The processes may have ended already.
            os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()
        self._running = None

    def skip(self, step: Step, why: str) -> None:
        """Record why a step was not begun. The step runs when the visit is started again."""
        self.records[step.name] = {"state": "not begun", "why": why}
        self._say(f"== {step.name}: not begun, {why}")
        self._write()

    def is_needed(self, step: Step) -> bool:
        """Whether a step must run: a step that examines failures runs only if there are any."""
        states = [self.records.get(name, {}).get("state") for name in step.after_failure_of]
        return not step.after_failure_of or "failed" in states or "killed" in states

    def leave_out(self, step: Step) -> None:
        """Record that a step is not needed. If it is needed after a restart, it runs then."""
        why = f"none of these has failed: {', '.join(step.after_failure_of)}"
        self.records[step.name] = {"state": NOT_NEEDED, "why": why}
        self._say(f"== {step.name}: {NOT_NEEDED}, {why}")
        self._write()

    def _outcome(self, code: int | None, out: Path, limit_s: float) -> dict[str, Any]:
        """The state of a step that ended with exit code `code`, or was killed if `code` is None."""
        found: dict[str, Any] = {}
        if out.is_file():
            text = out.read_text()
            found = json.loads(text)
            if len(text) > MOST_FACTS_BYTES:
                found = {"left out": f"{len(text)} bytes, more than {MOST_FACTS_BYTES}"}
        if code is None:
            return {"state": "killed", "why": f"it took over {limit_s:.0f} s", "found": found}
        state = {DONE: "done", MISSING: "missing"}.get(code, "failed")
        reasons = [*found.get(MISSING_KEY, []), *found.get(WRONG_KEY, [])]
        if state == "failed" and not found.get(WRONG_KEY):
            reasons.append(f"exit code {code}; visit.log has its output")
        return {"state": state, "why": "; ".join(reasons), "found": found}

    def _pass_on(self, output: Any) -> None:
        for line in output:
            self._say(line.rstrip("\n"))

    def _say(self, line: str) -> None:
        print(line, flush=True)
        with self._log.open("a") as log:
            if log.tell() < MOST_LOG_BYTES:
                log.write(line + "\n")

    def _write(self) -> None:
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps({"steps": self.records}, indent=1) + "\n")
        os.replace(part, self._file)
        if self._copy is not None:
            self._copy.mkdir(parents=True, exist_ok=True)
            for file in (self._file, self._log):
                if file.is_file():
                    shutil.copy(file, self._copy)


def _die_with_parent() -> None:
    """Ask Linux to kill this process when the visit is killed. The GPU then becomes free."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def chosen(steps: Sequence[Step], only: str | None, call: int | None) -> list[Step]:
    """The steps that the options name.

    Raises
    ------
    SystemExit
        There is no such step or group. The message lists all.
    """
    some = [
        step
        for step in steps
        if (only is None or step.name == only) and (call is None or step.call == call)
    ]
    if not some:
        names = ", ".join(f"`{step.name}`" for step in steps)
        raise SystemExit(f"there is no step `{only or call}`: there are {names}")
    return some


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True, help="folder of the unpacked bundle")
    parser.add_argument("--results", type=Path, help="folder for the results (BUNDLE/results)")
    parser.add_argument("--copy", type=Path, help="copy the results here after each step")
    parser.add_argument("--only", metavar="STEP", help="run this step, even if it has ended before")
    parser.add_argument("--call", type=int, help="run the steps of this group")
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="start no further step after this time"
    )
    parser.add_argument("--list", action="store_true", help="list the steps and run none")
    arguments = parser.parse_args()
    bundle = arguments.bundle.resolve()
    steps = chosen(steps_of(bundle), arguments.only, arguments.call)
    if arguments.list:
        for step in steps:
            print(f"{step.call}  {step.limit_s:4d} s  {step.name}")
        return 0
    deadline = time.monotonic() + 60 * arguments.minutes
    visit = Visit(bundle, (arguments.results or bundle / "results").resolve(), arguments.copy)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("the visit was told to stop"))
    for step in steps:
        state = visit.records.get(step.name, {}).get("state")
        if state in ENDED_STATES and not arguments.only:
            print(f"== {step.name}: {state} before")
            continue
        if not visit.is_needed(step) and not arguments.only:
            visit.leave_out(step)
            continue
        left_s = deadline - time.monotonic()
        if left_s < LEAST_SHARE * step.limit_s:
            visit.skip(step, "out of time")
        else:
            visit.run(step, min(step.limit_s, left_s))
    return report(visit, steps)


def report(visit: Visit, steps: Sequence[Step]) -> int:
    """Print which steps did not run to their end; return 0 if there are none."""
    states = {step.name: visit.records[step.name]["state"] for step in steps}
    print(f"{len(steps)} steps: " + ", ".join(f"{n} {s}" for s, n in sorted(_counts(states))))
    bad = [name for name, state in states.items() if state not in DONE_STATES]
    for name in bad:
        print(f"  {name}: {states[name]}. {visit.records[name]['why']}")
    return 1 if bad else 0


def _counts(states: dict[str, str]) -> list[tuple[str, int]]:
    return [(state, list(states.values()).count(state)) for state in set(states.values())]


if __name__ == "__main__":
    raise SystemExit(main())
