"""Tests deadlines of requests: in the simulator, in batches, and in the choices of `auto`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.serving import (
    ServedModel,
    ServingDevice,
    make_policy,
    poisson,
    simulate_serving,
)
from tvm_interop.serving.arrivals import Arrivals
from tvm_interop.serving.policies.auto import Candidate
from tvm_interop.serving.policy import Policy
from tvm_interop.serving.server.choice import Choice
from tvm_interop.serving.server.dispatcher import Decision, Dispatcher
from tvm_interop.serving.server.statistics import Statistics
from tvm_interop.serving.server.ticket import Ticket

DEVICE = ServingDevice(1.0)
BOUND = 5.0


def whole(name: str, us: float, batches: dict[int, float] | None = None) -> ServedModel:
    """A model of one operator. `batches` has the factor of the latency for each batch size."""
    more = {size: LatencyTable([times * us]) for size, times in (batches or {}).items()}
    return ServedModel.priced(name, OpGraph(["run"], []), LatencyTable([us]), more)


def due(*rows: tuple[float, int, float]) -> Arrivals:
    """Arrivals from rows of time, model and deadline."""
    at_us, models, until_us = zip(*rows, strict=True)
    return Arrivals(np.array(at_us), np.array(models), deadlines_us=np.array(until_us))


def test_late_requests_leave_their_queue() -> None:
    arrivals = due((0.0, 0, 100.0), (1.0, 0, 15.0), (2.0, 0, 30.0))
    policy = {"order": "deadline"}
    run = simulate_serving(
        [whole("a", 10)], arrivals, make_policy("sequential", **policy), DEVICE, 1e-4,
        refuse_late=True,
    )  # fmt: skip
    np.testing.assert_array_equal(run.finished_us, [10, np.nan, 20])
    assert run.goodput() == 2 / 1e-4
    run = simulate_serving(
        [whole("a", 10)], arrivals, make_policy("sequential", **policy), DEVICE, 1e-4
    )
    np.testing.assert_array_equal(run.finished_us, [10, 20, 30])
    assert (run.goodput(), run.throughput()) == (2 / 1e-4, 3 / 1e-4)


@pytest.mark.parametrize(
    ("own_us", "other_us", "finished_us"),
    [
        (np.inf, np.inf, [10, 40, 40, 40, 40, 44]),  # A batch of four takes 30 us.
        (45.0, np.inf, [10, 40, 40, 40, 40, 44]),
        (39.0, np.inf, [10, 28, 28, 46, 46, 50]),  # A batch of two takes 18 us.
        (27.0, np.inf, [10, 20, 38, 38, 48, 52]),
        # The request of the other model has time to wait for a batch of two, but not for a batch of
        # four.
        (42.0, 43.0, [10, 28, 28, 50, 50, 32]),
        (25.0, 43.0, [10, 20, 42, 42, 52, 24]),
    ],
)
def test_a_batch_is_no_larger_than_deadlines_allow(
    own_us: float, other_us: float, finished_us: list[float]
) -> None:
    models = [whole("a", 10, {2: 1.8, 4: 3.0}), whole("b", 4)]
    arrivals = due(
        (0.0, 0, np.inf), (1.0, 0, own_us), *((1.0, 0, np.inf) for _ in range(3)),
        (2.0, 1, other_us),
    )  # fmt: skip
    run = simulate_serving(models, arrivals, make_policy("batching", batch=4), DEVICE, 1e-3)
    np.testing.assert_allclose(run.finished_us, finished_us)


CANDIDATES = [
    Candidate("sequential", (("order", "deadline"),)),
    Candidate("batching", (("batch", 2),)),
    Candidate("batching", (("batch", 8),)),
    Candidate("batching", (("batch", 64),)),
]


@pytest.mark.parametrize(("load", "least"), [(1.0, 0.88), (1.5, 1.0)])
@pytest.mark.parametrize("policy", ["sequential", "auto"])
def test_what_is_answered_in_time_stays_when_more_is_asked_than_can_be_served(
    policy: str, load: float, least: float
) -> None:
    """If the load is above the capacity, requests that would be late are refused, so that the
    remaining requests are answered in time. Without refusals, nearly all would be late."""
    models = [whole("a", 4e3, {2: 1.9, 4: 3.6}), whole("b", 14e3, {2: 1.9, 4: 3.6})]
    capacity = 2e6 / (4e3 + 14e3)
    seconds = 3000 / capacity / load
    rate = load * capacity / 2
    arrivals = poisson([rate, rate], seconds, 3).with_deadlines([BOUND * 4e3, BOUND * 14e3])
    options = {"candidates": CANDIDATES} if policy == "auto" else {"order": "deadline"}
    run = simulate_serving(
        models, arrivals, make_policy(policy, **options), DEVICE, seconds, refuse_late=True
    )
    assert run.goodput() >= least * capacity
    if load > 1:
        greedy = simulate_serving(
            models, arrivals, make_policy("sequential", order="deadline"), DEVICE, seconds
        )
        assert greedy.goodput() < 0.2 * capacity


def test_auto_chooses_again_when_requests_come_with_deadlines() -> None:
    """Large batches give the highest throughput, but requests with deadlines cannot wait."""
    models = [whole("a", 4e3, {2: 1.9, 4: 3.6}), whole("b", 14e3, {2: 1.9, 4: 3.6})]
    rate, seconds = 70.0, 12.0
    free = poisson([rate, rate], seconds, 3)
    bound = free.with_deadlines([BOUND * 4e3, BOUND * 14e3])
    assert bound.deadlines_us is not None
    both = Arrivals(
        np.concatenate([free.at_us, bound.at_us + seconds * 1e6]),
        np.concatenate([free.models, bound.models]),
        deadlines_us=np.concatenate(
            [np.full(len(free.at_us), np.inf), bound.deadlines_us + seconds * 1e6]
        ),
    )
    policy = make_policy("auto", candidates=CANDIDATES)
    run = simulate_serving(models, both, policy, DEVICE, 2 * seconds, refuse_late=True)
    before = [text for at_us, text in run.log if at_us < seconds * 1e6]
    after = [text for at_us, text in run.log if at_us > seconds * 1e6]
    assert "batching(batch=4)" in before[-1].split(";")[0]
    assert any("the load has changed" in text for text in after)
    # Policies whose largest batch is above all batch sizes of the models are equal, so only one of
    # them is tried.
    assert all(text.count("batching") <= 2 for _, text in run.log)


@pytest.mark.parametrize("load", [0.8, 1.5])
@pytest.mark.parametrize(
    "models",
    [
        [whole("a", 5e3, {2: 1.9, 4: 3.7}), whole("b", 17e3, {2: 1.9, 4: 3.7})],
        [whole("a", 4e3, {2: 1.3, 4: 1.9}), whole("b", 6e3, {2: 1.4, 4: 2.2})],
    ],
)
def test_auto_is_not_worse_than_the_best_of_those_it_chooses_from(
    models: list[ServedModel], load: float
) -> None:
    """`auto` answers at least 97% as many of 1,000 requests in time as the best candidate does."""
    us = [float(model.costs[1].op_us[0]) for model in models]
    capacity = 2e6 / sum(us)
    seconds, rate = 1000 / capacity / load, load * capacity / 2
    arrivals = poisson([rate, rate], seconds, 5).with_deadlines([BOUND * each for each in us])
    device = ServingDevice(1.0, interference=0.08)
    candidates = Choice("auto", 2, max_batch=4)._candidates()

    def goodput(policy: Policy) -> float:
        run = simulate_serving(
            models, arrivals, policy, device, seconds, refuse_late=True, believed=DEVICE
        )
        return run.goodput()

    best = max(goodput(candidate.make()) for candidate in candidates)
    assert goodput(make_policy("auto", candidates=candidates)) >= 0.97 * best


def test_auto_soon_leaves_what_it_began_with_where_requests_have_deadlines() -> None:
    models = [whole("a", 4e3, {2: 1.9, 4: 3.6})]
    free = poisson([200.0], 0.4, 3)
    assert 32 < len(free.at_us) < 128
    for arrivals, decisions in ((free, 1), (free.with_deadlines([20e3]), 2)):
        policy = make_policy("auto", candidates=CANDIDATES)
        run = simulate_serving(models, arrivals, policy, DEVICE, 0.4, refuse_late=True)
        assert len(run.log) == decisions


def ran(statistics: Statistics, size: int, us: float) -> None:
    ticket = Ticket(
        0, 0, 0.0, inputs={}, rows=size, shape=0, checked_by=None, done=lambda ticket: None,
        served="net", ran_batch=size, infer_us=us, started_us=0.0, finished_us=us,
    )  # fmt: skip
    statistics.ran([ticket])


def test_what_slows_one_batch_size_down_is_expected_of_the_others() -> None:
    statistics = Statistics()
    statistics.measured(1, [0.010, 0.012, 0.011])
    statistics.measured(4, [0.040, 0.030, 0.050])
    assert (statistics.expected_us(1), statistics.expected_us(4)) == (11e3, 40e3)
    for _ in range(16):
        ran(statistics, 4, 80e3)
    assert (statistics.expected_us(1), statistics.median_us(1)) == (22e3, 11e3)
    for _ in range(16):
        ran(statistics, 1, 11e3)
    assert statistics.expected_us(4) == 40e3
    assert statistics.expected_us(2) == 0.0


class Told:
    """Stands for a model that takes 10 ms. It has only the members that a dispatcher reads."""

    name, num_instances, num_blocks, sizes, is_batched = "net", 1, 1, (1,), False

    def __init__(self) -> None:
        self.statistics = Statistics()
        self.statistics.measured(1, [0.010])


def asked(dispatcher: Dispatcher, number: int, now_us: float, given_us: float) -> Decision:
    """Submit a request while no other request runs or waits, and return the dispatcher's decision.

    If the request starts, it takes 10 ms.
    """
    ticket = Ticket(
        number, 0, now_us, 0, now_us + given_us, 1, inputs={}, rows=1, shape=0,
        checked_by=dispatcher.models[0], done=lambda ticket: None, served="net",
    )  # fmt: skip
    decision = dispatcher.decide(now_us, [ticket], [], True)
    for job in decision.jobs:
        ran(dispatcher.models[0].statistics, 1, 10e3)
        dispatcher.decide(now_us + 10e3, [], [job], True)
    return decision


def test_slow_runs_are_forgotten_where_they_refuse_all_that_comes() -> None:
    """The machine was busy for a while. Requests are refused a few times, but not forever."""
    model: Any = Told()
    dispatcher = Dispatcher()
    dispatcher.reconfigure([model], make_policy("sequential"))
    for _ in range(16):
        ran(model.statistics, 1, 80e3)
    outcomes = [bool(asked(dispatcher, i, 1e6 * i, 50e3).jobs) for i in range(40)]
    assert not any(outcomes[:12])
    assert all(outcomes[17:])


def test_requests_that_waited_too_long_tell_nothing_of_what_runs_take() -> None:
    model: Any = Told()
    dispatcher = Dispatcher()
    dispatcher.reconfigure([model], make_policy("sequential"))
    ran(model.statistics, 1, 30e3)
    first = Ticket(
        0, 0, 0.0, inputs={}, rows=1, shape=0, checked_by=model, done=lambda ticket: None,
        served="net",
    )  # fmt: skip
    (job,) = dispatcher.decide(0.0, [first], [], True).jobs
    late = Ticket(
        1, 0, 0.0, deadline_us=50e3, inputs={}, rows=1, shape=0, checked_by=model,
        done=lambda ticket: None, served="net",
    )  # fmt: skip
    assert not dispatcher.decide(1e3, [late], [], True).refused
    assert [ticket for ticket, _ in dispatcher.decide(25e3, [], [job], True).refused] == [late]
    assert model.statistics.expected_us(1) == 30e3
