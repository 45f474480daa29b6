"""Predicts latencies of single operators from measurements of other operators on the same device.

`learned.py` predicts stages of several operators, and for that it needs the latency of each
operator alone. Schedulers such as `lios+` ask only for these latencies. For such schedulers, this
model predicts the latencies of most operators from the operators' work (such as FLOPs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..errors import LatencyError
from .ensemble import TreeEnsemble
from .features import LEAST_US
from .learned import Floats, Prediction, samples_of
from .measurement import Record, Setting, Workload

_FEWEST_FOR_TREES = 16
"""Trees learn from the program's own operators if at least this many are measured.

With fewer measured operators, the predictions learned from other programs are only multiplied by a
constant factor.
"""
_UNSURE = 1.0
"""Standard deviation of the logarithm of a predicted latency in a special case: the model has
learned nothing from other programs, and this program has too few measured operators for trees.
"""

_RIDGE = 1.0
"""The weight of the penalty on the slopes in the fit of the straight line (ridge regression)."""


class LearnedOperators:
    """Predicts the latency of an operator from its work, its shapes and the setting.

    The logarithm of the latency is predicted as a sum of three terms. The first is a straight line
    through the learned operators, which says how the latency grows with FLOPs, bytes and the size
    of the result. The second comes from boosted trees, which learn by how much operators of other
    programs differ from this line. The third corrects for this program: it is the median difference
    between the operators measured so far (`observe`) and the sum of the first two terms. If enough
    operators of this program were measured, further trees learn the differences that remain.
    Records of another CPU or another target help too. Predictions from such records are wrong by
    nearly the same factor for all operators, and the median corrects this factor.

    Parameters
    ----------
    setting: the device, and the number of streams and threads with which the operators run.
    seed: the same seed and samples give the same predictions.

    Raises
    ------
    DeviceError: xgboost is not installed.
    """

    def __init__(self, setting: Setting, seed: int = 0) -> None:
        self._setting = setting
        self._seed = seed
        self._elsewhere = TreeEnsemble(seed)
        self._line: Floats | None = None
        self._own_features = np.empty((0, 0))
        self._own_log_us: Floats = np.empty(0)
        self._own: TreeEnsemble | None = None

    @property
    def num_samples(self) -> int:
        """The number of operators, of this program and of others, that the model has learned from
        so far.
        """
        return self._elsewhere.num_samples + len(self._own_log_us)

    def observe_elsewhere(
        self, settings: Sequence[Setting], workloads: Sequence[Workload], latency_us: Floats
    ) -> None:
        """Learn from operators of other programs, devices or targets. May be called at most once.

        Parameters
        ----------
        settings, workloads, latency_us: the setting, work and microseconds of each operator.
        """
        if not len(workloads):
            return
        features = _features(workloads, settings)
        log_us = _log_us(latency_us)
        self._line = _straight_line(features, log_us)
        rest = log_us - _on_line(self._line, features)
        self._elsewhere.add(features.astype(np.float32), rest)

    def observe_records(self, records: Iterable[Record], workloads: Mapping[str, Workload]) -> None:
        """Learn from a database's records of single operators, if `samples_of` can use them."""
        settings: list[Setting] = []
        work: list[Workload] = []
        us: list[float] = []
        for samples in samples_of(records, workloads, self._setting):
            for hash_, latency_us in zip(samples.hashes, samples.table.latency_us, strict=True):
                settings.append(samples.setting)
                work.append(workloads[hash_])
                us.append(float(latency_us))
        self.observe_elsewhere(settings, work, np.array(us, dtype=np.float64))

    def observe(self, workloads: Sequence[Workload], latency_us: Floats) -> None:
        """Learn from operators of this program, which took `latency_us` microseconds each."""
        if not len(workloads):
            return
        features = _features(workloads, [self._setting] * len(workloads))
        self._own_features = (
            np.concatenate([self._own_features, features]) if len(self._own_log_us) else features
        )
        self._own_log_us = np.concatenate([self._own_log_us, _log_us(latency_us)])
        self._own = None
        if len(self._own_log_us) >= _FEWEST_FOR_TREES:
            rest, _ = self._rest()
            self._own = TreeEnsemble(self._seed)
            self._own.add(self._own_features.astype(np.float32), rest)

    def predict(self, workloads: Sequence[Workload]) -> Prediction:
        """Predict the latency of each operator, and how uncertain the prediction is.

        Raises
        ------
        LatencyError: the model has learned from no operator yet.
        """
        if not self.num_samples:
            raise LatencyError(
                "the learned model of operators has no samples yet: `observe` operators that were "
                "measured"
            )
        features = _features(workloads, [self._setting] * len(workloads))
        log_us, spread = self._before(features)
        rest, shift = self._rest()
        log_us = log_us + shift
        if self._own is not None:
            more, own_spread = self._own.predict(features.astype(np.float32))
            log_us, spread = log_us + more, own_spread
        elif len(rest) > 1:
            spread = np.maximum(spread, float(np.std(rest)))
        return Prediction(np.maximum(np.exp(log_us), LEAST_US), spread)

    def _before(self, features: Floats) -> tuple[Floats, Floats]:
        """Predict logarithms of latencies by the line and the trees learned from other programs.

        Returns
        -------
        The predicted logarithms of latencies, and the standard deviation of each.
        """
        if self._line is None:
            line = _straight_line(self._own_features, self._own_log_us)
            return _on_line(line, features), np.full(len(features), _UNSURE)
        rest, spread = self._elsewhere.predict(features.astype(np.float32))
        return _on_line(self._line, features) + rest, spread

    def _rest(self) -> tuple[Floats, float]:
        """Compare this program's measured operators with the predictions of `_before`.

        Returns
        -------
        First, for each operator, the logarithm of the measured latency minus the predicted
        logarithm, minus the median of these differences. Second, this median.
        """
        if not len(self._own_log_us):
            return np.empty(0), 0.0
        apart = self._own_log_us - self._before(self._own_features)[0]
        shift = float(np.median(apart))
        return apart - shift, shift


