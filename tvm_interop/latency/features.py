"""Turns stages into features (numbers that a model can learn from), many stages at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .batch import StageBatch
from .measurement import Setting, Workload

Floats = npt.NDArray[np.float64]

FEATURES = (
    "groups",
    "operators",
    "operators_of_largest_group",
    "log_longest_group_us",
    "log_total_us",
    "total_over_longest",
    "shortest_over_longest",
    "longest_operator_over_longest",
    "log_mean_operator_us",
    "log_total_flops",
    "log_total_bytes",
    "log_flops_per_byte",
    "log_least_flops_per_byte",
    "log_most_flops_per_byte",
    "sum_of_flops_per_us",
    "most_flops_per_us",
    "least_flops_per_us",
    "sum_of_bytes_per_us",
    "most_bytes_per_us",
    "least_bytes_per_us",
    "log_least_extent",
    "log_most_extent",
    "streams",
    "threads",
    "cores",
)
"""The names of the columns of `stage_features`. "least" and "most" stand for the least and the
largest value in a stage. In names with `extent`, these are values of its operators; in other names,
they are values of its groups.
"""


LEAST_US = 0.5
"""Smallest latency in microseconds. Shorter latencies are replaced by this number, because they are
mostly clock noise."""


@dataclass(frozen=True)
class OperatorTable:
    """Properties of operators that run alone: one array for each property, by operator id.

    Attributes
    ----------
    latency_us: (num_ops,) microseconds, measured.
    flops, nbytes, parallel_extent: (num_ops,) as in the class `Workload`, one number per operator.
    """

    latency_us: Floats
    flops: Floats
    nbytes: Floats
    parallel_extent: Floats

    @classmethod
    def from_workloads(
        cls, workloads: Sequence[Workload], op_us: Sequence[float] | Floats
    ) -> OperatorTable:
        """Make the table of operators that compute `workloads` and take `op_us` microseconds."""
        return cls(
            np.asarray(op_us, dtype=np.float64),
            np.array([w.flops for w in workloads], dtype=np.float64),
            np.array([w.nbytes for w in workloads], dtype=np.float64),
            np.array([w.parallel_extent for w in workloads], dtype=np.float64),
        )


def longest_group_us(batch: StageBatch, table: OperatorTable) -> Floats:
    """Microseconds that the longest group of each stage takes alone, shape (num_stages,)."""
    layout = _Layout(batch)
    return layout.most(layout.group_sums(table.latency_us))


def stage_features(
    batch: StageBatch, table: OperatorTable, setting: Setting
) -> npt.NDArray[np.float32]:
    """The features of each stage, shape (num_stages, len(FEATURES)).

    Stages and groups must not be empty.
    """
    layout = _Layout(batch)
    us = np.maximum(layout.group_sums(table.latency_us), LEAST_US)
    flops, nbytes = layout.group_sums(table.flops), layout.group_sums(table.nbytes)
    longest, total = layout.most(us), layout.sums(us)
    total_flops, total_bytes = layout.sums(flops), layout.sums(nbytes)
    intensity = _ratio(flops, nbytes)
    flops_rate, bytes_rate = flops / us, nbytes / us
    group_ops = layout.group_sizes.astype(np.float64)
    operators = layout.sums(group_ops)
    columns = [
        layout.stage_sizes,
        operators,
        layout.most(group_ops),
        _log(longest),
        _log(total),
        total / longest,
        layout.least(us) / longest,
        layout.most(layout.group_most(table.latency_us)) / longest,
        _log(total / operators),
        _log(total_flops),
        _log(total_bytes),
        _log(_ratio(total_flops, total_bytes)),
        _log(layout.least(intensity)),
        _log(layout.most(intensity)),
        layout.sums(flops_rate),
        layout.most(flops_rate),
        layout.least(flops_rate),
        layout.sums(bytes_rate),
        layout.most(bytes_rate),
        layout.least(bytes_rate),
        _log(layout.least(layout.group_least(table.parallel_extent))),
        _log(layout.most(layout.group_most(table.parallel_extent))),
        *(np.full(len(batch), n) for n in (setting.streams, setting.threads, setting.cores)),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


class _Layout:
    """Computes sums, maxima and minima over each group and over each stage of a batch."""

    def __init__(self, batch: StageBatch) -> None:
        self.ops = batch.ops
        self.first_op = np.concatenate([[0], batch.group_ends[:-1]]).astype(np.int64)
        self.first_group = np.concatenate([[0], batch.stage_ends[:-1]]).astype(np.int64)
        self.group_sizes = batch.group_ends - self.first_op[: len(batch.group_ends)]
        self.stage_sizes = batch.stage_ends - self.first_group[: len(batch.stage_ends)]

    def group_sums(self, per_op: Floats) -> Floats:
        return self._reduce(np.add, per_op[self.ops], self.first_op)

    def group_most(self, per_op: Floats) -> Floats:
        return self._reduce(np.maximum, per_op[self.ops], self.first_op)

    def group_least(self, per_op: Floats) -> Floats:
        return self._reduce(np.minimum, per_op[self.ops], self.first_op)

    def sums(self, per_group: Floats) -> Floats:
        return self._reduce(np.add, per_group, self.first_group)

    def most(self, per_group: Floats) -> Floats:
        return self._reduce(np.maximum, per_group, self.first_group)

    def least(self, per_group: Floats) -> Floats:
        return self._reduce(np.minimum, per_group, self.first_group)

    def _reduce(self, how: np.ufunc, values: Floats, begins: npt.NDArray[np.int64]) -> Floats:
        if not len(values):
            return values
        reduced: Floats = how.reduceat(values, begins)
        return reduced


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    return numerator / np.maximum(denominator, 1.0)


def _log(values: Floats) -> Floats:
    """The logarithm of 1 + value. A logarithm is used because values differ by orders of
    magnitude.
    """
    return np.log1p(values)
