"""A latency model that gives some measured latencies and predicts all others, for any scheduler.

`few_search.py` decides which operators and stages are measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from ..errors import LatencyError
from ..latency.base import LatencyModel
from ..latency.batch import StageBatch
from ..latency.features import OperatorTable, longest_group_us
from ..latency.learned import Floats, LearnedLatency
from ..latency.learned_operators import LearnedOperators
from ..latency.measurement import Record, Setting, Workload
from .measured import MeasuredLatency
from .stage_space import Known
from .store import LatencyStore

LEAST_SAMPLES = 24
"""The least number of stages to learn from.

If fewer stages were measured, a stage is predicted to take as long as its longest group.
"""
_NEVER_FREE = 1.001
"""A predicted stage takes at least this many times as long as its longest group. So schedulers
assume that operators slow each other down, until a measurement shows that they do not.
"""


class Device(Known, Protocol):
    """Measures operators and stages. `MeasuredLatency` implements this protocol."""

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> Floats:
        """Microseconds of each stage; stages that were not measured before are measured now."""

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        """Measure stages again, and return how many were measured (see `LatencyModel`)."""


class FewMeasured(LatencyModel):
    """Gives the measured latency of a stage if there is one, and a predicted latency otherwise.

    Until a scheduler asks for a stage of several operators, the latency of each single operator is
    predicted from the operator's work. When a scheduler first asks for a stage of several
    operators, all operators are measured. From then on, the latency of a stage is predicted as a
    multiple of the time of its longest group. A group takes the sum of its operators' latencies.

    Attributes
    ----------
    optimism: how many standard deviations are subtracted from the expected latency of an unmeasured
        stage of several operators.
    was_asked: whether a scheduler has asked for any latency.
    asked: stages of several operators, by key, for which a scheduler asked while too few stages
        were measured to predict latencies. Stages that run the same kernels are of one kind, and
        `asked` has one stage of each kind.
    measured: the number of measured stages of several operators; stages of one kind count once.
    operators_measured: the number of measured single operators; operators of one kind count once.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        setting: Setting,
        device: Device,
        *,
        parts: Sequence[Sequence[int]] = (),
        transfers: Mapping[tuple[int, int], float] | None = None,
        seed: int = 0,
    ) -> None:
        """Prepare to measure and predict. No measurement is made yet.

        Parameters
        ----------
        workloads: the workload of each operator, which describes what it computes.
        setting: the device, and the numbers of streams and threads with which stages run.
        parts: the ids of the parts of each divided operator.
        transfers: microseconds of a copy between GPUs, by edge; None if they are not known.
        seed: the same seed and measurements give the same predictions.

        Raises
        ------
        DeviceError: xgboost is not installed.
        """
        self.optimism = 0.0
        self.was_asked = False
        self.asked: dict[str, tuple[tuple[int, ...], ...]] = {}
        self.measured = 0
        self.operators_measured = 0
        self.operators = LearnedOperators(setting, seed)
        self._workloads = workloads
        self._setting = setting
        self._device = device
        self._parts = [list(ops) for ops in parts if len(ops) > 1]
        self._transfers = transfers
        self._seed = seed
        self._stages: LearnedLatency | None = None
        self._op_us: tuple[Floats, Floats] | None = None
        self._records: tuple[Sequence[Record], Mapping[str, Workload]] = ((), {})
        self._alone = [[[op]] for op in range(len(workloads))]
        self._keys = device.keys(self._alone)

    def learn_from(self, records: Sequence[Record], workloads: Mapping[str, Workload]) -> None:
        """Learn from the records of a database, of any model, that `samples_of` can use."""
        own = set(self._keys)
        self._records = records, workloads
        self.operators.observe_records([r for r in records if r.key not in own], workloads)
        self._learn_operators(range(self.num_ops))

    @property
    def num_ops(self) -> int:
        """Number of operators of the program."""
        return len(self._workloads)

    @property
    def num_samples(self) -> int:
        """Number of stages of several operators from which the model has learned."""
        return 0 if self._stages is None else self._stages.num_samples

    @property
    def is_priced_by_stages(self) -> bool:
        """Whether a scheduler has asked for a stage of several operators."""
        return self._stages is not None

    def op(self, op: int) -> float:
        """Microseconds that operator `op` takes alone: measured if possible, otherwise
        predicted.
        """
        self.was_asked = True
        return float(self.op_us()[0][op])

    def op_us(self) -> tuple[Floats, Floats]:
        """Return the latency of each operator alone in microseconds, and the standard deviation of
        the logarithm of each latency.

        A measured operator has a standard deviation of 0. As long as there are no measurements to
        learn from, each operator has the latency 1 us and an infinite deviation.
        """
        if self._op_us is None:
            known_us = self._known_us
            is_known = ~np.isnan(known_us)
            us, spread = np.ones(self.num_ops), np.full(self.num_ops, np.inf)
            if self.operators.num_samples and not is_known.all():
                predicted = self.operators.predict(self._workloads)
                us, spread = predicted.us, predicted.spread
            self._op_us = np.where(is_known, known_us, us), np.where(is_known, 0, spread)
        return self._op_us

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Microseconds of the stage: measured if possible, otherwise predicted."""
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> Floats:
        """Microseconds of each stage, measured if possible, otherwise predicted; shape
        (len(stages),).
        """
        self.was_asked = True
        batch = StageBatch.from_stages(stages)
        if (batch.num_ops == 1).all():
            op_us, _ = self.op_us()
            return op_us[batch.ops]
        learned = self._learned_stages()
        known_us = np.asarray(self._device.known(batch), dtype=np.float64)
        unknown = np.flatnonzero(np.isnan(known_us))
        if not len(unknown):
            return known_us
        rest = batch
        if len(unknown) < len(batch):
            rest = StageBatch.from_stages([batch[int(i)] for i in unknown])
        if learned.num_samples < LEAST_SAMPLES:
            self.asked.update(zip(self._device.keys(rest), map(_as_tuples, rest), strict=True))
        least_us = longest_group_us(rest, self._table) * _NEVER_FREE
        guess_us = least_us
        if learned.num_samples >= LEAST_SAMPLES:
            guess_us = np.maximum(learned.predict(rest).optimistic_us(self.optimism), least_us)
        known_us[unknown] = guess_us
        return known_us

    def transfer(self, u: int, v: int) -> float:
        """Microseconds to copy operator `u`'s output for operator `v` to another GPU.

        Raises
        ------
        LatencyError: the link between the GPUs is not known.
        """
        if self._transfers is None:
            raise LatencyError(
                "copies between GPUs are not measured here; give the bandwidth of the link "
                "(`link`, or --link-gb-s), or schedule for one GPU (`gpus=1`)"
            )
        return self._transfers[u, v]

    def measure_operators(self, ops: Sequence[int]) -> None:
        """Measure each operator alone, and learn from the operators that were not known before."""
        unknown = np.isnan(self._known_us)
        new = [op for op in ops if unknown[op]]
        self._device.stages([self._alone[op] for op in ops])
        self.operators_measured += len({self._keys[op] for op in new})
        self._learn_operators(new)

    def measure(self, stages: Sequence[Sequence[Sequence[int]]]) -> tuple[Floats, Floats]:
        """Measure `stages` and learn from them. Each must be unmeasured and have several operators.

        Returns
        -------
        The predicted and the measured microseconds of each stage. There is no prediction if the
        model had too few samples.
        """
        learned = self._learned_stages()
        enough = learned.num_samples >= LEAST_SAMPLES
        predicted_us = learned.predict(stages).us if enough else np.empty(0)
        measured_us = np.asarray(self._device.stages(stages), dtype=np.float64)
        self.measured += len(stages)
        learned.observe(stages, measured_us)
        for key in self._device.keys(stages):
            self.asked.pop(key, None)
        return predicted_us, measured_us[: len(predicted_us)]

    def settle(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        """Measure again the stages that a search has chosen, and return how many were measured.

        This method must not be named `measure_again`, because that method is called after each run
        of a scheduler. A search runs its scheduler several times, and should measure again only the
        stages of the last schedule.
        """
        return self._device.measure_again(stages)

    def unmeasured(
        self, stages: Sequence[Sequence[Sequence[int]]]
    ) -> list[tuple[tuple[int, ...], ...]]:
        """Return the unmeasured stages among `stages` that have several operators.

        Only one of several stages with the same key is returned.
        """
        several = [groups for groups in stages if sum(map(len, groups)) > 1]
        if not several:
            return []
        known_us = self._device.known(several)
        unknown = [g for g, us in zip(several, known_us, strict=True) if np.isnan(us)]
        return list(dict(zip(self._device.keys(unknown), map(_as_tuples, unknown),
                             strict=True)).values())  # fmt: skip

    def kinds(self) -> dict[str, list[int]]:
        """The operators of each kind, by its key. Operators of one kind run the same kernel."""
        kinds: dict[str, list[int]] = {}
        for op, key in enumerate(self._keys):
            kinds.setdefault(key, []).append(op)
        return kinds

    @property
    def _known_us(self) -> Floats:
        return np.asarray(self._device.known(self._alone), dtype=np.float64)

    def _learn_operators(self, ops: Sequence[int]) -> None:
        """Learn from the measured operators among `ops`, one of each kind."""
        known_us = self._known_us
        first = {self._keys[op]: op for op in ops if not np.isnan(known_us[op])}
        chosen = sorted(first.values())
        self.operators.observe([self._workloads[op] for op in chosen], known_us[chosen])
        self._op_us = None

    def _learned_stages(self) -> LearnedLatency:
        """The model that predicts stages. The first call measures all operators.

        If an operator is divided into parts, its parts are measured alone and as one stage.
        """
        if self._stages is None:
            self.measure_operators(range(self.num_ops))
            wholes = [[[part] for part in ops] for ops in self._parts]
            if wholes:
                self._device.stages(wholes)
            self._table = OperatorTable.from_workloads(self._workloads, self._known_us)
            self._stages = LearnedLatency(self._table, self._setting, self._seed)
            self._stages.observe_records(*self._records)
        return self._stages


def few_measured(
    latency: MeasuredLatency,
    num_ops: int,
    store: LatencyStore,
    *,
    parts: Sequence[Sequence[int]] = (),
    transfers: Mapping[tuple[int, int], float] | None = None,
    seed: int = 0,
) -> FewMeasured:
    """Make a model that measures by `latency` and has learned from the records in `store`.

    Raises
    ------
    DeviceError: xgboost is not installed.
    """
    workloads = [latency.workload(op) for op in range(num_ops)]
    model = FewMeasured(
        workloads, latency.setting, latency, parts=parts, transfers=transfers, seed=seed
    )
    model.learn_from(store.records(latency.setting.device), store.workloads())
    return model


def _as_tuples(groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, ops)) for ops in groups)
