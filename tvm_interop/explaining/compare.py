"""Provides `compare`, which finds and measures the differences of two artifacts of one model."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..artifact.artifact import Artifact, load
from ..errors import InputError
from ..execution.cpu import Instance
from ..execution.cuda import CudaInstance, require_gpu, runs_on_cuda
from ..execution.instance import PlanInstance
from ..plan.plan import Plan, PlannedOperator
from ..scheduling.budget import Budget
from ..scheduling.paired_rounds import FEWEST_ROUNDS, LEAST_GAIN, checked_rounds, confirm
from .differences import Difference, differences

_TOTAL_S = 20.0
"""The approximate time to measure the whole artifacts, in seconds."""
_EACH_S = 1.0
"""The approximate time to measure each difference, in seconds."""
_BATCH = 5
"""The number of rounds that one call of native code runs."""


@dataclass(frozen=True)
class Cost:
    """The speeds of two artifacts, or of parts of them, compared.

    Attributes
    ----------
    first_us, second_us: median latencies of the two artifacts, in microseconds.
    ratio: the latency of the second artifact divided by the latency of the first, both from the
        same round. Below 1, the second artifact is faster.
    interval: the 90% confidence interval of `ratio`; None if there were too few rounds.
    noise_ratio: the same ratio for two instances of the first artifact; its inverse if the ratio is
        below 1.
    rounds: the number of rounds. Each instance runs once in a round.
    """

    first_us: float
    second_us: float
    ratio: float
    interval: tuple[float, float] | None
    noise_ratio: float
    rounds: int

    @property
    def is_beyond_noise(self) -> bool:
        """Whether every ratio in `interval` differs from 1 by more than `LEAST_GAIN` (1%)."""
        if self.interval is None:
            return False
        return self.interval[1] < 1 - LEAST_GAIN or self.interval[0] > 1 + LEAST_GAIN

    def as_dict(self) -> dict[str, Any]:
        """Return the measurement as plain data for JSON."""
        return {**asdict(self), "beyond_noise": self.is_beyond_noise}


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: how two artifacts of one model differ.

    Attributes
    ----------
    titles: the artifacts' paths, or other names for them.
    differences: each difference with its measurement. The measurement is None if nothing was
        measured, or if only one artifact has the operator.
    total: the measurement of the whole artifacts; None if nothing was measured.
    """

    titles: tuple[str, str]
    differences: tuple[tuple[Difference, Cost | None], ...]
    total: Cost | None

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data for JSON."""
        return {
            "titles": list(self.titles),
            "differences": [
                {**asdict(difference), "cost": None if cost is None else cost.as_dict()}
                for difference, cost in self.differences
            ],
            "total": None if self.total is None else self.total.as_dict(),
        }


def compare(
    first: Artifact | str | os.PathLike[str],
    second: Artifact | str | os.PathLike[str],
    *,
    measure: bool = True,
    total_s: float = _TOTAL_S,
    each_s: float = _EACH_S,
) -> Comparison:
    """Find and measure the differences between the operators, kernels and stages of two artifacts.

    To measure a difference, only the operators that differ run. In each round they run once as in
    the second plan, and twice as in the first plan. The two runs of the first plan show the noise.
    At the end, the complete artifacts are measured in the same way. A difference may take more or
    less time within the network than alone, because the other operators change the content of the
    caches.

    Parameters
    ----------
    first, second: artifacts of one model, or their paths. If an artifact has plans for several
        input shapes, the first plan is compared.
    measure: whether to measure. If False, nothing runs and no code is loaded.
    total_s, each_s: the approximate times to measure the whole artifacts and each difference, in
        seconds.

    Raises
    ------
    InputError
        The artifacts are of different models or for different devices; the message says what
        differs.
    ArtifactError
        One of the two is not an artifact.

    Examples
    --------
    >>> compare("a.tar", "b.tar").total.ratio  # doctest: +SKIP
    0.98
    """
    artifacts = [_loaded(each, measure) for each in (first, second)]
    titles = [str(each.path or f"artifact {i}") for i, each in enumerate(artifacts, start=1)]
    found = differences(*artifacts)
    if not measure:
        nothing = tuple((difference, None) for difference in found)
        return Comparison((titles[0], titles[1]), nothing, None)
    kernels = [artifact.load_kernels() for artifact in artifacts]
    plans = [artifact.usable_plan() for artifact in artifacts]

    def cost(operators: Sequence[str] | None, limit_s: float) -> Cost:
        # Make two instances of the first artifact, each with its own memory, to measure the noise.
        instances = [
            _instance(plans[i] if operators is None else part_of_plan(plans[i], operators),
                      kernels[i], artifacts[i])
            for i in (0, 0, 1)
        ]  # fmt: skip
        return _measured(instances, limit_s)

    costs = tuple(
        (difference, None if difference.kind == "operator" else cost(difference.operators, each_s))
        for difference in found
    )
    return Comparison((titles[0], titles[1]), costs, cost(None, total_s))


def part_of_plan(plan: Plan, wholes: Sequence[str]) -> Plan:
    """Return a plan with only some operators of `plan`, on the same streams and in the same order.

    In `plan`, two kept operators may be ordered only by operators between them, which are now left
    out. In the new plan, the later of the two then waits for the earlier one.

    Parameters
    ----------
    wholes: the names of the operators to keep. All parts of a divided operator are kept.
    """
    wanted = set(wholes)
    # Maps each operator to the kept operators for which its successors must wait. A kept operator
    # maps to itself. Any other operator maps to the last kept operators that end before it starts.
    behind: list[set[int]] = []
    last: dict[int, int] = {}  # By stream: its last operator so far.
    position: dict[int, int] = {}
    kept: list[PlannedOperator] = []
    for i, op in enumerate(plan.operators):
        before = [*op.waits, *([last[op.stream]] if op.stream in last else [])]
        ended = set().union(*(behind[w] for w in before))
        last[op.stream] = i
        if op.whole not in wanted:
            behind.append(ended)
            continue
        behind.append({i})
        position[i] = len(kept)
        waits = sorted(position[w] for w in ended if plan.operators[w].stream != op.stream)
        kept.append(msgspec.structs.replace(op, waits=tuple(waits)))
    return msgspec.structs.replace(plan, operators=tuple(kept))


def _loaded(artifact: Artifact | str | os.PathLike[str], kernels: bool) -> Artifact:
    return artifact if isinstance(artifact, Artifact) else load(artifact, kernels=kernels)


def _instance(plan: Plan, kernels: Any, artifact: Artifact) -> PlanInstance:
    if runs_on_cuda(plan):
        require_gpu(plan)
        return CudaInstance(plan, kernels, artifact.weights)
    return Instance(plan, kernels, artifact.weights)


def _measured(instances: Sequence[PlanInstance], limit_s: float) -> Cost:
    rounds = checked_rounds(_rounds(instances), len(instances))
    confirmed = confirm(rounds, Budget(limit_s), at_least=FEWEST_ROUNDS + 1)
    low, high = confirmed.compared.interval
    return Cost(
        first_us=confirmed.sequential_us,
        second_us=confirmed.scheduled_us,
        ratio=confirmed.compared.ratio,
        interval=(low, high) if math.isfinite(high) else None,
        noise_ratio=confirmed.noise_ratio,
        rounds=confirmed.compared.rounds,
    )


def _rounds(instances: Sequence[PlanInstance]) -> Iterator[npt.NDArray[np.float64]]:
    clock = instances[0].clock
    if clock is None:
        raise InputError(
            "this machine cannot run both artifacts, so it cannot time them against each other"
        )
    executors = [instance.executor for instance in instances]
    seed, warmup = 0, 2
    while True:
        seconds = np.array(clock.measure_interleaved(executors, warmup, _BATCH, seed))
        yield from seconds.T * 1e6
        seed, warmup = seed + 1, 0
