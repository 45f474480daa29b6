"""Compares the serving simulator with a simple queue, an older simulator and laws of queues."""

import math
import random

import numpy as np
import pytest

from tests.graphs import latencies, layered
from tests.serving_models import random_device, random_models
from tvm_interop.errors import InputError, ScheduleError
from tvm_interop.latency import LatencyTable
from tvm_interop.latency.contended import ContendedLatency
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import schedule
from tvm_interop.scheduling.simulation import Contention, simulate
from tvm_interop.serving import (
    Policy,
    Programs,
    ServedModel,
    ServingDevice,
    Start,
    Wait,
    closed_loop,
    dependent,
    make_policy,
    on_off,
    periodic,
    poisson,
    policies,
    register_policy,
    simulate_serving,
    trace_file,
)
from tvm_interop.serving.arrivals import Arrivals

ONE = OpGraph.from_edges(["a"], [])
TWO_CORES = ServingDevice(2.0)


def one_op(us: float, name: str = "m") -> ServedModel:
    return ServedModel.priced(name, ONE, LatencyTable([us]))


def at(*times: float, models: tuple[int, ...] | None = None) -> Arrivals:
    return Arrivals(np.array(times, dtype=np.float64), np.array(models or [0] * len(times)))


@pytest.mark.parametrize("scheduler", ["sequential", "lios", "nimble", "opara", "greedy"])
def test_one_instance_is_what_the_simulator_of_schedules_says(scheduler):
    for seed in range(20):
        graph = layered(40, seed)
        rng = random.Random(seed)
        cores = [rng.choice([1.0, 2.0, 3.0]) for _ in graph.names]
        shares = [rng.choice([0, 0.25, 0.8]) for _ in graph.names]
        latency = ContendedLatency(latencies(40, seed), 4.0, 1.0, cores, shares)
        made = schedule(graph, scheduler, latency)
        shared = Contention(4.0, 1.0, cores, shares, wait_us=2.0)
        model = ServedModel.priced("m", graph, latency)
        programs = Programs([model], ServingDevice(4.0, 1.0, wait_us=2.0))
        took_us = simulate(graph, made, latency, shared).makespan_us
        assert programs.model_us(0, schedule=scheduler) == pytest.approx(took_us, rel=1e-12)


def test_barriers_add_up_the_stages():
    graph = layered(40, 3)
    latency = LatencyTable(latencies(40, 3))
    made = schedule(graph, "greedy", latency)
    programs = Programs([ServedModel.priced("m", graph, latency)], ServingDevice(barrier_us=10.0))
    longest = [max(sum(latency.op(op) for op in g) for g in s.groups) for s in made.stages]
    took_us = programs.model_us(0, schedule="greedy", barriers=True)
    assert took_us == pytest.approx(sum(longest) + 10 * len(longest))
    assert programs.model_us(0, schedule="greedy") <= sum(longest)


def test_interference_slows_whoever_runs_beside_others():
    device = ServingDevice(interference=0.1)
    run = simulate_serving(
        [one_op(10)], at(0, 0, 0), make_policy("streams", streams=3), device, 1e-3
    )
    assert run.finished_us.tolist() == pytest.approx([12, 12, 12])


def test_the_host_launches_one_operator_after_the_other():
    device = ServingDevice(launch_us=3.0)
    run = simulate_serving(
        [one_op(10)], at(0, 0, 0), make_policy("streams", streams=3), device, 1e-3
    )
    assert run.finished_us.tolist() == pytest.approx([13, 16, 19])


def queue_by_hand(arrivals, service_us, end_us):
    """Simulate a single server, first come first served.

    Returns when each request leaves the queue, and when it ends.
    """
    free_us = 0.0
    left, done = [], []
    for at_us, model in zip(arrivals.at_us, arrivals.models, strict=True):
        begin_us = max(free_us, at_us)
        free_us = begin_us + service_us[model]
        left.append(begin_us if begin_us < end_us else math.nan)
        done.append(free_us if free_us < end_us else math.nan)
    return left, done


