"""Tests the decisions of policies, and compares native combined blocks with the policy itself."""

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.serving_models import random_device, random_models
from tvm_interop.errors import InputError
from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.serving import (
    Programs,
    ServedModel,
    ServingDevice,
    combination_of,
    each_alone,
    equal_depth,
    make_policy,
    poisson,
    policies,
    simulate_combined,
    simulate_serving,
)
from tvm_interop.serving.arrivals import Arrivals, closed_loop

DEVICE = ServingDevice(2.0)


def chain(name: str, *us: float, batches: dict[int, float] | None = None) -> ServedModel:
    """A chain of operators. `batches` has the factor of the latency for each batch size."""
    graph = OpGraph.from_edges(len(us), [(i - 1, i) for i in range(1, len(us))])
    more = {b: LatencyTable([t * u for u in us]) for b, t in (batches or {}).items()}
    return ServedModel.priced(name, graph, LatencyTable(us), more)


def at(*rows: tuple[float, int]) -> Arrivals:
    return Arrivals(np.array([t for t, _ in rows], dtype=float), np.array([m for _, m in rows]))


def test_they_are_all_there():
    built_in = {"auto", "batching", "pos", "search", "sequential", "streams"}
    assert built_in <= set(policies())


def test_pos_waits_for_all_models_or_skips_those_without_a_request():
    models = [chain("a", 10), chain("b", 30)]
    arrivals = at((0, 0), (5, 0), (50, 1))
    for absent, ends in (("skip", [10, 20, 80]), ("wait", [80, np.nan, 80])):
        run = simulate_serving(models, arrivals, make_policy("pos", absent=absent), DEVICE, 1e-3)
        np.testing.assert_allclose(run.finished_us, ends)


def test_pos_pays_for_its_barriers_and_can_choose_its_schedule():
    models = [chain("a", 10, 10), chain("b", 30)]
    device = ServingDevice(2.0, barrier_us=5.0)
    for options, end in (
        ({}, 30 + 10 + 2 * 5),
        ({"barriers": False}, 30),
        ({"schedule": "best"}, 30),
    ):
        run = simulate_serving(
            models, at((0, 0), (0, 1)), make_policy("pos", **options), device, 1e-3
        )
        assert run.finished_us.tolist() == [end, end], options


def test_batches_are_as_large_as_fits_and_wait_for_a_while():
    models = [chain("a", 10, batches={2: 1.5, 4: 2})]
    rows = at(*[(t, 0) for t in (0, 1, 2, 3, 4, 60)])
    run = simulate_serving(models, rows, make_policy("batching", batch=4), DEVICE, 1e-3)
    assert run.finished_us.tolist() == [10, 30, 30, 30, 30, 70]
    run = simulate_serving(
        models, rows, make_policy("batching", batch=4, delay_us=20.0), DEVICE, 1e-3
    )
    # The first batch is full at 3 us. The fifth request waits until 24 us, the last until 80 us.
    assert run.finished_us.tolist() == [23, 23, 23, 23, 34, 90]
    run = simulate_serving(models, rows, make_policy("batching", batch=2, streams=2), DEVICE, 1e-3)
    assert run.finished_us.tolist() == [10, 11, 25, 25, 21, 70]


def test_the_native_combined_blocks_are_the_policys_decisions():
    for seed in range(60):
        rng = random.Random(seed)
        models = random_models(seed)
        device = random_device(seed)
        programs = Programs(models, device)
        parts = [part for cell in each_alone(models) for part in cell]
        rng.shuffle(parts)
        cells = [parts[i : i + 3] for i in range(0, len(parts), 3)]
        combination = combination_of(models, cells)
        total_us = sum(programs.model_us(m) for m in range(len(models)))
        rate = rng.choice([0.3, 1.0, 2.0]) * 1e6 / total_us
        seconds = 40 / rate
        buffer = rng.choice([1, 2, 64])
        intervals = [rng.choice([0.0, 0.7e6 / rate]) for _ in models]
        if rng.random() < 0.3:
            arrivals = closed_loop([2] * len(models), rng.choice([0.0, 5.0]))
        else:
            arrivals = poisson([rate] * len(models), seconds, seed)
        policy = make_policy(
            "search", combination=combination, interval_us=intervals, buffer=buffer
        )
        slow = simulate_serving(models, arrivals, policy, device, seconds, programs=programs)
        fast = simulate_combined(
            programs, arrivals, combination, seconds, interval_us=intervals, buffer=buffer
        )
        assert slow.models.tolist() == fast.models.tolist()
        for column in ("arrived_us", "dequeued_us", "finished_us"):
            np.testing.assert_allclose(
                getattr(slow, column), getattr(fast, column), rtol=1e-9, err_msg=f"{seed} {column}"
            )
        assert slow.instances == fast.instances


