"""Tests the statistical test that decides whether a schedule is faster.

The tests check its significance level, its power, and how it chooses the number of rounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.speed_check_rates import NOISES, rate, rounds_of
from tvm_interop.scheduling import budget
from tvm_interop.scheduling.budget import Budget
from tvm_interop.scheduling.paired_rounds import (
    FEWEST_ROUNDS,
    LEAST_GAIN,
    Confirmation,
    Floats,
    _signed_rank_quantile,
    confirm,
    is_cheap,
    may_gain,
    paired_ratio,
    take_rounds,
)


@pytest.mark.parametrize("noise", NOISES)
def test_the_check_ships_what_is_faster_and_nothing_else(noise: str) -> None:
    assert rate("check", noise, 1.0, trials=40).ships <= 0.1
    assert rate("check", noise, 0.95, trials=20).ships >= 0.9


@pytest.mark.parametrize("noise", ["gaussian, 3%", "bursts and drift"])
def test_so_does_auto_with_several_to_choose_from(noise: str) -> None:
    assert rate("auto", noise, 1.0, trials=40).ships <= 0.1
    assert rate("auto", noise, 0.95, trials=20).ships >= 0.9
    assert rate("slow auto", noise, 1.0, trials=40).ships <= 0.1
    assert rate("slow auto", noise, 0.95, trials=20).ships >= 0.9


def test_quantiles_of_the_signed_rank_statistic() -> None:
    """The quantiles at a one-sided level of 5% are as in table A.4 of Hollander and Wolfe."""
    found = [_signed_rank_quantile(n, 0.05) for n in (4, 5, 10, 15, 20, 30)]
    assert found == [None, 0, 10, 30, 60, 151]


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    truth, above = 1.1, 0
    for _ in range(1000):
        noisy = np.exp(0.1 * draw.standard_normal((2, 15)))
        found = paired_ratio(truth * noisy[0], noisy[1])
        assert found.interval[0] <= found.ratio <= found.interval[1]
        above += found.interval[1] < truth
    # At a level of 5%, 47.7 intervals of 1000 are expected to lie below the truth. The statistic is
    # discrete, and 4.77% is its possible level nearest to 5%.
    assert 25 <= above <= 75


def test_a_schedule_is_faster_if_it_is_so_beyond_the_least_gain() -> None:
    once = np.ones(10)
    assert paired_ratio(0.98 * once, once).is_faster
    assert not paired_ratio((1 - LEAST_GAIN) * once, once).is_faster
    assert not paired_ratio(0.995 * once, once).is_faster
    few = once[: FEWEST_ROUNDS - 1]
    assert paired_ratio(0.5 * few, few).interval == (0.0, math.inf)
    assert not paired_ratio(0.5 * few, few).is_faster


def test_the_number_of_rounds_does_not_depend_on_who_was_faster() -> None:
    """If the number of rounds depended on which contestant was faster, there would be more false
    positives than the significance level allows."""
    draw = np.random.default_rng(1)
    for seed in range(20):
        rounds = list(itertools.islice(rounds_of("gaussian, 10%", [1.0, 0.95], seed), 500))
        swapped = [times[::-1] if draw.random() < 0.5 else times for times in rounds]
        taken, other = (take_rounds(r, Budget(60), pair=(1, 0)) for r in (rounds, swapped))
        assert len(taken) == len(other)


def test_noise_asks_for_more_rounds() -> None:
    def count(noise: str) -> int:
        return len(take_rounds(rounds_of(noise, [1.0, 1.0], 0), Budget(60), pair=(0, 1)))

    assert count("quiet, 1%") < count("gaussian, 3%") < count("gaussian, 10%")


def confirmed(noise: str, ratio: float, ends_early: bool) -> Confirmation:
    rounds = rounds_of(noise, [1.0, 1.0, ratio], 3)
    return confirm(rounds, Budget(60), ends_early=ends_early)


@pytest.mark.parametrize("noise", ["quiet, 1%", "gaussian, 3%", "gaussian, 10%"])
def test_a_schedule_that_gains_nothing_is_soon_given_up(noise: str) -> None:
    whole, soon = (confirmed(noise, 1.05, ends_early) for ends_early in (False, True))
    assert soon.compared.rounds < whole.compared.rounds
    assert not soon.compared.is_faster


@pytest.mark.parametrize(("noise", "ratio"), [("gaussian, 3%", 0.9), ("gaussian, 10%", 0.7)])
def test_a_schedule_that_gains_much_soon_ships(noise: str, ratio: float) -> None:
    whole, soon = (confirmed(noise, ratio, ends_early) for ends_early in (False, True))
    assert 24 <= soon.compared.rounds < whole.compared.rounds
    assert soon.compared.is_faster


def test_looking_early_makes_no_more_false_results() -> None:
    """The schedule's gain is exactly the largest that does not count as faster, so a false result
    is as likely as possible."""
    trials = 400
    wrong = 0
    for seed in range(trials):
        rounds = rounds_of("gaussian, 3%", [1.0, 1.0, 1 - LEAST_GAIN], seed)
        wrong += confirm(rounds, Budget(60), ends_early=True).compared.is_faster
    # 20 false results are allowed on average; 33 or more have a probability of 0.3%.
    assert wrong <= 32


def slow(noise: str, ratio: float, seed: int) -> Iterator[Floats]:
    """Rounds for a network that takes 50 milliseconds."""
    return (50 * times_us for times_us in rounds_of(noise, [1.0, 1.0, ratio], seed))


def test_what_rounds_cost_decides_how_soon_a_gain_is_given_up() -> None:
    """If rounds take long, the measurement of a slow schedule ends after fewer rounds."""
    quick = slowly = 0
    for seed in range(20):
        rounds = rounds_of("gaussian, 10%", [1.0, 1.0, 1.0], seed)
        quick += confirm(rounds, Budget(600), ends_early=True).compared.rounds
        dear = slow("gaussian, 10%", 1.0, seed)
        slowly += confirm(dear, Budget(600), ends_early=True).compared.rounds
    assert slowly < quick / 2


def test_cheap_rounds_take_less_than_two_seconds() -> None:
    once = np.full((10, 3), 60_000.0)
    assert is_cheap(once)
    assert not is_cheap(np.concatenate([once, once]))


def test_a_gain_is_ruled_out_at_a_weaker_level_if_rounds_are_dear() -> None:
    rounds = np.array(list(itertools.islice(slow("gaussian, 10%", 1.0, 0), 20)))
    assert not is_cheap(rounds)
    assert is_cheap(rounds / 50)
    assert may_gain(rounds / 50, 2)
    assert not may_gain(rounds, 2)


def test_dear_rounds_of_a_slow_schedule_end_after_three() -> None:
    """Three rounds suffice if a round takes seconds and the schedule was slower in all three."""
    rounds = [np.array([1.0, 1.0, 1.1]) * us for us in (500_000.0, 510_000.0, 505_000.0)]
    taken = confirm(itertools.cycle(rounds), Budget(600), ends_early=True)
    assert taken.compared.rounds == 3
    cheap = (times_us / 1000 for times_us in itertools.cycle(rounds))
    assert confirm(cheap, Budget(600), ends_early=True).compared.rounds == 6
    won = [times_us * [1, 1, 0.8] for times_us in rounds]
    assert confirm(itertools.cycle(won), Budget(600), ends_early=True).compared.is_faster


def test_no_more_rounds_than_allowed() -> None:
    rounds = rounds_of("gaussian, 10%", [1.0, 1.0, 0.97], 0)
    assert confirm(rounds, Budget(60), most=30).compared.rounds == 30


def test_earlier_rounds_count() -> None:
    rounds = list(itertools.islice(rounds_of("gaussian, 3%", [1.0, 1.0], 5), 400))
    earlier = np.array(rounds[:30])
    taken = take_rounds(iter(rounds[30:]), Budget(60), pair=(0, 1), earlier=earlier, most=50)
    np.testing.assert_array_equal(taken, rounds[: len(taken)])
    assert 30 < len(taken) <= 50
    again = take_rounds(
        iter(rounds), Budget(60), pair=(0, 1), earlier=np.array(rounds[:50]), most=50
    )
    assert len(again) == 50  # No round is added to the 50 that are allowed.


def test_rounds_end_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(budget, "now_s", lambda: next(clock))
    same: Floats = np.ones(3)
    assert len(take_rounds(itertools.repeat(same), Budget(4), pair=(0, 1))) == 4
    assert len(take_rounds(itertools.repeat(same), Budget(0), pair=(0, 1), at_least=7)) == 7


def test_a_confirmation_tells_medians_and_noise() -> None:
    found = confirm(itertools.repeat(np.array([100.0, 102.0, 90.0])), Budget(60))
    assert (found.sequential_us, found.scheduled_us) == (100, 90)
    assert found.noise_ratio == pytest.approx(1.02)
    assert found.compared.ratio == pytest.approx(0.9)
