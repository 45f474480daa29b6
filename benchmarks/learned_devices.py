"""The CPU targets and the recorded and simulated devices of `benchmarks.learned_schedulers`.

    python -m benchmarks.learned_devices TARGET FOLDER   # record all stages of the small networks

A recorded device reads latencies from a database of all stages, so that searches with many seeds
need no further measurements. A simulated device computes latencies from a data sheet.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tvm_interop import models
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.latency import LatencyModel
from tvm_interop.latency.features import OperatorTable
from tvm_interop.latency.learned import Floats
from tvm_interop.latency.measurement import Setting, Workload
from tvm_interop.measure.measured import MeasuredLatency

Stages = Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True)
class Target:
    """A CPU target: TVM's target string, and the number of cores that the process may use."""

    text: str
    cores: int


TARGETS = {
    "avx2": Target("llvm -mcpu=core-avx2", 2),
    "sse4.2": Target("llvm -mcpu=nehalem", 2),
    "one core": Target("llvm -mcpu=core-avx2", 1),
}
"""The CPU targets by name.

Latencies of the first target serve to predict the latencies of the other targets.
"""
STAGED = {"squeezenet": 64, "googlenet": 64}
"""The networks whose stages are all measured, and the height and width of their images."""
ALONE = {**STAGED, "inception_v3": 96, "resnet50": 64}
"""The networks whose operators are measured alone."""
LIMITS = {"max_group_ops": 3, "max_groups": 4}


def compilation(network: str, target: str, database: Path | str) -> Compilation:
    """A small network, compiled for a target with only TVM's kernels, on two streams."""
    return Compilation(
        models.build(network, image_size=ALONE[network]),
        CompileOptions(
            target=TARGETS[target].text,
            streams=2,
            threads=1,
            parts=1,
            providers=("tvm",),
            latency_db=database,
        ),
    )


def database(folder: Path, target: str) -> Path:
    """The file of a target's measurements."""
    return folder / f"{target.replace(' ', '_')}.db"


def record(target: str, folder: Path) -> None:
    """Measure all operators, and all stages of IOS, in a process that has the target's cores."""
    if not database(folder, target).with_suffix(".done").exists():
        command = [sys.executable, "-m", "benchmarks.learned_devices", target, str(folder)]
        subprocess.run(command, check=True)


class RecordedDevice:
    """A device with recorded latencies of all stages, which counts the stages that it is asked for.

    `known` returns only the latencies of stages that were asked for before.

    Attributes
    ----------
    taken: the keys of the stages measured so far.
    """

    def __init__(self, latency: MeasuredLatency, num_ops: int) -> None:
        """Measure each operator alone."""
        self._latency = latency
        self.table = OperatorTable.from_workloads(
            [latency.workload(op) for op in range(num_ops)],
            [latency.op(op) for op in range(num_ops)],
        )
        self.setting = latency.setting
        self.taken = set(latency.keys([[[op]] for op in range(num_ops)]))

    def op(self, op: int) -> float:
        return float(self.table.latency_us[op])

    def stages(self, stages: Stages) -> Floats:
        self.taken.update(self._latency.keys(stages))
        return self._latency.stages(stages)

    def known(self, stages: Stages) -> Floats:
        is_taken = [key in self.taken for key in self._latency.keys(stages)]
        return np.where(is_taken, self._latency.known(stages), np.nan)

    def keys(self, stages: Stages) -> list[str]:
        return self._latency.keys(stages)

    def measure_again(self, stages: Stages) -> int:
        return 0


class SimulatedDevice:
    """A device whose latencies come from a latency model.

    Operators with equal work count as the same kernel, so they share their latencies.

    Attributes
    ----------
    taken: the latencies measured so far, by key.
    """

    def __init__(self, latency: LatencyModel, work: Sequence[Sequence[float]], name: str) -> None:
        """`work` has, for each operator, its FLOPs, its bytes, and how many values it writes."""
        self._latency = latency
        self.workloads = [
            Workload(
                hash="/".join(f"{number:.0f}" for number in row), name=name, arguments=(),
                flops=int(row[0]), nbytes=int(row[1]), parallel_extent=int(row[2]),
            )
            for row in work
        ]  # fmt: skip
        self.setting = Setting(
            device=name, driver="", cores=0, tvm_version="simulated", streams=8, threads=1
        )
        self.taken: dict[str, float] = {}

    def op(self, op: int) -> float:
        return float(self.stages([[[op]]])[0])

    def stages(self, stages: Stages) -> Floats:
        keys = self.keys(stages)
        for key, groups in zip(keys, stages, strict=True):
            if key not in self.taken:
                self.taken[key] = self._latency.stage(groups)
        return np.array([self.taken[key] for key in keys])

    def known(self, stages: Stages) -> Floats:
        return np.array([self.taken.get(key, np.nan) for key in self.keys(stages)])

    def keys(self, stages: Stages) -> list[str]:
        return [
            repr(sorted([self.workloads[op].hash for op in ops] for ops in groups))
            for groups in stages
        ]

    def measure_again(self, stages: Stages) -> int:
        return 0


class MeasuredOn(LatencyModel):
    """A latency model that measures each latency on a device instead of predicting it."""

    def __init__(self, device: SimulatedDevice, transfers: LatencyModel) -> None:
        self._device = device
        self._transfers = transfers

    def op(self, op: int) -> float:
        return self._device.op(op)

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        return float(self._device.stages([groups])[0])

    def transfer(self, u: int, v: int) -> float:
        return self._transfers.transfer(u, v)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: TARGETS[given.target].cores])
    given.folder.mkdir(parents=True, exist_ok=True)
    path = database(given.folder, given.target)
    for network in ALONE:
        made = compilation(network, given.target, path)
        made.measured_latency.op(0)
        if network in STAGED:
            made.schedule("ios", bounds=False, **LIMITS)
        print(f"{given.target}, {network}: {made.measured_latency.measured} measured", flush=True)
    path.with_suffix(".done").touch()


if __name__ == "__main__":
    main()
