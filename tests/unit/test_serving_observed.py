"""Tests how `auto` uses its observations: changes of load, and expected times of instances."""

import numpy as np
import pytest

from tests.serving_models import random_models
from tvm_interop.serving import (
    Arrivals,
    Policy,
    Programs,
    ServingDevice,
    Wait,
    make_policy,
    on_off,
    poisson,
    simulate_serving,
)
from tvm_interop.serving.policies.observed import Observed

MODELS = random_models(11, 2)
DEVICE = ServingDevice(4.0, 1.0, 0.05)
PROGRAMS = Programs(MODELS, DEVICE)
CAPACITY = 1e6 / sum(PROGRAMS.model_us(m) for m in range(2))
"""Requests a second of each model that can be served one at a time."""


class Watched(Policy):
    """A policy that serves like `streams`, and observes the load.

    After `anew_at` arrivals, the policy waits until no instance is running, and then observes anew.
    """

    def __init__(self, anew_at=None, compared=10**6):
        self._inner = make_policy("streams", streams=3, order="longest")
        self._anew_at = anew_at
        self.observed = Observed(2, 4096, compared)
        self.changes = 0

    def prepare(self, setting):
        self._inner.prepare(setting)

    def decide(self, view):
        count = self.observed.count
        self.observed.look(view)
        if self._anew_at is not None and self.observed.count >= self._anew_at:
            if view.running:
                return Wait(full=True)
            self._anew_at = None
            self.observed.decided(view)
        if self.observed.count // 64 > count // 64:
            self.changes += self.observed.has_changed(0.15)
        return self._inner.decide(view)


def watched(arrivals, seconds, device=DEVICE, **options):
    policy = Watched(**options)
    simulate_serving(MODELS, arrivals, policy, device, seconds)
    return policy


def test_bursts_that_come_again_and_again_are_no_change_and_another_rate_is():
    rate = 0.3 * CAPACITY
    seconds = 2000 / rate
    for seed in range(3):
        bursts = on_off([rate, rate], seconds, seed, 50 / rate, 50 / rate)
        # While few windows of time have passed, bursts may look like a change of load.
        assert not watched(bursts, seconds).observed.has_changed(0.15)
        before = poisson([rate, rate], seconds, seed)
        after = poisson([2 * rate, rate], 300 / rate, seed)
        both = Arrivals(
            np.concatenate([before.at_us, after.at_us + seconds * 1e6]),
            np.concatenate([before.models, after.models]),
        )
        assert watched(before, seconds).changes == 0
        assert watched(both, seconds + 300 / rate).changes > 0


@pytest.mark.parametrize("load", [0.5, 4.0])
def test_instances_take_what_they_should_when_all_since_a_decision_is_simulated_again(load):
    """`auto` expects the right times of instances.

    It does so in overload too, where requests that arrived before a decision are served after it.
    """
    rate = load * CAPACITY
    seconds = 2000 / rate
    arrivals = on_off([rate, rate], seconds, 3, 50 / rate, 50 / rate)
    for compared in (600, 10**6):
        seen = watched(arrivals, seconds, anew_at=900, compared=compared).observed
        again, length = seen.since_decision()
        by_its_right_name = watched(again, length).observed
        assert seen.excess(by_its_right_name) == pytest.approx((0.0, 0.0), abs=1e-4)
        wrong = watched(again, length, ServingDevice(4.0, 1.0, 0.2)).observed
        assert abs(seen.excess(wrong)[0]) > 0.02


def test_auto_keeps_a_right_interference_in_overload():
    rate = 3 * CAPACITY
    seconds = 3000 / rate
    for seed in range(3):
        arrivals = on_off([rate, rate], seconds, seed, 50 / rate, 50 / rate)
        run = simulate_serving(MODELS, arrivals, make_policy("auto"), DEVICE, seconds)
        assert len(run.log) > 3
        assert not [text for _, text in run.log if text.startswith("interference is")]


@pytest.mark.parametrize("given_us", [None, 1e6])
def test_a_load_that_comes_all_at_once_is_decided_about(given_us):
    """All requests arrive at time 0. So at the first decisions `auto` has observed nothing yet."""
    count = 512
    deadlines_us = None if given_us is None else np.full(count, given_us)
    arrivals = Arrivals(np.zeros(count), np.arange(count) % 2, deadlines_us=deadlines_us)
    run = simulate_serving(MODELS, arrivals, make_policy("auto"), DEVICE, 1.0)
    assert run.served().sum() > 0
