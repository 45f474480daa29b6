"""Contestants take turns, in an order drawn anew, after a rest; what was found of each.

Whatever drifts (clock, caches, a neighbour's load) falls on all alike. The artifact takes part
twice, in two processes: how far it is from itself is the noise, and no difference smaller than that
says anything.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ExecutionError
from .contestant import Contestant, Load
from .engines import Feed

PERCENTILES = (50, 90, 95, 99)
REST_S = 0.5
"""Between turns: as long as the threads of any engine may spin after a run, and more."""
_CONFIDENCE = 0.95
_RESAMPLES = 2000


@dataclass(frozen=True)
class Timing:
    """How long contestants run.

    Attributes
    ----------
    warmup_s: of each, before anything is timed.
    duration_s: of each, in all its turns together.
    turn_s: of a turn.
    rest_s: before each turn.
    """

    warmup_s: float = 1.0
    duration_s: float = 5.0
    turn_s: float = 0.5
    rest_s: float = REST_S

    @property
    def rounds(self) -> int:
        """How many turns each has."""
        return max(1, round(self.duration_s / self.turn_s))


@dataclass(frozen=True)
class Found:
    """What was found of a contestant.

    Attributes
    ----------
    runs: that were timed.
    percentiles_us: by percentile; with a rate, of latencies that count from when a run was due.
    throughput: runs a second.
    cpu_s_per_run: what all threads of the process computed for a run, spinning included.
    peak_mib: the largest resident memory of its process, in MiB.
    """

    name: str
    setting: str
    runs: int
    mean_us: float
    max_us: float
    percentiles_us: dict[int, float]
    throughput: float
    cpu_s_per_run: float
    peak_mib: float


@dataclass(frozen=True)
class Ratio:
    """The artifact's median over another's, below 1 is faster: the mean of all rounds' ratios.

    Attributes
    ----------
    interval: where it lies with 95% confidence, by rounds drawn anew; None of a single round.
    """

    value: float
    interval: tuple[float, float] | None


def hold(
    contestants: Sequence[Contestant],
    feed: Feed,
    load: Load,
    timing: Timing,
    *,
    seed: int = 0,
    progress: Callable[[int, int], object] = lambda done, total: None,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, str]:
    """Let contestants take turns; what each found is with it.

    Returns
    -------
    Why those that failed did, by name; they are out of the turns from then on.

    Raises
    ------
    ExecutionError
        The first contestant failed.
    """
    failed: dict[str, str] = {}
    total = timing.rounds * len(contestants)
    draw = random.Random(seed)
    try:
        for contestant in contestants:
            _do(contestants, contestant, failed, lambda one: one.start(feed, load))
        for contestant in contestants:
            _do(contestants, contestant, failed, lambda one: one.warm_up(timing.warmup_s))
        for round_ in range(timing.rounds):
            order = list(contestants)
            draw.shuffle(order)
            for place, contestant in enumerate(order):
                if contestant.name not in failed:
                    sleep(timing.rest_s)
                # All have the same arrivals in a round.
                turn_seed = seed + round_

                def take(one: Contestant, turn_seed: int = turn_seed) -> None:
                    one.take_turn(timing.turn_s, turn_seed)

                _do(contestants, contestant, failed, take)
                progress(round_ * len(order) + place + 1, total)
    finally:
        for contestant in contestants:
            contestant.stop()
    return failed


def _do(
    contestants: Sequence[Contestant],
    one: Contestant,
    failed: dict[str, str],
    what: Callable[[Contestant], None],
) -> None:
    if one.name in failed:
        return
    try:
        what(one)
    except ExecutionError as error:
        if one is contestants[0]:
            raise
        failed[one.name] = str(error)


def found_of(contestant: Contestant) -> Found:
    """Its figures, of all its turns."""
    latencies_us = latencies_of(contestant)
    wall_s = sum(turn.wall_s for turn in contestant.turns)
    cpu_s = sum(turn.cpu_s for turn in contestant.turns)
    return Found(
        name=contestant.name,
        setting=contestant.setting,
        runs=len(latencies_us),
        mean_us=float(latencies_us.mean()),
        max_us=float(latencies_us.max()),
        percentiles_us={p: float(np.percentile(latencies_us, p)) for p in PERCENTILES},
        throughput=len(latencies_us) / wall_s,
        cpu_s_per_run=cpu_s / len(latencies_us),
        peak_mib=contestant.peak_mib,
    )


def latencies_of(contestant: Contestant) -> npt.NDArray[np.float64]:
    """The latencies of all its runs, in microseconds."""
    return np.array([us for turn in contestant.turns for us in turn.latencies_us])


def ratio_of(ours: Contestant, theirs: Contestant, seed: int = 0) -> Ratio:
    """How the two compare, round by round."""
    medians = [
        [float(np.median(turn.latencies_us)) for turn in one.turns] for one in (ours, theirs)
    ]
    logs = np.log(medians[0]) - np.log(medians[1])
    if len(logs) == 1:
        return Ratio(float(np.exp(logs[0])), None)
    draws = np.random.default_rng(seed).integers(0, len(logs), (_RESAMPLES, len(logs)))
    tail = 100 * (1 - _CONFIDENCE) / 2
    low, high = np.exp(np.percentile(logs[draws].mean(axis=1), [tail, 100 - tail]))
    return Ratio(float(np.exp(logs.mean())), (float(low), float(high)))


def as_json(found: Sequence[Found], ratios: Mapping[str, Ratio]) -> dict[str, object]:
    """Figures as plain data."""
    return {
        "contestants": [
            {
                "name": one.name,
                "setting": one.setting,
                "runs": one.runs,
                "mean_us": one.mean_us,
                "max_us": one.max_us,
                "percentiles_us": {f"p{p}": value for p, value in one.percentiles_us.items()},
                "throughput_per_s": one.throughput,
                "cpu_s_per_run": one.cpu_s_per_run,
                "peak_mib": one.peak_mib,
            }
            for one in found
        ],
        "ratios": {
            name: {"ratio": ratio.value, "interval": ratio.interval}
            for name, ratio in ratios.items()
        },
    }
