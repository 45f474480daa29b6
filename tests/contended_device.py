"""A simulated device on which operators slow each other down in a way that can be learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tvm_interop.latency import LatencyModel
from tvm_interop.latency.features import OperatorTable
from tvm_interop.latency.measurement import Record, Setting, Workload

SETTING = Setting(device="on paper", driver="", cores=2, tvm_version="0.27.0", streams=2, threads=1)


class ContendedDevice(LatencyModel):
    """A device whose groups share the memory bandwidth. Each stream takes a short time to start.

    Attributes
    ----------
    workloads: the work of each operator.
    asked: the stages that were measured so far, without repetitions.
    """

    def __init__(self, num_ops: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.workloads = [
            Workload(
                hash=f"{seed}:{i}",
                name=f"op{i}",
                arguments=(),
                flops=int(rng.integers(1, 2000)) * 1000,
                nbytes=int(rng.integers(1, 900)) * 1000,
                parallel_extent=int(rng.integers(1, 100)) * 100,
            )
            for i in range(num_ops)
        ]
        self._work_us = [w.flops / 20e3 for w in self.workloads]
        self._memory_us = [w.nbytes / 9e3 for w in self.workloads]
        self.asked: dict[tuple[tuple[int, ...], ...], float] = {}

    def op(self, op: int) -> float:
        return 2 + max(self._work_us[op], self._memory_us[op])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        key = tuple(sorted(tuple(group) for group in groups))
        if key not in self.asked:
            longest = max(sum(map(self.op, group)) for group in groups)
            memory = sum(self._memory_us[op] for group in groups for op in group)
            self.asked[key] = max(longest, memory) + 1.5 * (len(groups) - 1)
        return self.asked[key]

    def known(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        keys = (tuple(sorted(tuple(group) for group in groups)) for groups in stages)
        return np.array([self.asked.get(key, np.nan) for key in keys], dtype=np.float64)

    def keys(self, stages: Sequence[Sequence[Sequence[int]]]) -> list[str]:
        return [repr(sorted(tuple(group) for group in groups)) for groups in stages]

    def table(self) -> OperatorTable:
        op_us = [self.op(i) for i in range(len(self.workloads))]
        return OperatorTable.from_workloads(self.workloads, op_us)

    def record(self, groups: Sequence[Sequence[int]], **fields: object) -> Record:
        """The record of a measured stage in the database."""
        kept: dict[str, object] = {
            "key": repr((self.workloads[0].hash, groups)),
            "latency_us": self.stage(groups),
            "samples": 9,
            "measured_at": "",
            "groups": tuple(tuple(self.workloads[op].hash for op in ops) for ops in groups),
            "setting": SETTING,
        }
        return Record(**{**kept, **fields})  # type: ignore[arg-type]


def random_stages(num_ops: int, count: int, seed: int = 0) -> list[list[list[int]]]:
    """Random stages of one or two groups of one to three operators.

    No operator occurs twice in a stage.
    """
    rng = np.random.default_rng(seed)
    stages = []
    for _ in range(count):
        ops = rng.permutation(num_ops)[:6].tolist()
        groups = [ops[: rng.integers(1, 4)], ops[3 : 3 + rng.integers(0, 4)]]
        stages.append([group for group in groups if group])
    return stages
