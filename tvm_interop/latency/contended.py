"""Computes the latency of operators that run at once on one device, without measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .base import LatencyModel, LatencyTable
from .batch import StageBatch

_CHUNK = 1 << 16
"""Number of stages that are simulated at once. More stages would take too much memory, and fewer
stages would make the simulation slow.
"""


class ContendedLatency(LatencyModel):
    """Takes operator latencies from a table, and simulates a stage's groups side by side.

    Operators that run at the same time slow each other down by two factors. The factor for
    arithmetic is the sum of their `op_cores`, divided by `cores`. The factor for memory traffic is
    the sum of their `memory_share`, divided by `bandwidth`. A factor below 1 counts as 1. The
    latency of an operator is multiplied by the weighted mean of these two factors. In the mean, the
    factor for memory traffic has the weight `memory_share`. `scheduling.simulation.simulate`
    follows the same rule; this class simulates many stages at once.

    Attributes
    ----------
    op_us: (num_ops,) microseconds of each operator alone.
    cores: number of cores of the device.
    bandwidth: how many operators that only move bytes can run at full speed at the same time.
    op_cores: (num_ops,) the number of cores that each operator keeps busy when it runs alone.
    memory_share: (num_ops,) the fraction of its time that each operator waits for memory when it
        runs alone.
    """

    def __init__(
        self,
        op_us: npt.ArrayLike,
        cores: float,
        bandwidth: float,
        op_cores: npt.ArrayLike,
        memory_share: npt.ArrayLike,
        transfers: Mapping[tuple[int, int], float] | None = None,
    ) -> None:
        """Store the parameters. The class describes all of them except `transfers` as attributes.

        Parameters
        ----------
        transfers: as `LatencyTable` takes them; None if the latency of copies is not known.
        """
        self.op_us = np.asarray(op_us, dtype=np.float64)
        self.cores = cores
        self.bandwidth = bandwidth
        self.op_cores = np.asarray(op_cores, dtype=np.float64)
        self.memory_share = np.asarray(memory_share, dtype=np.float64)
        self._copies = None if transfers is None else LatencyTable(self.op_us, None, transfers)

    def op(self, op: int) -> float:
        """Microseconds of operator `op` if no other operator runs, from the table."""
        return float(self.op_us[op])

    def transfer(self, u: int, v: int) -> float:
        """Microseconds of the copy from `u` to `v`; LatencyError if no transfers were given."""
        return super().transfer(u, v) if self._copies is None else self._copies.transfer(u, v)

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Microseconds until the last of the stage's groups ends."""
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of each stage, shape (len(stages),)."""
        batch = StageBatch.from_stages(stages)
        firsts = range(0, len(batch), _CHUNK)
        chunks = [self._simulate(batch, first, min(first + _CHUNK, len(batch))) for first in firsts]
        return np.concatenate([np.empty(0), *chunks])

    def _simulate(self, batch: StageBatch, first: int, last: int) -> npt.NDArray[np.float64]:
        """Microseconds of stages `first` to `last` (exclusive), all simulated at once."""
        at, end = _groups_of(batch, first, last)
        running = at < end
        left_us = np.where(running, self.op_us[_ops_at(batch, at)], 0.0)
        took_us = np.zeros(len(at))
        while running.any():
            ops = _ops_at(batch, at)
            share = np.where(running, self.memory_share[ops], 0.0)
            cores = np.where(running, self.op_cores[ops], 0.0)
            compute = np.maximum(1.0, cores.sum(axis=1) / self.cores)
            memory = np.maximum(1.0, share.sum(axis=1) / self.bandwidth)
            slowdown = (1 - share) * compute[:, None] + share * memory[:, None]
            ends_in_us = np.where(running, left_us * slowdown, np.inf)
            step_us = ends_in_us.min(axis=1)
            step_us[np.isinf(step_us)] = 0.0  # In these stages, all operators have ended.
            ended = running & (ends_in_us <= step_us[:, None])
            took_us += step_us
            at += ended
            running = at < end
            next_us = np.where(running, self.op_us[_ops_at(batch, at)], 0.0)
            left_us = np.where(ended, next_us, left_us - step_us[:, None] / slowdown)
        return took_us


def _groups_of(
    batch: StageBatch, first: int, last: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The positions in `batch.ops` at which each stage's groups begin and end, as two arrays.

    Both arrays have the shape (last - first, the largest number of groups in a stage). Stages with
    fewer groups are padded with empty groups.
    """
    bounds = np.concatenate([[0], batch.stage_ends])[first : last + 1]
    num_groups = np.diff(bounds)
    stage = np.repeat(np.arange(last - first), num_groups)
    slot = np.arange(bounds[0], bounds[-1]) - np.repeat(bounds[:-1], num_groups)
    group_begins = np.concatenate([[0], batch.group_ends[:-1]])
    begin = np.zeros((last - first, int(num_groups.max(initial=0))), dtype=np.int64)
    end = np.zeros_like(begin)
    begin[stage, slot] = group_begins[bounds[0] : bounds[-1]]
    end[stage, slot] = batch.group_ends[bounds[0] : bounds[-1]]
    return begin, end


def _ops_at(batch: StageBatch, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The operators at the positions `at` in `batch.ops`.

    A position may lie behind the last operator of its group. The result for this position is then
    undefined.
    """
    return batch.ops[np.minimum(at, len(batch.ops) - 1)]
