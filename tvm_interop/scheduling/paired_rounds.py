"""Decides whether one schedule is faster than another, by rounds in which both of them ran.

In a round each contestant runs once, in random order. Suppose that two contestants are equally
fast. Then a fair coin decides which of them seems faster in a round, whatever else the machine
does. A busy spell, a slow drift or a lost core strikes either of them with the same probability.
The Wilcoxon signed-rank test (Wilcoxon 1945; Hollander and Wolfe, "Nonparametric Statistical
Methods", chapter 3) assumes no more than that, and its significance level is exact.

The number of rounds depends on how far the two times of a round are apart. It does not depend on
which of them is shorter. The test is made once, at the end. So it does no harm to look at the
rounds as they come. A repeated search for a significant result would raise the chance of a false
result. Giving up early does no harm either, because a schedule that is plainly not faster is not
used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from .budget import Budget

Floats = npt.NDArray[np.float64]

LEVEL = 0.05
"""Significance level: the highest probability that a schedule that is not faster is taken for
faster."""
LEAST_GAIN = 0.01
"""A schedule passes only if it is faster by more than this share. Two copies of one program can
differ by this share just because their tensors lie at different addresses."""
_SOUGHT_GAIN = 0.03
_POWER = 0.9
"""Probability with which a gain of `_SOUGHT_GAIN` is found. The number of rounds is chosen for this
probability, within the limits on rounds and time."""
_LEAST_US = 1e-3
"""Shortest time in microseconds. A time that the clock measured as 0 counts as this."""
FEWEST_ROUNDS = 5
"""Smallest number of rounds that can show a gain at the significance level `LEVEL`."""
_FIRST_ROUNDS = 6
"""Number of rounds before the first check whether a schedule gains nothing. At least 12 rounds are
needed to show a gain (see `_rounds_needed`)."""
_MOST_ROUNDS = 500
"""Largest number of rounds, however noisy the machine is."""


@dataclass(frozen=True)
class PairedRatio:
    """The time of one contestant relative to another, by rounds in which both ran.

    Attributes
    ----------
    rounds: number of rounds.
    ratio: median of the time ratio (Hodges-Lehmann estimate). Below 1 the contestant is faster.
    interval: 90% confidence interval of the ratio. The ratio is above the upper end in at most 5%
        of cases. (0, inf) if there are too few rounds to say.
    """

    rounds: int
    ratio: float
    interval: tuple[float, float]

    @property
    def is_faster(self) -> bool:
        """Whether the contestant is faster by more than 1%, at a significance level of 5%."""
        return self.interval[1] < 1 - LEAST_GAIN

    @property
    def may_be_faster(self) -> bool:
        """Whether the contestant may be faster by 2%.

        This share is half-way between `LEAST_GAIN` and `_SOUGHT_GAIN`.

        2% is half-way between the gain that is needed to pass (1%) and the gain that is sought
        (3%). If the result is False, the contestant is faster by 2% in at most 5% of cases. Further
        rounds would hardly let the contestant pass.
        """
        return self.interval[0] <= 1 - (LEAST_GAIN + _SOUGHT_GAIN) / 2


def paired_ratio(times_us: Floats, baseline_us: Floats) -> PairedRatio:
    """Compare the times of two contestants.

    Parameters
    ----------
    times_us, baseline_us: (rounds,) microseconds of the two contestants in 1 or more rounds.
    """
    rounds = len(times_us)
    means = _walsh_averages(_log_ratios(times_us, baseline_us))
    exceeding = _signed_rank_quantile(rounds)
    if exceeding is None:
        interval = (0.0, math.inf)
    else:
        low, high = means[exceeding], means[len(means) - 1 - exceeding]
        interval = (float(np.exp(low)), float(np.exp(high)))
    return PairedRatio(rounds, float(np.exp(np.median(means))), interval)


@dataclass(frozen=True)
class Confirmation:
    """A comparison of a schedule with sequential execution, by rounds in which both ran.

    Attributes
    ----------
    sequential_us, scheduled_us: median times in microseconds.
    compared: time of the schedule relative to sequential execution.
    noise_ratio: time of sequential execution relative to a second run of itself in the same rounds;
        inverted if it is below 1.
    """

    sequential_us: float
    scheduled_us: float
    compared: PairedRatio
    noise_ratio: float


def confirm(
    rounds: Iterable[Floats], budget: Budget, *, at_least: int = 1, gives_up: bool = False
) -> Confirmation:
    """Compare a schedule with sequential execution.

    Parameters
    ----------
    rounds: each round holds three times in microseconds: sequential execution, sequential execution
        again, and the schedule.
    budget, at_least: as in `take_rounds`.
    gives_up: whether to stop when the schedule is hardly faster (`PairedRatio.may_be_faster`). That
        is enough to decide whether the schedule ships.
    """

    def is_in_vain(so_far: Floats) -> bool:
        return not paired_ratio(so_far[:, 2], so_far[:, 0]).may_be_faster

    ends = is_in_vain if gives_up else None
    taken = take_rounds(rounds, budget, pair=(2, 0), gain=LEAST_GAIN, at_least=at_least, ends=ends)
    return confirmation_of(taken)


def confirmation_of(rounds: Floats) -> Confirmation:
    """Compare a schedule with sequential execution by rounds that have run.

    Parameters
    ----------
    rounds: (rounds, 3) microseconds, in the columns that `confirm` explains.
    """
    sequential_us, again_us, scheduled_us = rounds.T
    itself = paired_ratio(again_us, sequential_us).ratio
    return Confirmation(
        sequential_us=float(np.median(sequential_us)),
        scheduled_us=float(np.median(scheduled_us)),
        compared=paired_ratio(scheduled_us, sequential_us),
        noise_ratio=max(itself, 1 / itself),
    )


def take_rounds(
    rounds: Iterable[Floats],
    budget: Budget,
    *,
    pair: tuple[int, int],
    gain: float = 0.0,
    at_least: int = 1,
    most: int = _MOST_ROUNDS,
    earlier: Floats | None = None,
    ends: Callable[[Floats], bool] | None = None,
) -> Floats:
    """Take as many rounds as are needed to tell two contestants apart.

    The function returns the microseconds of these rounds: (rounds, contestants).

    Parameters
    ----------
    rounds: each round holds the microseconds of all contestants. The iterable may be endless.
    budget: time limit. Once it is spent and there are `at_least` rounds, no further round begins.
    most: largest number of rounds.
    earlier: (rounds, contestants) microseconds of earlier rounds, which count too.
    pair: positions of the two contestants to tell apart.
    gain: the rounds tell whether the first contestant of the pair is faster than the second by more
        than this share, or by less. 0 for whether it is faster or slower.
    ends: a function that is called now and then with the rounds so far. It returns whether to stop
        for another reason.
    """
    taken: list[Floats] = [] if earlier is None else list(earlier)
    wanted = len(taken) + _FIRST_ROUNDS
    for times_us in islice(rounds, max(most - len(taken), 0)):
        taken.append(times_us)
        if len(taken) >= at_least and budget.left_s() <= 0:
            break
        if len(taken) >= wanted:
            so_far = np.array(taken)
            apart = _log_ratios(so_far[:, pair[0]], so_far[:, pair[1]]) - math.log1p(-gain)
            needed = _rounds_needed(np.abs(apart))
            if needed <= len(taken) or (ends is not None and ends(so_far)):
                break
            # Check again before all needed rounds are taken: fewer are needed if the noise falls.
            wanted = int(min(needed, 2 * len(taken)))
    return np.array(taken)


def checked_rounds(rounds: Iterable[npt.ArrayLike], contestants: int) -> Iterator[Floats]:
    """Check each round as it comes. A time below a nanosecond counts as a nanosecond.

    Raises
    ------
    ScheduleError: there is no round, or a round does not hold one time for each contestant.
    """
    number = 0
    for number, given in enumerate(rounds, start=1):
        try:
            times_us = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ScheduleError(f"`evaluate` gave a round that is no list: {error}") from None
        if times_us.shape != (contestants,) or not np.all(np.isfinite(times_us) & (times_us >= 0)):
            raise ScheduleError(
                f"`evaluate` gave {given!r} as round {number}; give the microseconds of each of "
                f"the {contestants} schedules in it"
            )
        yield np.maximum(times_us, _LEAST_US)
    if not number:
        raise ScheduleError("`evaluate` gave no round; give as many as are asked for")


def _log_ratios(times_us: Floats, baseline_us: Floats) -> Floats:
    ratios: Floats = np.log(times_us) - np.log(baseline_us)
    return ratios


def _walsh_averages(values: Floats) -> Floats:
    """The means of all pairs of values, ascending. Each value is paired with itself too."""
    i, j = np.triu_indices(len(values))
    means: Floats = np.sort((values[i] + values[j]) / 2)
    return means


def _rounds_needed(apart: Floats) -> float:
    """Number of rounds in which the sought gain is found (Noether, JASA 1987, section 2.2).

    The number follows from the probability that the mean of two rounds shows the gain. The rounds
    taken so far give an estimate of this probability. The difference of each round counts with both
    signs, so that the number does not depend on which contestant was faster.

    Parameters
    ----------
    apart: (rounds,) absolute difference of the two times' logarithms.
    """
    normal = NormalDist()
    reach = normal.inv_cdf(1 - LEVEL) + normal.inv_cdf(_POWER)
    gain = math.log((1 - LEAST_GAIN) / (1 - _SOUGHT_GAIN))
    i, j = np.triu_indices(len(apart), k=1)
    sums, differences = apart[i] + apart[j], np.abs(apart[i] - apart[j])
    beyond_chance = (np.mean(sums < 2 * gain) + np.mean(differences < 2 * gain)) / 4
    return reach**2 / (3 * beyond_chance**2) if beyond_chance else math.inf


@lru_cache(maxsize=64)
def _signed_rank_quantile(rounds: int) -> int | None:
    """The 5% quantile of the number of Walsh averages above 0, for equally fast contestants.

    The quantile is the largest k such that at most k averages are above 0 in 5% of cases or less.
    The quantile is None if k = 0 has a higher probability than 5%. The distribution is exact: a sum
    of ranks, in which each rank is counted or not by chance.
    """
    chances = np.ones(1)
    for rank in range(1, rounds + 1):
        grown = np.zeros(len(chances) + rank)
        grown[: len(chances)] = chances / 2
        grown[rank:] += chances / 2
        chances = grown
    at_most = int(np.searchsorted(np.cumsum(chances), LEVEL, side="right")) - 1
    return at_most if at_most >= 0 else None