@pytest.mark.parametrize(("policy", "options"), [("sequential", {}), ("streams", {"streams": 1})])
def test_one_at_a_time_is_the_queue_by_hand(policy, options):
    for seed in range(40):
        models = random_models(seed)
        device = random_device(seed)
        programs = Programs(models, device)
        service_us = [programs.model_us(i) for i in range(len(models))]
        rate = random.Random(seed).choice([0.3, 0.9, 2.0]) * 1e6 / sum(service_us)
        seconds = 200 / rate
        arrivals = poisson([rate] * len(models), seconds, seed)
        run = simulate_serving(models, arrivals, make_policy(policy, **options), device, seconds)
        left, done = queue_by_hand(arrivals, service_us, seconds * 1e6)
        np.testing.assert_allclose(run.dequeued_us, left, rtol=1e-9)
        np.testing.assert_allclose(run.finished_us, done, rtol=1e-9)


class Watched(Policy):
    """A policy that records whether it ever waited although it could have started a request."""

    def __init__(self, inner: Policy, most: int) -> None:
        self.inner = inner
        self.most = most
        self.area_us = 0.0
        self.last_us = 0.0
        self.in_system = 0

    def prepare(self, setting):
        self.inner.prepare(setting)

    def decide(self, view):
        self.area_us += self.in_system * (view.now_us - self.last_us)
        self.last_us = view.now_us
        action = self.inner.decide(view)
        if isinstance(action, Wait):
            waiting = sum(map(len, view.queues))
            # Work conservation: no request waits while fewer instances run than may run at once.
            assert not waiting or len(view.running) == self.most
            assert len(view.running) <= self.most
            self.in_system = waiting + len(view.running)
            # `full` stays False, so that the policy is asked at every arrival.
            return Wait(action.until_us)
        assert isinstance(action, Start)
        return action


def test_laws_of_queues_on_a_thousand_workloads():
    for seed in range(1000):
        rng = random.Random(seed)
        models = random_models(seed)
        device = random_device(seed)
        programs = Programs(models, device)
        rate = (
            rng.choice([0.5, 1.0, 3.0])
            * 1e6
            / sum(programs.model_us(i) for i in range(len(models)))
        )
        seconds = 12 / rate
        draw = rng.choice([poisson, on_off])
        if draw is poisson:
            arrivals = poisson([rate] * len(models), seconds, seed)
        else:
            arrivals = on_off([rate] * len(models), seconds, seed, 3 / rate, 3 / rate)
        most = rng.randint(1, 4)
        order = rng.choice(["fifo", "longest", "deadline"])
        watched = Watched(make_policy("streams", streams=most, order=order), most)
        run = simulate_serving(models, arrivals, watched, device, seconds, programs=programs)
        # No request is lost: each arrives once, at its own time, and then starts or is left in a
        # queue.
        assert run.arrived_us.tolist() == arrivals.at_us.tolist()
        left, done = ~np.isnan(run.dequeued_us), ~np.isnan(run.finished_us)
        assert not (done & ~left).any()
        assert (run.dequeued_us[left] >= run.arrived_us[left]).all()
        assert (run.finished_us[done] > run.dequeued_us[done]).all()
        assert run.backlog([run.end_us]).sum() == (~left).sum()
        assert int((left & ~done).sum()) <= most
        # Little's law: the mean number of requests in the system is the rate times their mean time
        # in it.
        until_us = np.where(done, run.finished_us, run.end_us)
        area_us = watched.area_us + watched.in_system * (run.end_us - watched.last_us)
        assert (until_us - run.arrived_us).sum() == pytest.approx(area_us, rel=1e-9)
        assert 0 <= run.utilisation <= 1


def test_the_same_in_the_same_out():
    models, device = random_models(5, 3), ServingDevice(4.0, 1.0, 0.03)
    runs = [
        simulate_serving(
            models, on_off([2e3, 3e3, 4e3], 0.1, 7), make_policy("streams", streams=3), device, 0.1
        )
        for _ in range(2)
    ]
    assert runs[0].finished_us.tobytes() == runs[1].finished_us.tobytes()


