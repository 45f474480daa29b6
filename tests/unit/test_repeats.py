"""Tests how often stages are run, and how their latencies are computed from the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tvm_interop.latency.estimate import Estimate, quantile, undisturbed
from tvm_interop.measure.repeats import QUICK, REPEATS, THOROUGH, Care, run_repeatedly


def measured(
    stage_s: Sequence[float],
    held_up: frozenset[tuple[int, int]] = frozenset(),
    apart: Sequence[float] = (0.1,),
    care: Care = THOROUGH,
) -> list[int]:
    """Measure stages on a simulated device, and return the number of runs of each stage.

    Parameters
    ----------
    held_up: for some stages, the runs that take ten times as long, as if another program disturbed
        them.
    apart: for each stage, the relative difference between its runs. The last entry also holds for
        all further stages.
    """
    count = [0] * len(stage_s)

    def measure(indices: Sequence[int], repeats: int) -> list[list[float]]:
        seconds = []
        for i in indices:
            runs = range(count[i], count[i] + repeats)
            share = apart[min(i, len(apart) - 1)]
            varied = [stage_s[i] * (1 + share * (run % 3)) for run in runs]
            held = [10 if (i, run) in held_up else 1 for run in runs]
            seconds.append([each * times for each, times in zip(varied, held, strict=True)])
            count[i] += repeats
        return seconds

    runs = run_repeatedly(measure, len(stage_s), care)
    assert [len(times) for times in runs] == count
    return count


def test_a_slow_stage_takes_no_runs_from_the_others() -> None:
    assert measured([0.2, *[50e-6] * 31]) == [REPEATS[1], *[REPEATS[-1]] * 31]


def test_a_stage_that_takes_very_long_runs_once() -> None:
    assert measured([3.0, 10e-3, 0.4]) == [1, 5, 5]
    assert measured([3.0]) == [1]


def test_the_longer_a_stage_the_fewer_runs() -> None:
    assert measured([10e-3, 2e-3, 1e-3, 1e-6, 1e-9]) == [5, 10, 20, 30, 30]


def test_stages_whose_runs_agree_need_few() -> None:
    stages_s, apart = [50e-6, 50e-6, 50e-6, 0.9e-3], [0.0, 0.01, 0.02, 0.01]
    # The latency of the third stage is known to 1.2% after ten runs, and to 0.8% after twenty.
    assert measured(stages_s, apart=apart) == [10, 10, 20, 10]


def test_long_stages_whose_runs_agree_need_half_as_many() -> None:
    stages_s, apart = [2e-3, 2e-3, 20e-3, 20e-3], [0.004, 0.03, 0.004, 0.1]
    assert measured(stages_s, apart=apart, care=QUICK) == [3, 5, 3, 5]
    assert measured(stages_s, apart=apart) == [5, 10, 5, 5]


def test_first_measurements_take_fewer_runs() -> None:
    stages_s, apart = [50e-6, 200e-6, 0.8e-3, 0.8e-3], [0.01, 0.01, 0.01, 0.1]
    # A stage of 50 us runs ten times even in a quick measurement.
    assert measured(stages_s, apart=apart, care=QUICK) == [10, 5, 5, 10]
    assert measured(stages_s, apart=apart) == [10, 10, 10, 20]


def test_a_run_that_was_held_up_makes_no_stage_slow() -> None:
    assert measured([200e-6], frozenset({(0, 0), (0, 3)})) == [30]
    assert measured([200e-6], frozenset((0, run) for run in range(4))) == [30]


def test_a_stage_that_was_held_up_nearly_always_runs_more_often() -> None:
    busy = frozenset((0, run) for run in range(9) if run != 3)
    assert measured([0.9e-3, 0.9e-3], busy, [0.0]) == [20, 10]
    assert measured([10e-3, 10e-3], busy) == [10, 5]


def test_an_estimate_of_runs() -> None:
    draw = np.random.default_rng(0)
    medians = []
    for _ in range(400):
        found = Estimate.of_runs(1e-3 * (1 + 0.05 * draw.standard_normal(30)), start_us=10)
        medians.append(found.latency_us)
    assert found.samples == 30
    assert np.median(medians) == pytest.approx(990, rel=0.01)
    assert np.std(medians) == pytest.approx(found.error_us, rel=0.5)
    single = Estimate.of_runs([1e-3])
    assert single.spread_us is None
    assert math.isinf(single.error_us)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 30])
def test_quantiles_are_those_of_numpy(count: int) -> None:
    ascending = np.sort(np.random.default_rng(count).random(count))
    for share in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0):
        assert quantile(ascending, share) == np.quantile(ascending, share)


def test_runs_that_were_held_up_do_not_count() -> None:
    quiet = [1.00e-3, 1.02e-3, 1.04e-3]
    found = Estimate.of_runs([3e-3, *quiet, 2e-3, 4e-3, 1.3e-3, 9e-3], start_us=10)
    assert found == Estimate.of_runs(quiet, start_us=10)
    assert (found.latency_us, found.samples) == (pytest.approx(1010), 3)
    assert Estimate.of_runs([2e-3, 1e-3]).spread_us is None
    assert undisturbed([0.0, 0.0, 1e-6]).tolist() == [0.0, 0.0]


def test_estimates_are_joined_by_their_runs() -> None:
    first, second = Estimate(100.0, 4.0, 10), Estimate(130.0, 10.0, 20)
    assert second.joined(first) == Estimate(pytest.approx(120), pytest.approx(8), 30)
    assert second.joined(None) == second
    assert second.joined(Estimate(100.0, None, 0)) == second
