"""What is kept of a measurement: which operators ran, where, and how long it took.

The words are those of TVM's meta_schedule database where it has them: a workload is what an
operator computes, its arguments are described by type and shape, a record refers to workloads.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence

import msgspec

_METHOD = "primed"
"""How stages are measured: each timed run after an untimed one. What was measured in another way is
not comparable."""


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An operator apart from any model.

    Attributes
    ----------
    hash: what decides how long it takes: the kernel's code and shapes, or a library, its version
        and what it is told.
    name: the kernel's, or a library's and what it computes; for people.
    arguments: type and shape of each tensor it reads, then of each it writes.
    flops: floating-point operations, an addition and a multiplication being two; 0 where memory
        alone decides.
    nbytes: bytes of its arguments, each read or written once.
    parallel_extent: elements it writes: how many could be computed side by side.
    """

    hash: str
    name: str
    arguments: tuple[tuple[str, tuple[int, ...]], ...]
    flops: int
    nbytes: int
    parallel_extent: int


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where and with what something was measured.

    Attributes
    ----------
    device: the CPU's name, its vector instructions and the CPUs there were to use.
    driver: of a device that has one; empty for a CPU.
    cores: CPUs the process could use; 0 where kernels have no teams of threads, on a GPU.
    streams, threads: streams there were, and threads the kernels of each could use.
    """

    device: str
    driver: str
    cores: int
    tvm_version: str
    streams: int
    threads: int


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The latency of one stage.

    Attributes
    ----------
    key: names the stage and the setting, for whoever measures.
    latency_us: the median, in microseconds.
    samples: runs it is the median of, without those that were held up; 0 where nobody wrote that
        down.
    measured_at: UTC, as ISO 8601 has it; empty where nobody wrote that down.
    groups: hashes of the workloads that ran one after the other on each stream. None, like
        `setting`, for what an older version kept without saying.
    spread_us: the interquartile range of the runs; None for a single run, and in records of an
        older version.
    """

    key: str
    latency_us: float
    samples: int
    measured_at: str
    groups: tuple[tuple[str, ...], ...] | None = None
    setting: Setting | None = None
    spread_us: float | None = None


def stage_key(setting: Setting, parallel_kernels: bool, streams: Sequence[Sequence[str]]) -> str:
    """Names a stage by what decides its latency, not by which model it is from.

    Databases are full of these keys: change one, and all that was measured is measured again.

    Parameters
    ----------
    parallel_kernels: whether any kernel uses a team of threads.
    streams: hashes of the workloads that run one after the other on each stream; which stream is
        which makes no difference.
    """
    teams = [setting.threads, parallel_kernels] if setting.cores else []
    where = [_METHOD, setting.tvm_version, setting.device, setting.streams, *teams]
    described = json.dumps([where, sorted(map(list, streams))])
    return hashlib.sha256(described.encode()).hexdigest()


def utc(days_ago: float = 0) -> str:
    """This second, or the one so many days ago, as `Record.measured_at` has it."""
    then = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=days_ago)
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")
