"""Tests how much of a server's time `auto` uses for its decisions."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from tvm_interop.serving.policies.pace import Closed, Pace, Paced
from tvm_interop.serving.policy import make_policy
from tvm_interop.serving.tasks import View, Wait


class Rests:
    """Takes the place of the event that a `Pace` waits for while it rests, and notes each rest."""

    def __init__(self) -> None:
        self.rested_s: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.rested_s.append(seconds)
        return False


def test_a_thread_rests_nine_times_as_long_as_it_works() -> None:
    worked_s = 0.0
    pace, rests = Pace(0.1, lambda: worked_s), Rests()
    pace._closed = rests  # type: ignore[assignment]
    for _ in range(100):
        worked_s += 0.0004
        pace.step()
    assert sum(rests.rested_s) == pytest.approx(9 * 99 * 0.0004)
    # The rests are so short that no request notices them.
    assert max(rests.rested_s) == pytest.approx(9 * 0.0012)


def test_a_pace_may_be_made_by_a_thread_that_has_worked_longer() -> None:
    clock_s = [100.0]
    pace, rests = Pace(0.1, lambda: clock_s[0]), Rests()
    pace._closed = rests  # type: ignore[assignment]
    for clock_s[0] in (0.0, 0.0012):
        pace.step()
    assert sum(rests.rested_s) == pytest.approx(9 * 0.0012)


def test_a_policy_that_is_simulated_at_a_pace_ends_when_it_is_closed() -> None:
    pace = Pace(1e-6)  # After a millisecond of work, the policy rests for a quarter of an hour.
    policy = Paced(make_policy("sequential"), pace)
    ended = threading.Event()

    def simulate() -> None:
        view = View(0.0, [], [])
        with contextlib.suppress(Closed):
            while isinstance(policy.decide(view), Wait):
                pass
            return
        ended.set()

    thread = threading.Thread(target=simulate, daemon=True)
    thread.start()
    time.sleep(0.05)
    pace.close()
    assert ended.wait(60)
    thread.join()
