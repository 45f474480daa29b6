"""Decides whether one schedule is faster than another, by rounds in which both of them ran.

In a round, each of two schedules runs once, in random order. If the schedules are equally fast,
each of them seems faster in a round with probability 1/2. Other load on the machine does not change
this, because it slows each schedule with the same probability. This is all that the Wilcoxon
signed-rank test assumes (Wilcoxon 1945; Hollander and Wolfe, "Nonparametric Statistical Methods",
chapter 3). Its significance level is exact.

The significance test is made only after the last round. Testing after every round until the result
is significant would raise the probability of a false result. The number of rounds is chosen while
the rounds run, but only from the size of the difference between the two times of a round. It does
not depend on which schedule was faster, so it does not bias the test.

The rounds may end early in two cases. First, the new schedule is clearly not faster than the old
one. It is then not used, so this early end cannot lead to a false result. Second, the new schedule
is clearly faster, by a test at a much stricter significance level. There are few such early tests.
The level of the final test is lowered by the sum of the early tests' levels (Haybittle, British
Journal of Radiology 1971; Peto et al., British Journal of Cancer 1976). So the probability of a
false result stays below `LEVEL`.
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
"""Significance level of the whole comparison: the highest probability with which it accepts a
schedule that is not faster."""
_EARLY_LEVEL = 0.0005
"""Significance level of each test that may end the rounds early."""
_FIRST_EARLY_TEST = 24
"""Number of rounds before the first test that may end the rounds early. Each further test comes
after twice as many rounds as the test before.
"""
LEAST_GAIN = 0.01
"""Share by which a schedule must be faster to pass the test. Smaller differences say nothing: even
two copies of one program can differ by this share, because their tensors have different
addresses.
"""
_SOUGHT_GAIN = 0.03
_POWER = 0.9
"""Probability that the test finds a gain of `_SOUGHT_GAIN`. The number of rounds is chosen for this
probability, within the limits on rounds and time."""
LEAST_US = 1e-3
"""Shortest time of a run in microseconds. If a measured time is shorter, for example 0, this time
replaces it."""
FEWEST_ROUNDS = 5
"""Smallest number of rounds that can show a gain at the significance level `LEVEL`."""
_FIRST_ROUNDS = 6
"""Number of rounds before the first check for an early stop. By the rule of `_rounds_needed`, a
comparison that is not stopped early takes at least 12 rounds."""
_FIRST_DEAR_ROUNDS = 3
"""A number of rounds. If this many rounds have already taken `_CHEAP_US`, then `ends` is called
after each further round until there are `_FIRST_ROUNDS` rounds. The needed number of rounds is not
estimated from so few rounds.
"""
_CHEAP_US = 2e6
"""As long as all rounds together have taken fewer microseconds than this, they go on even if a gain
is unlikely. After this time, they end if a gain is unlikely (`may_gain`).
"""
_DEAR_LEVEL = 0.2
"""Significance level at which `may_gain` rules out a gain, once all rounds together have taken
`_CHEAP_US`. The rounds end when a gain is ruled out.
"""
_DEAR_GROWTH = 1.4
"""Factor by which the number of rounds grows from one check for an early stop to the next, once the
rounds have taken `_CHEAP_US`. While they have taken less, the factor is 2.
"""
MOST_ROUNDS = 500
"""Largest number of rounds, however noisy the machine is."""
_EARLY_TESTS = (MOST_ROUNDS // _FIRST_EARLY_TEST).bit_length()
"""Largest number of tests that may end the rounds early."""
_LAST_LEVEL = LEVEL - _EARLY_TESTS * _EARLY_LEVEL
"""Significance level of the test after the last round."""


@dataclass(frozen=True)
class PairedRatio:
    """The ratio of the times of two contestants, from rounds in which both ran.

    Attributes
    ----------
    rounds: number of rounds.
    ratio: median of the time of the first contestant divided by the time of the second
        (Hodges-Lehmann estimate). Below 1, the first contestant is faster.
    interval: 90% confidence interval of the ratio. The true ratio lies above the interval in less
        than 5% of cases, and below the interval in less than 5% of cases. The interval is (0, inf)
        if there are too few rounds.
    """

    rounds: int
    ratio: float
    interval: tuple[float, float]

    @property
    def is_faster(self) -> bool:
        """Whether the first contestant is more than 1% faster by each ratio in `interval`."""
        return self.interval[1] < 1 - LEAST_GAIN

    @property
    def seems_faster(self) -> bool:
        """Whether `ratio` says that the first contestant is more than 1% faster. The confidence
        interval of `ratio` is ignored.
        """
        return self.ratio < 1 - LEAST_GAIN


def paired_ratio(times_us: Floats, baseline_us: Floats, level: float = _LAST_LEVEL) -> PairedRatio:
    """Compare the times of a contestant with the times of a baseline.

    Parameters
    ----------
    times_us, baseline_us: (rounds,) microseconds of the contestant and of the baseline in 1 or more
        rounds.
    level: significance level of each end of the interval.
    """
    rounds = len(times_us)
    means = _walsh_averages(_log_ratios(times_us, baseline_us))
    exceeding = _signed_rank_quantile(rounds, level)
    if exceeding is None:
        interval = (0.0, math.inf)
    else:
        low, high = means[exceeding], means[len(means) - 1 - exceeding]
        interval = (float(np.exp(low)), float(np.exp(high)))
    return PairedRatio(rounds, float(np.exp(np.median(means))), interval)


def may_gain(rounds: Floats, contestant: int) -> bool:
    """Whether a contestant may be 2% faster than sequential execution.

    2% is half-way between the gain that the test requires (`LEAST_GAIN`, 1%) and the gain that it
    looks for (`_SOUGHT_GAIN`, 3%). If the result is False, the contestant would hardly pass the
    test after further rounds, or the rounds would cost more than the gain is worth.

    The function tests whether a gain of 2% is ruled out. As long as all rounds together took less
    than two seconds, the significance level of this test is just below 5% (`_LAST_LEVEL`). After
    two seconds, the level is 20%. On a noisy machine, a test at 20% needs a quarter of the rounds
    that a test at 5% needs.

    Parameters
    ----------
    rounds: (rounds, contestants) microseconds; contestant 0 is sequential execution.
    contestant: index of the contestant among the columns of `rounds`.
    """
    level = _LAST_LEVEL if is_cheap(rounds) else _DEAR_LEVEL
    found = paired_ratio(rounds[:, contestant], rounds[:, 0], level)
    return found.interval[0] <= 1 - (LEAST_GAIN + _SOUGHT_GAIN) / 2


def is_cheap(rounds: Floats) -> bool:
    """Whether the rounds took little time in all. Their lengths are in microseconds."""
    return float(rounds.sum()) < _CHEAP_US


@dataclass(frozen=True)
class Confirmation:
    """How a schedule compares with sequential execution, by rounds in which both ran.

    Attributes
    ----------
    sequential_us, scheduled_us: median times in microseconds.
    compared: time of the schedule relative to sequential execution.
    noise_ratio: time of sequential execution relative to its second run in the same rounds; the
        inverse if this is below 1. A ratio far above 1 shows that the machine is noisy.
    """

    sequential_us: float
    scheduled_us: float
    compared: PairedRatio
    noise_ratio: float


def confirm(
    rounds: Iterable[Floats],
    budget: Budget,
    *,
    at_least: int = 1,
    most: int = MOST_ROUNDS,
    ends_early: bool = False,
) -> Confirmation:
    """Compare a schedule with sequential execution.

    Parameters
    ----------
    rounds: each round holds three times in microseconds: sequential execution, sequential execution
        again, and the schedule.
    budget, at_least, most: as in `take_rounds`.
    ends_early: whether to stop as soon as the result is clear. The result is clear if the schedule
        can hardly pass the final test (`may_gain`), or if it already passes a test at a much
        stricter level. An early end makes the ratio less exact.
    """
    next_test = _FIRST_EARLY_TEST

    def is_clear(so_far: Floats) -> bool:
        nonlocal next_test
        if not may_gain(so_far, 2):
            return True
        if len(so_far) < next_test:
            return False
        next_test = 2 * len(so_far)
        return paired_ratio(so_far[:, 2], so_far[:, 0], _EARLY_LEVEL).is_faster

    ends = is_clear if ends_early else None
    taken = take_rounds(
        rounds,
        budget,
        pair=(2, 0),
        gain=LEAST_GAIN,
        at_least=at_least,
        most=most,
        ends=ends,
    )
    return confirmation_of(taken)


def confirmation_of(rounds: Floats) -> Confirmation:
    """Compare a schedule with sequential execution by the times of given rounds.

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
    most: int = MOST_ROUNDS,
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
    earlier: (rounds, contestants) microseconds of earlier rounds, which become part of the result.
    pair: positions of the two contestants to tell apart.
    gain: a share from 0 to 1. The rounds should tell whether the first contestant of the pair is
        faster than the second by more than this share. With a gain of 0, they tell which of the two
        is faster.
    ends: a function that is called now and then with the rounds so far. The rounds also end when
        the function returns True.
    """
    taken: list[Floats] = [] if earlier is None else list(earlier)
    wanted = len(taken) + _FIRST_ROUNDS
    dear = range(len(taken) + _FIRST_DEAR_ROUNDS, wanted)
    for times_us in islice(rounds, max(most - len(taken), 0)):
        taken.append(times_us)
        if len(taken) >= at_least and budget.left_s() <= 0:
            break
        if ends is not None and len(taken) in dear:
            so_far = np.array(taken)
            if not is_cheap(so_far) and ends(so_far):
                break
        if len(taken) >= wanted:
            so_far = np.array(taken)
            apart = _log_ratios(so_far[:, pair[0]], so_far[:, pair[1]]) - math.log1p(-gain)
            needed = _rounds_needed(np.abs(apart))
            if needed <= len(taken) or (ends is not None and ends(so_far)):
                break
            # Estimate the needed number of rounds again before all of them are taken. If there is
            # less noise than before, fewer rounds are enough.
            growth = 2.0 if is_cheap(so_far) else _DEAR_GROWTH
            wanted = int(min(needed, math.ceil(growth * len(taken))))
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
            raise ScheduleError(f"`evaluate` gave a round that is not a list: {error}") from None
        if times_us.shape != (contestants,) or not np.all(np.isfinite(times_us) & (times_us >= 0)):
            raise ScheduleError(
                f"`evaluate` gave {given!r} as round {number}; it must give the microseconds of "
                f"each of the {contestants} schedules"
            )
        yield np.maximum(times_us, LEAST_US)
    if not number:
        raise ScheduleError(
            "`evaluate` gave no round; it must give rounds until `auto` stops asking"
        )


def _log_ratios(times_us: Floats, baseline_us: Floats) -> Floats:
    ratios: Floats = np.log(times_us) - np.log(baseline_us)
    return ratios


def _walsh_averages(values: Floats) -> Floats:
    """The means of all pairs of values, ascending. Each value is paired with itself too."""
    i, j = np.triu_indices(len(values))
    means: Floats = np.sort((values[i] + values[j]) / 2)
    return means


def _rounds_needed(apart: Floats) -> float:
    """Number of rounds needed to detect a gain of `_SOUGHT_GAIN` (Noether, JASA 1987, section 2.2).

    The number is computed from the probability that the mean of two rounds shows the gain. This
    probability is estimated from the rounds so far. Each difference between two times is counted
    once as positive and once as negative. So the estimate does not depend on which contestant was
    faster.

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
def _signed_rank_quantile(rounds: int, level: float) -> int | None:
    """A quantile of the number of Walsh averages above 0, if the contestants are equally fast.

    A Walsh average is the mean of the log ratios of two rounds (`_walsh_averages`). The quantile is
    the largest k for which the probability of k or fewer averages above 0 is at most `level`. The
    quantile is None if the probability is higher than `level` even for k = 0. The distribution is
    exact: the number of averages above 0 is a sum over the ranks 1, 2, ..., in which each rank is
    included with probability 1/2.
    """
    chances = np.ones(1)
    for rank in range(1, rounds + 1):
        grown = np.zeros(len(chances) + rank)
        grown[: len(chances)] = chances / 2
        grown[rank:] += chances / 2
        chances = grown
    at_most = int(np.searchsorted(np.cumsum(chances), level, side="right")) - 1
    return at_most if at_most >= 0 else None
