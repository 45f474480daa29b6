"""Predicts latencies of stages from measurements of other stages on the same device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import LatencyError
from .base import LatencyModel
from .batch import StageBatch
from .ensemble import TreeEnsemble
from .features import LEAST_US, OperatorTable, longest_group_us, stage_features
from .measurement import Record, Setting, Workload

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """Predicted latencies of n stages, and how uncertain they are.

    Attributes
    ----------
    us: (n,) microseconds, the expected median.
    spread: (n,) standard deviation of the logarithm: two thirds of the stages should lie within
        `us * exp(-spread)` and `us * exp(spread)`.
    """

    us: Floats
    spread: Floats

    def optimistic_us(self, spreads: float) -> Floats:
        """Optimistic latencies (us): `spreads` standard deviations below the expected latencies."""
        return self.us * np.exp(-spreads * self.spread)


@dataclass(frozen=True)
class PredictionError:
    """The error of predictions for stages that the model did not learn from.

    Attributes
    ----------
    stages: number of stages compared.
    mape: mean of |predicted - measured| / measured, the mean absolute percentage error. The divisor
        is at least half a microsecond.
    spearman: rank correlation, 1 if predictions and measurements have the same order; nan if it is
        not defined.
    """

    stages: int
    mape: float
    spearman: float


@dataclass(frozen=True)
class Samples:
    """Stages that were measured in one setting, and their latencies.

    Attributes
    ----------
    batch: (n,) stages, whose operator ids are rows of `table`.
    latency_us: (n,) microseconds.
    hashes: the hash of the workload of each row of `table`; empty if they are not known.
    """

    batch: StageBatch
    table: OperatorTable
    setting: Setting
    latency_us: Floats
    hashes: tuple[str, ...] = ()


class LearnedLatency(LatencyModel):
    """Uses measured latencies for single operators, and predicts stages of several operators.

    The model predicts a ratio: the latency of a stage, divided by the latency of its longest group
    alone. This ratio is small, and similar in different networks.

    Parameters
    ----------
    table: the program's operators, measured alone.
    setting: the device, and the numbers of streams and threads with which stages run.
    seed: the same seed and samples give the same predictions.

    Raises
    ------
    DeviceError: xgboost is not installed.
    """

    def __init__(self, table: OperatorTable, setting: Setting, seed: int = 0) -> None:
        self._table = table
        self._setting = setting
        self._trees = TreeEnsemble(seed)

    @property
    def num_samples(self) -> int:
        """Number of stages learned from so far."""
        return self._trees.num_samples

    def op(self, op: int) -> float:
        """Measured microseconds of operator `op` when it ran alone."""
        return float(self._table.latency_us[op])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Predicted microseconds of the stage."""
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> Floats:
        """Predicted microseconds of each stage, shape (len(stages),)."""
        return self.predict(stages).us

    def predict(self, stages: Sequence[Sequence[Sequence[int]]]) -> Prediction:
        """Predict each stage's latency, and how uncertain the prediction is.

        A stage of one operator has that operator's measured latency, and no uncertainty.

        Raises
        ------
        LatencyError: a stage has several operators, and the model has not learned from any yet.
        """
        batch = StageBatch.from_stages(stages)
        alone_us = longest_group_us(batch, self._table)
        is_lone = batch.num_ops == 1
        if is_lone.all():
            return Prediction(alone_us, np.zeros(len(batch)))
        if not self.num_samples:
            raise LatencyError(
                "the learned latency model has no samples yet: `observe` stages that were measured"
            )
        log_ratio, spread = self._trees.predict(stage_features(batch, self._table, self._setting))
        several_us = np.maximum(alone_us, LEAST_US) * np.exp(log_ratio)
        return Prediction(np.where(is_lone, alone_us, several_us), np.where(is_lone, 0, spread))

    def observe(self, stages: Sequence[Sequence[Sequence[int]]], latency_us: Floats) -> None:
        """Learn from more stages of this program, which took `latency_us` microseconds each."""
        self._learn(
            [Samples(StageBatch.from_stages(stages), self._table, self._setting, latency_us)]
        )

    def observe_records(self, records: Iterable[Record], workloads: Mapping[str, Workload]) -> None:
        """Learn from the records of a database, of any model, that `samples_of` can use."""
        self._learn(samples_of(records, workloads, self._setting))

    def _learn(self, found: Sequence[Samples]) -> None:
        features, targets = [], []
        for samples in found:
            several = samples.batch.num_ops > 1
            alone_us = longest_group_us(samples.batch, samples.table)
            ratio = np.maximum(samples.latency_us, LEAST_US) / np.maximum(alone_us, LEAST_US)
            described = stage_features(samples.batch, samples.table, samples.setting)
            features.append(described[several])
            targets.append(np.log(ratio[several]))
        if sum(map(len, targets)):
            self._trees.add(np.concatenate(features), np.concatenate(targets))


def prediction_error(predicted_us: Floats, measured_us: Floats) -> PredictionError:
    """Compare predictions with measurements, both in microseconds."""
    if not len(measured_us):
        return PredictionError(0, float("nan"), float("nan"))
    mape = float(np.mean(np.abs(predicted_us - measured_us) / np.maximum(measured_us, LEAST_US)))
    return PredictionError(len(measured_us), mape, _spearman(predicted_us, measured_us))


def samples_of(
    records: Iterable[Record], workloads: Mapping[str, Workload], here: Setting
) -> list[Samples]:
    """The records in a database from which a model for the setting `here` can learn, by setting.

    The records must have the same device and version of TVM as `here`. Their numbers of streams and
    threads may differ. A record of a stage is left out in two cases: the stage ran only once, or
    one of its operators was not measured alone in the same setting.
    """
    by_setting: dict[Setting, list[Record]] = {}
    for record in records:
        setting = record.setting
        # A single run gives only a rough latency, from which the model should not learn.
        if setting is None or not record.groups or record.samples < 2:
            continue
        if (setting.device, setting.tvm_version) == (here.device, here.tvm_version):
            by_setting.setdefault(setting, []).append(record)
    return [
        _samples_in(setting, by_setting[setting], workloads)
        for setting in sorted(by_setting, key=lambda s: (s.streams, s.threads, s.cores, s.driver))
    ]


def _samples_in(
    setting: Setting, records: Sequence[Record], workloads: Mapping[str, Workload]
) -> Samples:
    alone_us = {
        r.groups[0][0]: r.latency_us
        for r in records
        if r.groups is not None and sum(map(len, r.groups)) == 1 and r.groups[0][0] in workloads
    }
    ids = {hash_: i for i, hash_ in enumerate(alone_us)}
    usable = [
        (tuple(tuple(ids[h] for h in group) for group in r.groups), r.latency_us)
        for r in records
        if r.groups is not None and all(h in ids for group in r.groups for h in group)
    ]
    return Samples(
        StageBatch.from_stages([groups for groups, _ in usable]),
        OperatorTable.from_workloads([workloads[h] for h in ids], list(alone_us.values())),
        setting,
        np.array([us for _, us in usable], dtype=np.float64),
        tuple(ids),
    )


def _spearman(a: Floats, b: Floats) -> float:
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Floats) -> Floats:
    """The rank of each value; equal values share the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[which]
    return ranks