def test_orders_of_the_queues():
    models = [one_op(10, "a"), one_op(10, "b")]
    arrivals = at(0, 1, 2, 3, models=(0, 0, 0, 1)).with_deadlines([100, 20])
    for order, expected in (
        ("fifo", [0, 1, 2, 3]), ("longest", [0, 1, 2, 3]), ("deadline", [0, 3, 1, 2])
    ):  # fmt: skip
        run = simulate_serving(
            models, arrivals, make_policy("sequential", order=order), TWO_CORES, 1e-3
        )
        assert np.argsort(run.finished_us).tolist() == expected, order
    longest = at(0, 1, 2, 3, 4, models=(0, 0, 1, 1, 1))
    run = simulate_serving(
        models, longest, make_policy("sequential", order="longest"), TWO_CORES, 1e-3
    )
    assert np.argsort(run.finished_us).tolist() == [0, 2, 3, 1, 4]


def test_higher_priorities_stand_before_lower_ones():
    arrivals = Arrivals(
        np.array([0.0, 1, 2, 3]), np.zeros(4, dtype=np.int64), (), np.array([0, 0, 5, 5])
    )
    run = simulate_serving([one_op(10)], arrivals, make_policy("sequential"), TWO_CORES, 1e-3)
    assert run.finished_us.tolist() == [10, 40, 20, 30]


def test_a_full_queue_drops():
    run = simulate_serving(
        [one_op(10)], at(0, 1, 2, 3), make_policy("sequential"), TWO_CORES, 1e-3, queue_bound=2
    )
    assert run.dropped.tolist() == [1]
    assert run.finished_us.tolist() == [10, 20, 30]


def test_patterns_of_arrival():
    assert periodic([2, 1], 1.0).at_us.tolist() == [0, 0, 5e5]
    assert periodic([2, 1], 1.0).models.tolist() == [0, 1, 0]
    for draw in (poisson, on_off):
        counts = [len(draw([1000], 1.0, seed).at_us) for seed in range(40)]
        assert np.mean(counts) == pytest.approx(1000, rel=0.05)
    bursty = np.diff(on_off([1000], 20.0, 1).at_us)
    assert bursty.std() > 1.5 * bursty.mean() > 1.5 * np.diff(poisson([1000], 20.0, 1).at_us).std()
    # There is one client. A request takes 10 us, and the client thinks for 5 us.
    run = simulate_serving(
        [one_op(10)], closed_loop([1], 5.0), make_policy("sequential"), TWO_CORES, 50e-6
    )
    assert run.arrived_us.tolist() == [0, 15, 30, 45]
    chain = dependent(at(0, models=(0,)), [(0, 1, 2.0)])
    run = simulate_serving(
        [one_op(10, "a"), one_op(10, "b")], chain, make_policy("sequential"), TWO_CORES, 1e-3
    )
    assert run.models.tolist() == [0, 1]
    assert run.finished_us.tolist() == [10, 22]