def test_combined_blocks_refuse_what_they_do_not_heed():
    models = [chain("a", 10, 40)]
    arrivals = replace(at((0, 0)), deadlines_us=np.array([50.0]))
    with pytest.raises(InputError, match="the arrivals have `deadlines_us`"):
        simulate_combined(Programs(models, ServingDevice(2.0)), arrivals, each_alone(models), 1e-3)


@pytest.mark.parametrize("method", ["climb", "cem"])
def test_searches_find_what_all_combinations_hold(method):
    """The four blocks of two models can be combined in 15 ways, and the test tries all of them."""
    models = [chain("a", 10, 40), chain("b", 35, 12)]
    device = ServingDevice(2.0)
    programs = Programs(models, device)
    found = make_policy("search", method=method, budget=60)
    simulate_serving(models, at((0, 0)), found, device, 1e-3, programs=programs)

    def throughput(combination):
        arrivals = poisson([4e4, 4e4], 5e-3, 3)
        return simulate_combined(programs, arrivals, combination, 5e-3).throughput()

    parts = [part for cell in each_alone(models) for part in cell]
    best = max(throughput(combination_of(models, cells)) for cells in _partitions(parts))
    assert throughput(found.combination) >= 0.98 * best
    assert throughput(found.combination) > 1.2 * throughput(each_alone(models))


def _partitions(parts):
    if not parts:
        yield []
        return
    first, rest = parts[0], parts[1:]
    for cells in _partitions(rest):
        yield [[first], *cells]
        for i in range(len(cells)):
            yield [*cells[:i], [first, *cells[i]], *cells[i + 1 :]]


def test_combinations():
    models = [chain("a", 1, 1, 1, 1), chain("b", 1, 1)]
    assert equal_depth(models, 3) == (((0, 0), (0, 1), (1, 0)), ((0, 2), (0, 3), (1, 1)))
    assert models[0].divided(2).blocks == ((0, 1), (2, 3))
    with pytest.raises(InputError, match="each block of each model once"):
        combination_of(models, [[(0, 0)]])


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("pos", {"absent": "cry"}, "`wait` or `skip`"),
        ("batching", {"batch": 0}, "`batch` is 0"),
        ("batching", {"delay_us": -1.0}, "`delay_us` is -1"),
        ("search", {"method": "rl"}, "one of climb, cem"),
        ("search", {"budget": 0}, "`budget` is 0"),
        ("auto", {"rates": [-1.0]}, "a rate is -1"),
        ("auto", {"candidates": []}, "`candidates` is empty"),
    ],
)
def test_options_of_no_use_are_refused(name, options, match):
    with pytest.raises(InputError, match=match):
        make_policy(name, **options)


def test_auto_serves_as_well_as_the_best_and_says_why():
    models = random_models(11, 2)
    device = ServingDevice(4.0, 1.0, 0.05)
    programs = Programs(models, device)
    total_us = sum(programs.model_us(m) for m in range(2))
    for load in (0.4, 2.5):
        rate = load * 1e6 / total_us
        seconds = 1500 / rate
        arrivals = poisson([rate, rate], seconds, 5)
        others = [
            simulate_serving(
                models, arrivals, make_policy("streams", streams=k), device, seconds,
                programs=programs,
            )
            for k in (1, 2, 4, 8)
        ]  # fmt: skip
        auto = make_policy("auto")
        run = simulate_serving(models, arrivals, auto, device, seconds, programs=programs)
        since_us = 0.3 * run.end_us
        assert run.throughput(since_us) >= 0.99 * max(o.throughput(since_us) for o in others)
        assert "requests a second" in run.log[-1][1]


def test_auto_decides_again_when_the_load_changes():
    models = [chain("a", 10, 10, batches={4: 1.5}), chain("b", 10, batches={4: 1.5})]
    device = ServingDevice(2.0)
    quiet = poisson([3e3, 3e3], 0.3, 1)
    busy = poisson([2e5, 3e3], 0.02, 2)
    both = Arrivals(
        np.concatenate([quiet.at_us, busy.at_us + 0.3e6]),
        np.concatenate([quiet.models, busy.models]),
    )
    auto = make_policy("auto")
    run = simulate_serving(models, both, auto, device, 0.32)
    assert [text for at_us, text in run.log if at_us > 0.3e6 and "has changed" in text]


def test_auto_finds_the_interference_that_it_was_not_told_of():
    models = random_models(11, 2)
    device = ServingDevice(4.0, 1.0, 0.2)
    total_us = sum(Programs(models, device).model_us(m) for m in range(2))
    rate = 2.5e6 / total_us
    run = simulate_serving(
        models, poisson([rate, rate], 1500 / rate, 5), make_policy("auto"), device, 1500 / rate,
        believed=ServingDevice(4.0, 1.0, 0.0),
    )  # fmt: skip
    said = [text for _, text in run.log if text.startswith("interference is")]
    assert said
    assert 0.1 <= float(said[-1].split()[2].rstrip(",")) <= 0.3
