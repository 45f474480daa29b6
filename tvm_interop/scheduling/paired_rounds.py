"""Is one schedule faster than another? Judged by rounds in which both of them ran.

In a round each contestant runs once, in an order drawn anew. If two are equally fast, then which of
them seems the faster in a round is a fair coin's toss, whatever else the machine does meanwhile: a
busy spell, a slow drift or a lost core strikes the one as likely as the other. The Wilcoxon
signed-rank test (Wilcoxon 1945; Hollander and Wolfe, "Nonparametric Statistical Methods", chapter
3) asks no more than that, and its level is exact.

How many rounds there are is decided by how far the two times of a round are apart, not by which of
them was shorter, and the test is made once, at the end. So looking at the rounds as they come costs
nothing of the level, as looking for a significant result again and again would. Giving up costs
nothing of it either: where it is plain that the schedule is not faster, nothing ships.
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
"""How often, at most, a schedule that is no faster may pass for a faster one."""
LEAST_GAIN = 0.01
"""A schedule passes only if it is faster by more than this share. Two copies of one program already
differ by as much as that for no better reason than where their tensors lie."""
_SOUGHT_GAIN = 0.03
_POWER = 0.9
"""There are rounds enough to find such a gain as often as this, as far as the limits allow."""
_LEAST_US = 1e-3
"""Times that a clock measured as 0 count as this."""
FEWEST_ROUNDS = 5
"""With fewer nothing can be said at this level."""
_FIRST_ROUNDS = 6
"""After so many it is asked for the first time whether a schedule gains nothing. To find that it
gains takes 12 at least (see `_rounds_needed`)."""
_MOST_ROUNDS = 500
"""However noisy the machine is."""


@dataclass(frozen=True)
class PairedRatio:
    """How long one contestant takes, relative to another, by rounds in which both ran.

    Attributes
    ----------
    rounds: how many there were.
    ratio: the median of the ratio (Hodges-Lehmann estimate): below 1 is faster.
    interval: where that ratio lies with 90% confidence, so that it is above the upper end in 5% of
        cases at most; (0, inf) where there are too few rounds to say.
    """

    rounds: int
    ratio: float
    interval: tuple[float, float]

    @property
    def is_faster(self) -> bool:
        """Whether it is faster by more than 1%, at a level of 5%."""
        return self.interval[1] < 1 - LEAST_GAIN

    @property
    def may_be_faster(self) -> bool:
        """Whether it may be faster by 2%, half-way between what passes and what is sought.

        Where not, in 5% of cases at most it is so: further rounds would hardly let it pass.
        """
        return self.interval[0] <= 1 - (LEAST_GAIN + _SOUGHT_GAIN) / 2


def paired_ratio(times_us: Floats, baseline_us: Floats) -> PairedRatio:
    """Compare two contestants.

    Parameters
    ----------
    times_us, baseline_us: (rounds,) of the two, 1 or more rounds.
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
    """A schedule run against sequential execution, in rounds that had no part in choosing it.

    Attributes
    ----------
    sequential_us, scheduled_us: medians, in microseconds.
    compared: the schedule's time over that of sequential execution, by rounds.
    noise_ratio: 1 or more: how far sequential execution is from itself, by the same rounds.
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
    rounds: each gives the microseconds of sequential execution, of sequential execution once
        more, and of the schedule.
    budget, at_least: as `take_rounds` has them.
    gives_up: ends where the schedule is hardly faster (`PairedRatio.may_be_faster`): for who only
        asks whether it ships.
    """

    def is_in_vain(so_far: Floats) -> bool:
        return not paired_ratio(so_far[:, 2], so_far[:, 0]).may_be_faster

    ends = is_in_vain if gives_up else None
    taken = take_rounds(rounds, budget, pair=(2, 0), gain=LEAST_GAIN, at_least=at_least, ends=ends)
    return confirmation_of(taken)


def confirmation_of(rounds: Floats) -> Confirmation:
    """The verdict of rounds on a schedule.

    Parameters
    ----------
    rounds: (rounds, 3) microseconds, as `confirm` has them.
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
    """Take as many rounds as it needs to tell two contestants apart; (rounds, contestants).

    Parameters
    ----------
    rounds: each gives the microseconds of all contestants; there may be no end to them.
    budget: no further round begins when it is spent, once there are `at_least` so many.
    most: rounds at most.
    earlier: (rounds, contestants) of the same contestants, which count too.
    pair: the positions of the two contestants.
    gain: the gain that the first of them will be asked for; 0 where they are alike.
    ends: asked now and then, with the rounds so far, whether these are enough for other reasons.
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
            # Not all at once: a machine that calms down needs fewer.
            wanted = int(min(needed, 2 * len(taken)))
    return np.array(taken)


def checked_rounds(rounds: Iterable[npt.ArrayLike], contestants: int) -> Iterator[Floats]:
    """The rounds, each checked as it comes; a time of less than a nanosecond counts as one.

    Raises
    ------
    ScheduleError: there is not one round; one is no list of times, one for each contestant.
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
    """The means of all pairs of values, each with itself too, ascending."""
    i, j = np.triu_indices(len(values))
    means: Floats = np.sort((values[i] + values[j]) / 2)
    return means


def _rounds_needed(apart: Floats) -> float:
    """Rounds in which the gain sought is found (Noether, JASA 1987, section 2.2).

    They follow from the chance that the mean of two rounds shows the gain. That is taken from the
    rounds there are, each counted with either sign, as if nothing were known of which contestant
    was the faster.

    Parameters
    ----------
    apart: (rounds,) how far the two are apart, as logarithms without their sign.
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
    """The most of the Walsh averages that chance leaves above 0 in at most 5% of cases.

    None where even none of them is likelier than that. Exact: the sum of ranks with a sign each.
    """
    chances = np.ones(1)
    for rank in range(1, rounds + 1):
        grown = np.zeros(len(chances) + rank)
        grown[: len(chances)] = chances / 2
        grown[rank:] += chances / 2
        chances = grown
    at_most = int(np.searchsorted(np.cumsum(chances), LEVEL, side="right")) - 1
    return at_most if at_most >= 0 else None
