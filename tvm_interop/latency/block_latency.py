"""Computes latencies of operators and stages by simulating the thread blocks of their kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .base import LatencyModel
from .gpu_blocks import BlockGpu, BlockKernel, Launch, check_kernel, run_launches

_Kernels = tuple[BlockKernel, ...]


class BlockLatency(LatencyModel):
    """Simulates the kernels of a stage's groups side by side, each group on its own stream.

    The host launches the first operator of each group, then the second of each group, and so on.
    The first kernel is launched while the previous stage still runs, so no time is added for its
    launch. But the host needs `gpu.launch_us` for each kernel of the stage, so the latency is at
    least the sum of these times. The latency includes `gpu.gap_us` after the last kernel. A stage
    of k groups also has 2 (k - 1) waits of `gpu.wait_us`, as in `LatencyTable`.

    If several stages have equal kernels, only one of them is simulated. A simulation takes about a
    millisecond, so the attribute `is_costly` is True: IOS then asks for few stages.
    """

    is_costly = True

    def __init__(self, kernels: Sequence[Sequence[BlockKernel]], gpu: BlockGpu) -> None:
        """Store each operator's kernels (by operator id), in the order in which the kernels run.

        Raises
        ------
        ScheduleError: a kernel cannot run; the message names its operator.
        """
        self._kernels = [tuple(of_op) for of_op in kernels]
        for op, of_op in enumerate(self._kernels):
            for kernel in of_op:
                check_kernel(kernel, f"a kernel of operator {op}")
        self._gpu = gpu
        self._known_us: dict[tuple[tuple[_Kernels, ...], ...], float] = {}

    def op(self, op: int) -> float:
        """Simulated microseconds of operator `op` if no other operator runs."""
        return self.stage([[op]])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Microseconds until the last of the stage's groups ends."""
        return self.kernels_us([[self._kernels[op] for op in ops] for ops in groups])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of each stage, shape (len(stages),)."""
        return np.array([self.stage(groups) for groups in stages])

    def kernels_us(self, groups: Sequence[Sequence[Sequence[BlockKernel]]]) -> float:
        """Microseconds that a stage takes, computed from the kernels of its groups' operators."""
        key = tuple(tuple(tuple(of_op) for of_op in group) for group in groups)
        if key not in self._known_us:
            self._known_us[key] = self._simulated(key)
        return self._known_us[key]

    def _simulated(self, groups: tuple[tuple[_Kernels, ...], ...]) -> float:
        launches: list[Launch] = []
        last_of: dict[int, int] = {}
        for place in range(max(map(len, groups), default=0)):
            for number, group in enumerate(groups):
                for kernel in group[place] if place < len(group) else ():
                    after = (last_of[number],) if number in last_of else ()
                    arrives_us = len(launches) * self._gpu.launch_us
                    launches.append(Launch(kernel, arrives_us, after))
                    last_of[number] = len(launches) - 1
        _, end_us = run_launches(launches, self._gpu)
        ends_us = max(end_us, default=0.0) + self._gpu.gap_us * (len(launches) > 0)
        launched_us = len(launches) * self._gpu.launch_us
        return max(ends_us, launched_us) + 2 * self._gpu.wait_us * max(len(groups) - 1, 0)
