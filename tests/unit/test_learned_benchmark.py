"""Tests the devices and the statistics of `benchmarks.learned_schedulers`."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.learned_devices import MeasuredOn, SimulatedDevice
from benchmarks.learned_schedulers import mean_interval
from tvm_interop.latency import LatencyTable

WORK = [(1000.0, 10.0, 5.0), (2000.0, 10.0, 5.0), (1000.0, 10.0, 5.0)]


def test_a_simulated_device_tells_only_of_what_was_measured_on_it() -> None:
    device = SimulatedDevice(LatencyTable([3.0, 4.0, 3.0]), WORK, "a GPU")
    stages = [[[0]], [[0], [1]], [[1], [2]], [[0, 1]]]
    assert np.isnan(device.known(stages)).all()
    assert device.stages(stages[1:2]).tolist() == [4.0]
    # Operators 0 and 2 have equal work, so they count as one kernel. The stage of operators 1 and 2
    # is known, because the stage of operators 0 and 1 was measured.
    assert np.isnan(device.known(stages)).tolist() == [True, False, False, True]
    assert MeasuredOn(device, LatencyTable([3.0, 4.0, 3.0])).stage([[0, 1]]) == 7.0
    assert len(device.taken) == 2


@pytest.mark.parametrize(
    ("values", "mean", "half"), [([1.0, 2.0, 3.0], 2.0, 2.4841), ([5.0], 5.0, 0.0)]
)
def test_intervals_by_students_distribution(values: list[float], mean: float, half: float) -> None:
    found = mean_interval(values)
    assert found["mean"] == mean
    assert found["low"] == pytest.approx(mean - half, abs=1e-4)
    assert found["high"] == pytest.approx(mean + half, abs=1e-4)
