"""Times contestants against each other so that the answer can be trusted.

Every round runs each contestant once, in an order drawn anew, so that whatever drifts (clock,
caches, a neighbour's load) falls on all alike. The baseline takes part twice: how far it is from
itself is the noise, and no difference smaller than that is claimed. Between contestants there is
a rest, because the idle threads of one library keep spinning for a while after it has returned.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

REST_S = 0.1
"""onnxruntime's threads spin for some 50 ms after a run: whoever came next took twice as long."""
AGAIN = " (again)"
"""What is added to the baseline's name when it runs against itself."""
CONFIDENCE = 0.95
_RESAMPLES = 2000


@dataclass(frozen=True)
class Summary:
    """What was found of one contestant; times in microseconds.

    Attributes
    ----------
    median_us, p90_us, p99_us: of its rounds.
    median_interval_us: where the median lies with 95% confidence (bootstrap).
    ratio: its median over the baseline's; below 1 is faster.
    ratio_interval: where that ratio lies with 95% confidence, the rounds drawn in pairs.
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
        """Whether it is faster or slower than the baseline, beyond chance and beyond the noise.

        The interval of its ratio must not hold 1, and its ratio must be further from 1 than the
        baseline's from itself.
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
    """Time each contestant `rounds` times, in microseconds; the baseline also under `AGAIN`.

    Parameters
    ----------
    contestants: what to call, by name; a call is one inference.
    warmup: rounds before anything is timed.
    lead_in: calls just before those that are timed, which wake threads that slept meanwhile.
    in_a_row: calls that are timed in each turn. Their median is the turn's time, so that a single
        call which the machine held up does not count.
    clock, sleep: in seconds; tests bring their own.
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
    """Medians, intervals and ratios to `baseline`, of what `measure` returned."""
    rng = np.random.default_rng(seed)
    base = times[baseline]
    draws = rng.integers(0, len(base), (_RESAMPLES, len(base)))
    base_medians = np.median(base[draws], axis=1)
    return {
        name: _summary(name, found, base, np.median(found[draws], axis=1), base_medians)
        for name, found in times.items()
    }


def rounds_for(
    contestants: Sequence[Callable[[], object]],
    budget_s: float,
    *,
    least: int = 15,
    most: int = 201,
    in_a_row: int = 1,
) -> int:
    """How many rounds fit into `budget_s`, judged by one call of each after one to warm up.

    Parameters
    ----------
    in_a_row: calls that are timed in each turn; one more leads in.
    """
    took = 0.0
    for call in contestants:
        call()
        began = time.perf_counter()
        call()
        took += (1 + in_a_row) * (time.perf_counter() - began) + REST_S
    return int(np.clip(budget_s / took, least, most))


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
