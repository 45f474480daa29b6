"""The records of measurements: which operators ran, on which device, and for how long.

A workload describes what an operator computes, with the type and shape of each argument. A record
holds the latency of a stage, and refers to the workloads of its operators. Names follow TVM's
meta_schedule database where possible.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence

import msgspec

_METHOD = "primed"
"""A name for the way in which stages are measured, with an untimed run before each timed run. The
name is part of each stage's key (`stage_key`), because latencies measured in another way cannot be
compared with these.
"""


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The description of an operator, independent of any model.

    Attributes
    ----------
    hash: a hash of everything that decides the latency. For a kernel, these are its code and
        shapes. For a library's operator, these are the library, its version and the operator's
        description.
    name: a name for people to read: the kernel's name, or the library and what it computes.
    arguments: type and shape of each tensor that the operator reads, followed by the type and shape
        of each tensor that it writes.
    flops: floating-point operations. An addition and a multiplication count as two. The number is 0
        if memory traffic alone decides the latency.
    nbytes: bytes of the arguments, each read or written once.
    parallel_extent: number of elements of the largest output. At most this many elements can be
        computed at the same time.
    """

    hash: str
    name: str
    arguments: tuple[tuple[str, tuple[int, ...]], ...]
    flops: int
    nbytes: int
    parallel_extent: int


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The device and the software of a measurement.

    Attributes
    ----------
    device: the CPU's name, its vector instructions and the number of CPUs this process may use; or
        the description of a GPU; or the key of RPC servers.
    driver: the driver's version if `device` does not include it; empty for a CPU.
    cores: number of CPUs that the process could use; 0 on a GPU, where a kernel has no team of
        threads.
    streams, threads: the number of streams, and the number of threads that the kernels of one
        stream may use.
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
    key: identifies the stage and the setting; chosen by the code that measures.
    latency_us: the median of the runs, in microseconds.
    samples: the number of runs in the median. Runs that other programs delayed do not count. 0 if
        it was not recorded.
    measured_at: UTC time in ISO 8601; empty if it was not recorded.
    groups: hashes of the workloads that ran one after the other on each stream. None if the record
        is from an older version, which did not keep them.
    setting: the device and the software of the measurement. None if the record is from an older
        version, which did not keep it.
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
    """Make a key for a stage from everything that decides its latency. Stages of different models
    may have the same key.

    A latency database finds a stage by its key. So if a change of the code changes the keys, all
    stages have to be measured again.

    Parameters
    ----------
    parallel_kernels: whether any kernel uses a team of threads.
    streams: hashes of the workloads that run one after the other on each stream. The order of the
        streams makes no difference.
    """
    teams = [setting.threads, parallel_kernels] if setting.cores else []
    where = [_METHOD, setting.tvm_version, setting.device, setting.streams, *teams]
    described = json.dumps([where, sorted(map(list, streams))])
    return hashlib.sha256(described.encode()).hexdigest()


def utc(days_ago: float = 0) -> str:
    """The time now, or `days_ago` days ago, in the format of `Record.measured_at`."""
    then = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=days_ago)
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")