def _features(workloads: Sequence[Workload], settings: Sequence[Setting]) -> Floats:
    """The features of each operator, shape (n, 12). The straight line uses the first three."""
    rows = [
        (
            np.log1p(work.flops),
            np.log1p(work.nbytes),
            np.log1p(work.parallel_extent),
            np.log1p(work.flops / max(work.nbytes, 1)),
            np.log1p(work.flops / max(work.parallel_extent, 1)),
            len(work.arguments),
            *_largest_shapes(work),
            work.name.count("_"),
            setting.streams,
            setting.threads,
            setting.cores,
        )
        for work, setting in zip(workloads, settings, strict=True)
    ]
    return np.array(rows, dtype=np.float64)


def _largest_shapes(work: Workload) -> tuple[float, float]:
    """The logarithms of the largest dimension and of the last dimension of the result."""
    shape = work.arguments[-1][1] if work.arguments else ()
    return np.log1p(max(shape, default=0)), np.log1p(shape[-1] if shape else 0)


def _straight_line(features: Floats, log_us: Floats) -> Floats:
    """Fit a line to the logarithms of latencies. Return its slopes and its intercept, shape (4,).

    A small penalty on the slopes (ridge regression) makes the line unique even if there are fewer
    than four operators.
    """
    heights = np.ones((len(features), 1))
    penalty = np.eye(3, 4) * _RIDGE
    system = np.concatenate([np.hstack([features[:, :3], heights]), penalty])
    line, *_ = np.linalg.lstsq(system, np.concatenate([log_us, np.zeros(3)]), rcond=None)
    found: Floats = line
    return found


def _on_line(line: Floats, features: Floats) -> Floats:
    found: Floats = features[:, :3] @ line[:3] + line[3]
    return found


def _log_us(latency_us: Floats) -> Floats:
    logarithms: Floats = np.log(np.maximum(latency_us, LEAST_US))
    return logarithms