def test_a_trace_file(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("at_us,model,priority,deadline_us\n20,b,,\n10,a,3,500\n")
    arrivals = trace_file(path, ["a", "b"])
    assert arrivals.at_us.tolist() == [10, 20]
    assert arrivals.models.tolist() == [0, 1]
    assert arrivals.priorities is not None
    assert arrivals.priorities.tolist() == [3, 0]
    assert arrivals.deadlines_us is not None
    assert arrivals.deadlines_us.tolist() == [500, math.inf]
    path.write_text("at_us,model\n1,c\n")
    with pytest.raises(InputError, match=r"line 2 .* model 'c'"):
        trace_file(path, ["a", "b"])
    path.write_text("at_us,model\nsoon,a\n")
    with pytest.raises(InputError, match=r"line 2 .* missing or invalid number"):
        trace_file(path, ["a", "b"])
    with pytest.raises(InputError, match="cannot be read"):
        trace_file(tmp_path / "none.csv", [])


def test_the_launcher_keeps_its_distance():
    run = simulate_serving(
        [one_op(10)],
        at(0, 1, 2, 90),
        make_policy("streams", streams=4, interval_us=[25.0]),
        TWO_CORES,
        1e-3,
    )
    assert run.dequeued_us.tolist() == [0, 25, 50, 90]


def test_adapted_streams_find_how_many_pay():
    """There are four cores, and each instance uses one.

    Without interference, four instances at a time are best, and more instances are not worse. With
    much interference, one instance at a time is best.
    """
    models = [one_op(100)]
    for interference, least, most in ((0.0, 0.9 * 4e4, 4.01e4), (2.0, 0.65 * 1e4, 1.01e4)):
        device = ServingDevice(4.0, interference=interference)
        run = simulate_serving(
            models, periodic([1e5], 0.5), make_policy("streams", streams=None), device, 0.5
        )
        assert least <= run.throughput(0.1 * 1e6) <= most


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("stream", {}, "did you mean `streams`"),
        ("streams", {"stream": 3}, "did you mean `streams`"),
        ("streams", {"streams": 0}, "`streams` is 0"),
        ("streams", {"interval_us": [-1.0]}, "an interval is -1.0"),
        ("sequential", {"order": "lifo"}, "the orders are fifo, longest, deadline"),
    ],
)
def test_policies_of_no_use_are_refused(name, options, match):
    with pytest.raises(InputError, match=match):
        make_policy(name, **options)


def test_a_policy_of_ones_own():
    @register_policy("test-lazy")
    class Lazy(Policy):
        def decide(self, view):
            return Wait()

    assert "test-lazy" in policies()
    run = simulate_serving([one_op(1)], at(0, 1), make_policy("test-lazy"), TWO_CORES, 1e-3)
    assert np.isnan(run.finished_us).all()
    assert math.isnan(run.latency().p99)
    with pytest.raises(InputError, match="a policy `test-lazy` already"):
        register_policy("test-lazy")(Lazy)
    with pytest.raises(InputError, match="is not a policy"):
        register_policy("test-none")(int)


def test_decisions_that_cannot_be_carried_out_are_refused():
    class Twice(Policy):
        def decide(self, view):
            self.first = getattr(self, "first", None) or view.queues[0][0]
            return Start((self.first,))

    with pytest.raises(InputError, match="request 0, which is not waiting"):
        simulate_serving([one_op(1)], at(0), Twice(), TWO_CORES, 1e-3)

    class Beside(Policy):
        def decide(self, view):
            return Start((view.queues[0][0],), alone=bool(view.running))

    with pytest.raises(ScheduleError, match="to run alone"):
        simulate_serving([one_op(1)], at(0, 0), Beside(), TWO_CORES, 1e-3)

    class Past(Policy):
        def decide(self, view):
            return Wait(until_us=view.now_us)

    with pytest.raises(InputError, match=r"is 0\.0 us already"):
        simulate_serving([one_op(1)], at(0), Past(), TWO_CORES, 1e-3)


def test_models_and_devices_of_no_use_are_refused():
    with pytest.raises(InputError, match="`interference` is -1"):
        ServingDevice(interference=-1)
    with pytest.raises(InputError, match="has no operators"):
        ServedModel.priced("m", OpGraph.from_edges(0, []), LatencyTable([]))
    with pytest.raises(InputError, match="later block"):
        ServedModel.priced(
            "m", OpGraph.from_edges(2, [(0, 1)]), LatencyTable([1, 1]), blocks=[[1], [0]]
        )
    with pytest.raises(InputError, match="each of its operators once"):
        ServedModel.priced("m", OpGraph.from_edges(2, []), LatencyTable([1, 1]), blocks=[[1]])
    with pytest.raises(InputError, match="model 1, and there are 1"):
        simulate_serving([one_op(1)], at(0, models=(1,)), make_policy("streams"), TWO_CORES, 1.0)
    with pytest.raises(InputError, match="not in order of time"):
        at(2, 1)
