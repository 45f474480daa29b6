"""Runs engines in turns, and computes latencies, throughput and ratios from their turns.

In each round, every engine has one turn, in a new random order and after a pause. Changes of the
clock frequency, of caches or of other load then affect all engines alike. The artifact takes part
twice, in two processes. The difference between the results of these two processes is the noise of
the measurement. A smaller difference between engines has no meaning.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ExecutionError
from .contestant import Contestant, Load
from .engines import Feed

PERCENTILES = (50, 90, 95, 99)
REST_S = 0.5
"""The pause before a turn, in seconds. It is long enough for the threads of the previous engine,
which spin after a run, to stop spinning."""
Progress = Callable[[int, int], object]
"""A function that is called with the number of finished turns and the number of all turns."""
_CONFIDENCE = 0.95
_RESAMPLES = 2000


@dataclass(frozen=True)
class Timing:
    """How long contestants run. A contestant is an engine with a model.

    Attributes
    ----------
    warmup_s: how long each contestant runs untimed before all turns, in seconds.
    duration_s: the total time of the turns of each contestant, in seconds.
    turn_s: the time of one turn, in seconds.
    rest_s: the pause before each turn, in seconds.
    """

    warmup_s: float = 1.0
    duration_s: float = 5.0
    turn_s: float = 0.5
    rest_s: float = REST_S

    @property
    def rounds(self) -> int:
        """The number of rounds. In each round, every contestant has one turn."""
        return max(1, round(self.duration_s / self.turn_s))


@dataclass(frozen=True)
class Found:
    """The results of one contestant. A contestant is an engine with a model.

    Latencies are in microseconds. If requests come at a given rate, the latency of a request counts
    from the time at which the request is due.

    Attributes
    ----------
    name, setting: the contestant's name, and the setting (such as the number of threads) with which
        its engine is fastest.
    runs: the number of timed runs.
    mean_us, max_us: mean and largest latency.
    percentiles_us: latencies by percentile.
    throughput: runs per second.
    cpu_s_per_run: CPU time of all threads of the process per run, in seconds, including spinning.
    peak_mib: the largest resident memory of the process, in MiB.
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
    """The median latency of the artifact, divided by the median latency of another contestant.

    A ratio below 1 means that the artifact is faster.

    Attributes
    ----------
    value: the geometric mean of the ratios of all rounds.
    interval: the 95% confidence interval of `value`, by bootstrap over rounds; None if there was a
        single round.
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
    progress: Progress = lambda done, total: None,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, str]:
    """Start contestants, run them in turns, and stop them.

    The attribute `turns` of each contestant gets its results.

    Parameters
    ----------
    feed: the inputs, by name.
    load: how requests arrive.
    timing, seed, progress, sleep: see `take_turns`.

    Returns
    -------
    The reasons of failures, by the names of the contestants that failed.

    Raises
    ------
    ExecutionError
        The first contestant failed.
    """
    with started(contestants, feed, load) as failed:
        take_turns(contestants, timing, failed, seed=seed, progress=progress, sleep=sleep)
    return failed


@contextlib.contextmanager
def started(contestants: Sequence[Contestant], feed: Feed, load: Load) -> Iterator[dict[str, str]]:
    """Start contestants, and stop them when the `with` block ends.

    The `with` block gets the reasons of failures, by the names of the contestants that failed to
    start.

    Raises
    ------
    ExecutionError
        The first contestant failed.
    """
    failed: dict[str, str] = {}
    try:
        for contestant in contestants:
            _do(contestants, contestant, failed, lambda one: one.start(feed, load))
        yield failed
    finally:
        for contestant in contestants:
            contestant.stop()


def take_turns(
    contestants: Sequence[Contestant],
    timing: Timing,
    failed: dict[str, str],
    *,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Run started contestants in turns. A contestant that fails gets no further turns.

    Parameters
    ----------
    timing: how long contestants run.
    failed: the reasons of failures so far, by contestant; reasons of new failures are added.
    seed: seed of the random order of turns and the random arrival times.
    progress: a function that is called after each turn; see `Progress`.
    sleep: the function that makes the pause before a turn. It gets the seconds of the pause.

    Raises
    ------
    ExecutionError
        The first contestant failed.
    """
    total = timing.rounds * len(contestants)
    draw = random.Random(seed)
    for contestant in contestants:
        _do(contestants, contestant, failed, lambda one: one.warm_up(timing.warmup_s))
    for round_ in range(timing.rounds):
        order = list(contestants)
        draw.shuffle(order)
        for place, contestant in enumerate(order):
            if contestant.name not in failed:
                sleep(timing.rest_s)
            # All contestants have the same arrival times in a round.
            turn_seed = seed + round_

            def take(one: Contestant, turn_seed: int = turn_seed) -> None:
                one.take_turn(timing.turn_s, turn_seed)

            _do(contestants, contestant, failed, take)
            progress(round_ * len(order) + place + 1, total)


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
    """Return the results of a contestant (an engine with a model), from all of its turns."""
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
    """Return the latencies of all runs of a contestant, in microseconds."""
    return np.array([us for turn in contestant.turns for us in turn.latencies_us])


def ratio_of(ours: Contestant, theirs: Contestant, seed: int = 0) -> Ratio:
    """Return the ratio of two contestants' median latencies, computed from the ratios of all
    rounds.
    """
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
    """Return results and ratios as plain data for JSON."""
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
