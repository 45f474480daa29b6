"""Times contestants against each other in interleaved rounds.

Every round runs each contestant once, in a new random order. So changes of the machine (clock rate,
caches, the load of other programs) affect all contestants alike. The baseline runs twice in each
round. The difference between its two times is the noise. A difference between contestants counts
only if it is larger than the noise. There is a rest before each contestant, because the threads of
a library keep spinning for a while after a call and would slow the next contestant.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

REST_S = 0.1
"""Rest before each contestant, in seconds. onnxruntime's threads spin for some 50 ms after a run.
Without a rest, the next contestant took twice as long."""
AGAIN = " (again)"
"""Suffix of the name under which the baseline takes part a second time."""
CONFIDENCE = 0.95
_RESAMPLES = 2000


@dataclass(frozen=True)
class Summary:
    """The times of one contestant, in microseconds.

    Attributes
    ----------
    rounds: number of rounds.
    median_us, p90_us, p99_us: median, 90th and 99th percentile over the rounds.
    median_interval_us: 95% confidence interval of the median (bootstrap).
    ratio: median over the baseline's median; below 1 is faster.
    ratio_interval: 95% confidence interval of the ratio. The bootstrap draws the same rounds for
        the contestant and for the baseline.
    """

    name: str
    rounds: int
    median_us: float
    median_interval_us: tuple[float, float]
    p90_us: float
    p99_us: float
    ratio: float
    ratio_interval: tuple[float, float]

    def differs(self, noise: Summary) -> bool:
        """Whether the contestant differs from the baseline, beyond chance and beyond the noise.

        Two conditions must hold. The interval of the contestant's ratio to the baseline must not
        contain 1. This ratio must also be further from 1 than the baseline's ratio to itself, and
        than both ends of the interval of the baseline's ratio.

        Parameters
        ----------
        noise: the times of the baseline when it takes part a second time.
        """
        low, high = self.ratio_interval
        floor = max(abs(np.log(r)) for r in (noise.ratio, *noise.ratio_interval))
        return not low <= 1 <= high and bool(abs(np.log(self.ratio)) > floor)


def measure(
    contestants: Mapping[str, Callable[[], object]],
    baseline: str,
    rounds: int,
    *,
    warmup: int = 2,
    lead_in: int = 1,
    in_a_row: int = 1,
    rest_s: float = REST_S,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, npt.NDArray[np.float64]]:
    """Time each contestant `rounds` times, in microseconds.

    The baseline takes part a second time. Its name then has the suffix `AGAIN`.

    Parameters
    ----------
    contestants: functions to time, by name; a call is one inference.
    warmup: number of rounds before anything is timed.
    lead_in: number of untimed calls at the start of each turn. They wake sleeping threads.
    in_a_row: number of timed calls in each turn. The time of the turn is their median, so a single
        call that other work delayed does not count.
    rest_s: seconds of rest before each turn.
    clock: function that returns the time in seconds. Tests pass a clock of their own.
    sleep: function that rests for a number of seconds. Tests pass a function that does not rest.
    """
    entries = {**contestants, baseline + AGAIN: contestants[baseline]}
    times: dict[str, list[float]] = {name: [] for name in entries}
    draw = random.Random(seed)
    for round_ in range(-warmup, rounds):
        order = list(entries)
        draw.shuffle(order)
        for name in order:
            sleep(rest_s)
            for _ in range(lead_in):
                entries[name]()
            took = []
            for _ in range(in_a_row):
                began = clock()
                entries[name]()
                took.append(clock() - began)
            if round_ >= 0:
                times[name].append(float(np.median(took)) * 1e6)
    return {name: np.array(found) for name, found in times.items()}


def summarise(
    times: Mapping[str, npt.NDArray[np.float64]], baseline: str, seed: int = 0
) -> dict[str, Summary]:
    """Medians, intervals and ratios to `baseline`, by contestant.

    Parameters
    ----------
    times: (rounds,) microseconds of each contestant, as `measure` returns them.
    """
    rng = np.random.default_rng(seed)
    base = times[baseline]
    draws = rng.integers(0, len(base), (_RESAMPLES, len(base)))
    base_medians = np.median(base[draws], axis=1)
    return {
        name: _summary(name, found, base, np.median(found[draws], axis=1), base_medians)
        for name, found in times.items()
    }


def rounds_for(contestants: Sequence[Callable[[], object]], budget_s: float) -> int:
    """The number of rounds that fit into `budget_s` seconds, from 15 to 201.

    The estimate comes from one timed call of each contestant, after a call to warm up. It assumes
    that a turn consists of a rest, one untimed call and one timed call.
    """
    took = 0.0
    for call in contestants:
        call()
        began = time.perf_counter()
        call()
        took += 2 * (time.perf_counter() - began) + REST_S
    return int(np.clip(budget_s / took, 15, 201))


def _summary(
    name: str,
    times: npt.NDArray[np.float64],
    base: npt.NDArray[np.float64],
    medians: npt.NDArray[np.float64],
    base_medians: npt.NDArray[np.float64],
) -> Summary:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(medians, [tail, 100 - tail])
    ratio_low, ratio_high = np.percentile(medians / base_medians, [tail, 100 - tail])
    return Summary(
        name=name,
        rounds=len(times),
        median_us=float(np.median(times)),
        median_interval_us=(float(low), float(high)),
        p90_us=float(np.percentile(times, 90)),
        p99_us=float(np.percentile(times, 99)),
        ratio=float(np.median(times) / np.median(base)),
        ratio_interval=(float(ratio_low), float(ratio_high)),
    )
