"""`compare`: how two artifacts of one model differ, and what each difference costs."""

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
_EACH_S = 1.0
"""About how long the whole artifacts, and each difference, may be measured, in seconds."""
_BATCH = 5
"""Rounds that are run in one go."""


@dataclass(frozen=True)
class Cost:
    """Two things run against each other.

    Attributes
    ----------
    first_us, second_us: medians, in microseconds.
    ratio: second over first, by pairs of one round; below 1 the second is faster.
    interval: where that lies with 90% confidence; None where there were too few rounds to say.
    noise_ratio: the first against itself: how far from 1 chance alone went.
    rounds: in how many rounds each ran once.
    """

    first_us: float
    second_us: float
    ratio: float
    interval: tuple[float, float] | None
    noise_ratio: float
    rounds: int

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the interval leaves out 1, and what is within 1% of it."""
        if self.interval is None:
            return False
        return self.interval[1] < 1 - LEAST_GAIN or self.interval[0] > 1 + LEAST_GAIN

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "beyond_noise": self.is_beyond_noise}


@dataclass(frozen=True)
class Comparison:
    """How two artifacts of one model differ.

    Attributes
    ----------
    titles: what to call them.
    differences: each with what it costs; None where nothing was measured, or only one artifact has
        the operators.
    total: the whole artifacts; None where nothing was measured.
    """

    titles: tuple[str, str]
    differences: tuple[tuple[Difference, Cost | None], ...]
    total: Cost | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
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
    """Say which operators, kernels and stages of two artifacts differ, and what that costs.

    For each difference the operators that it is about run alone, as either plan has them, the two
    interleaved in rounds; at the end the whole artifacts. What a difference costs alone need not be
    what it costs within the network, where others leave caches as they like.

    Parameters
    ----------
    first, second: artifacts of one model, or paths of them. Of those with several shapes of their
        inputs, the first is compared.
    measure: False runs nothing, nor loads any code.
    total_s, each_s: about how many seconds the whole artifacts and each difference may take.

    Raises
    ------
    InputError
        They are of different models or devices; says what differs.
    ArtifactError
        One is no artifact.

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
        # The first twice, in memory of its own each time: how far it is from itself is the noise.
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
    """The plan with nothing but some operators, on their streams, in the order that it gives them.

    Orders that came about by way of operators that are left out are kept as waits.

    Parameters
    ----------
    wholes: the names of whole operators.
    """
    wanted = set(wholes)
    behind: list[set[int]] = []  # By operator, those kept that have ended where it has.
    last: dict[int, int] = {}  # By stream, its latest operator.
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
        raise InputError("these artifacts cannot be timed against each other here")
    executors = [instance.executor for instance in instances]
    seed, warmup = 0, 2
    while True:
        seconds = np.array(clock.measure_interleaved(executors, warmup, _BATCH, seed))
        yield from seconds.T * 1e6
        seed, warmup = seed + 1, 0
