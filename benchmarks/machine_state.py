"""Records the state of the machine before a measurement, and tells whether it is quiet enough."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from tvm_interop.machine.cpu_name import cpu_model

QUIET = 0.05
"""Largest share of processor time that other programs take on a machine that counts as quiet."""
_PACKAGES = ("tvm-interop", "apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime", "torch", "numpy")
_VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "MKL_NUM_THREADS",
    "TVM_NUM_THREADS",
    "TVM_BIND_THREADS",
)


@dataclass
class MachineState:
    """The machine, software and command of a measurement.

    Attributes
    ----------
    cores: number of cores that this process may use.
    busy: share of processor time, 0 to 1, that other programs took before the measurement.
    load: the system's load averages, over 1, 5 and 15 minutes.
    cores_at_once: work of all cores at once, as a multiple of the work of one core alone. It is
        less than `cores` if cores share resources, as hyperthreads do, or if other virtual machines
        use the same cores.
    packages: versions of the installed packages that affect a measurement, by name.
    environment: the environment variables that are set and control threads.
    commit: the commit that was checked out, with `-dirty` if files differed from it.
    command: the command line of the measurement.
    date: start of the measurement, in UTC and in ISO 8601 format.
    """

    cpu: str
    cores: int
    system: str
    python: str
    busy: float
    load: tuple[float, float, float]
    cores_at_once: float
    packages: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    command: str = ""
    date: str = ""

    @property
    def is_quiet(self) -> bool:
        """Whether a measurement is valid, because other programs take little processor time."""
        return self.busy <= QUIET

    def as_dict(self) -> dict[str, object]:
        """The state as a dictionary for JSON, with the key `quiet`."""
        return {**asdict(self), "quiet": self.is_quiet}


def observe(seconds: float = 2.0) -> MachineState:
    """Observe the machine.

    Parameters
    ----------
    seconds: how long to watch other programs. This process sleeps meanwhile.
    """
    before = _processor_time()
    time.sleep(seconds)
    after = _processor_time()
    passed = sum(after.values()) - sum(before.values())
    idle = sum(after[k] - before[k] for k in ("idle", "iowait"))
    return MachineState(
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        system=platform.platform(),
        python=platform.python_version(),
        busy=round(1 - idle / passed, 4) if passed else 0.0,
        load=os.getloadavg(),
        cores_at_once=round(_cores_at_once(), 2),
        packages=_versions(),
        environment={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        commit=commit(),
        command=f"python {shlex.join(sys.orig_argv[1:])}",
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def commit() -> str:
    """The commit that is checked out, with `-dirty` if files differ from it; empty without git."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return found.stdout.strip()


def observe_quiet(force: bool) -> MachineState | None:
    """Observe the machine. If it is too busy to measure on, print that and return None.

    Parameters
    ----------
    force: return the state of a busy machine too.
    """
    machine = observe()
    if machine.is_quiet or force:
        return machine
    print(
        f"other programs take {machine.busy:.0%} of the machine, so measured times would be "
        "wrong. Wait, or give --force to measure all the same (the output will say so)",
        file=sys.stderr,
    )
    return None


def _cores_at_once(seconds: float = 0.3) -> float:
    """The work of all cores at once, divided by the work of the first core alone."""
    cpus = sorted(os.sched_getaffinity(0))
    alone = _hashes_on(cpus[:1], seconds)
    return _hashes_on(cpus, seconds) / alone


def _hashes_on(cpus: Iterable[int], seconds: float) -> int:
    """Number of blocks that threads hash together in `seconds`, with one thread for each CPU."""
    counts: list[int] = []

    def work(cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})
        block, count, end = bytes(1 << 18), 0, time.monotonic() + seconds
        while time.monotonic() < end:
            hashlib.sha256(block)  # Releases the GIL, so that threads run in parallel.
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=work, args=(cpu,)) for cpu in cpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def _processor_time() -> dict[str, int]:
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    with open("/proc/stat") as file:
        return dict(zip(names, map(int, file.readline().split()[1:]), strict=False))


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
