"""Tests the whole of TOP: queues that persist from step to step, GPG in the agents, stopped
trainings."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.serving_models import random_device, random_models
from tvm_interop.errors import InputError
from tvm_interop.scheduling import schedule
from tvm_interop.serving import (
    CombinedServing,
    Programs,
    closed_loop,
    each_alone,
    equal_depth,
    make_policy,
    poisson,
    simulate_combined,
    simulate_serving,
)
from tvm_interop.serving.decisions import PRINTED, SAMPLES, RewardRule, Score, Space
from tvm_interop.serving.policies.search import Search
from tvm_interop.serving.process import Load, ServingProcess, mix_rate


def programs_of(seed=5, count=2) -> Programs:
    return Programs(random_models(seed, count), random_device(seed))


def length_s(programs, requests=40) -> float:
    return requests * sum(programs.model_us(m) for m in range(len(programs.models))) / 1e6


@pytest.mark.parametrize("seed", range(6))
def test_windows_of_one_decision_are_the_whole_run_in_pieces(seed):
    programs = programs_of(seed)
    seconds = length_s(programs)
    rate = 1.3 * 40 / seconds
    for arrivals in (poisson([rate, rate], seconds, seed), closed_loop([2, 3], 5.0)):
        decision = equal_depth(programs.models, 2)
        interval_us = [1e6 / rate, 0.5e6 / rate]
        whole = simulate_combined(programs, arrivals, decision, seconds, interval_us=interval_us)
        serving = CombinedServing(programs, arrivals)
        windows = [serving.run(decision, interval_us, seconds / 7) for _ in range(7)]
        served = np.concatenate(
            [
                window.run.finished_us[~np.isnan(window.run.finished_us)] + i * seconds / 7 * 1e6
                for i, window in enumerate(windows)
            ]
        )
        expected = np.sort(whole.finished_us[~np.isnan(whole.finished_us)])
        np.testing.assert_allclose(np.sort(served), expected, rtol=1e-9)
        assert sum(w.run.instances for w in windows) == whole.instances
        busy = np.mean([w.run.utilisation for w in windows])
        assert busy == pytest.approx(whole.utilisation)


class Changing(Search):
    """A policy that changes its decision at a given time."""

    def decide(self, view):
        if view.now_us >= self.at_us and self.combination != self.then:
            self.adopt(self.then, self.interval_us)
        return super().decide(view)


def test_a_new_decision_takes_over_as_in_the_policy():
    for seed in range(6):
        programs = programs_of(seed)
        seconds = length_s(programs)
        rate = 60 / seconds
        arrivals = poisson([rate, rate], seconds, seed)
        first, then = each_alone(programs.models), equal_depth(programs.models, 3)
        policy = Changing(combination=first, interval_us=[1e6 / rate] * 2)
        policy.at_us, policy.then = seconds * 0.5e6, then
        policy.interval_us = [0.0, 2e6 / rate]
        run = simulate_serving(
            programs.models, arrivals, policy, programs.device, seconds, programs=programs
        )
        serving = CombinedServing(programs, arrivals)
        halves = [
            serving.run(first, [1e6 / rate] * 2, seconds / 2),
            serving.run(then, [0.0, 2e6 / rate], seconds / 2),
        ]
        # The policy changes its decision at the first event after the given time. The window ends
        # at exactly that time.
        served = sum((half.run.finished_us >= 0).sum() for half in halves)
        assert abs(int(served) - int(run.served().sum())) <= 3
        late = halves[1].run.finished_us >= 0
        assert late.any()


def process_of(programs, **options) -> ServingProcess:
    space = Space(tuple(len(model.blocks) for model in programs.models))
    given = {"most": 99, "episode": 4, **options}
    return ServingProcess(programs, space, Load("closed", (3, 6)), length_s(programs, 8), **given)


def test_queues_go_on_from_step_to_step_and_end_with_the_episode():
    programs = programs_of()
    process = process_of(programs)
    held = np.array([1.0, 1.0, *np.linspace(0, 1, process.space.size - 2)])
    open_ = np.array([0.0, 0.0, *np.linspace(0, 1, process.space.size - 2)])
    first = process.step(held)
    assert first.run.served().sum() <= 2, "the launcher must admit one request of each model only"
    second = process.step(open_)
    waited = second.run.arrived_us < 0
    assert waited.sum() >= 5, "the second step must serve requests of the first step"
    for _ in range(2):
        process.step(open_)
    fifth = process.step(open_)
    assert (fifth.run.arrived_us >= 0).all(), "a new episode must begin with empty queues"


def test_a_state_has_the_blocks_that_were_observed():
    programs = programs_of()
    process = process_of(programs)
    action = np.array([0.0, 0.0, *np.linspace(0, 1, process.space.size - 2)])
    state = process.step(action).state.reshape(SAMPLES, -1)
    blocks = state[:, 2:]
    assert {*blocks.ravel()} <= {0.0, 1.0}
    # Each sample is a real state of the serving, so at least one request is in progress.
    assert (blocks.sum(1) >= 1).all()
    serving = CombinedServing(programs, closed_loop([3, 6]))
    seconds = length_s(programs, 8)
    decision = process.space.combination(programs.models, action)
    times = np.linspace(0, seconds * 1e6, 30)[1:]
    window = serving.run(decision, [0.0, 0.0], seconds, observe_us=times)
    inside = np.array([counts.sum(1) for counts in window.in_blocks]).T
    # Each client either waits in the queue or has a request in a block.
    np.testing.assert_array_equal(window.lengths + inside, np.tile([3, 6], (len(times), 1)))


def test_a_process_is_restored_to_where_it_was():
    actions = np.random.default_rng(3).random((12, process_of(programs_of()).space.size))
    for most in (99, 2):  # If at most 2 blocks may be combined, some actions are refused.
        whole, again = (process_of(programs_of(), most=most) for _ in range(2))
        outcomes = [whole.step(action) for action in actions]
        for action in actions[:7]:
            again.step(action)
        other = process_of(programs_of(), most=most)
        other.restore(again.saved(), actions[:7])
        for action, expected in zip(actions[7:], outcomes[7:], strict=True):
            found = other.step(action)
            np.testing.assert_array_equal(found.state, expected.state)
            assert (found.figures is None) == (expected.figures is None)
            if found.figures is not None:
                np.testing.assert_array_equal(found.figures, expected.figures)


def test_loads_of_a_process():
    seconds = 0.01
    trace = poisson([1000.0, 500.0], seconds, 1)
    load = Load("trace", trace=trace, period_s=seconds)
    twice = load.arrivals(2 * seconds, 0)
    assert len(twice.at_us) == 2 * len(trace.at_us)
    assert (np.diff(twice.at_us) >= 0).all()
    for kind in ("periodic", "poisson", "on_off"):
        found = Load(kind, (4000.0, 2000.0), 0.002).arrivals(0.1, 7)
        assert found.num_models == 2
    with pytest.raises(InputError, match="`kind` is 'open'"):
        Load("open")
    with pytest.raises(InputError, match="give `trace`"):
        Load("trace")
    with pytest.raises(InputError, match="`reward` is 'fps'"):
        process_of(programs_of(), reward="fps")


def test_rewards_may_be_the_rate_of_whole_mixes_alone():
    assert mix_rate([10, 30, 20], [1, 2, 4]) == pytest.approx(35)
    rule = RewardRule((1.0, 0.0, 0.0), is_exponential=False, refused=-3.0)
    rows = [np.array([1.0, 5.0, 2.0]), np.array([3.0, 9.0, 4.0])]
    score = Score.of(rows, rule)
    np.testing.assert_allclose(score.rewards(rows[1]), [1.0, 1.0])
    assert score.rewards(None).tolist() == [-3.0, -3.0]
    assert Score.of(rows).rule == PRINTED


def test_a_search_may_simulate_clients():
    models, device = random_models(5, 2), random_device(5)
    programs = Programs(models, device)
    seconds = length_s(programs)
    for clients in (None, [2, 3]):
        policy = make_policy("search", budget=8, clients=clients)
        run = simulate_serving(
            models, closed_loop([2, 3]), policy, device, seconds, programs=programs
        )
        assert (run.served() > 0).all()
    with pytest.raises(InputError, match="`clients` has 1 numbers for 2 models"):
        simulate_serving(
            models, closed_loop([2, 3]), make_policy("search", clients=[1]), device, seconds
        )


def test_the_differences_of_the_configurations_are_named():
    pytest.importorskip("torch")
    from tvm_interop.serving.learning.top import DIFFERENCES, OURS, PAPER

    paper, ours = PAPER.fields(), OURS.fields()
    assert {key for key in paper if paper[key] != ours[key]} == {*DIFFERENCES}
    assert (paper["agents.critic"], paper["agents.actor"]) == ((1024, 512, 300), (500, 128))
    assert (paper["agents.gamma"], paper["agents.learning_rate"]) == (0.95, 0.001)
    assert (paper["agents.batch"], paper["agents.random_steps"]) == (100, 2000)
    assert (paper["agents.steps"], paper["gpg.steps"], paper["threshold"]) == (8000, 6000, 2e5)
    assert [PAPER.most_on(cores) for cores in (1, 2, 6, 108)] == [2, 2, 3, 4]
    half = PAPER.shortened(0.5)
    assert (half.agents.steps, half.agents.random_steps, half.gpg.steps) == (4000, 1000, 3000)


TRAINING = """
import sys
from dataclasses import replace
import torch
from tests.unit.test_top_whole import tiny
torch.set_num_threads(1)
training = tiny(sys.argv[1], int(sys.argv[2]))
print(training.run(every=5)["calls"])
"""


def tiny(folder, steps):
    """A training of a few steps: GPG's networks have the packaged sizes, the agents are small."""
    from tvm_interop.serving.learning.top import OURS, TopTraining

    config = replace(
        OURS, gpg=replace(OURS.gpg, variant="gpg", steps=10, features="device"), gpg_blocks=4,
        gpg_options={}, step_requests=10,
        agents=replace(
            OURS.agents, steps=steps, random_steps=20, batch=16, critic=(8,), actor=(8,)
        ),
    )  # fmt: skip
    return TopTraining(programs_of(), Load("closed", (2, 4)), config, folder)


@pytest.mark.slow
def test_a_training_that_was_killed_goes_on_to_the_same_agents(tmp_path):
    pytest.importorskip("torch")
    from tvm_interop.serving.decisions import Agents

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}

    def begin(folder):
        return subprocess.Popen(
            [sys.executable, "-c", TRAINING, str(folder), "400"], env=environment,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    process = begin(killed)
    deadline = time.monotonic() + 300
    while not (killed / "agents.checkpoint.npz").exists():
        assert process.poll() is None or (killed / "agents.checkpoint.npz").exists()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (killed / "agents.npz").exists()
    for folder in (whole, killed):
        calls, _ = begin(folder).communicate()
        assert calls.strip() == "400"
    num_blocks = tuple(len(model.blocks) for model in programs_of().models)
    agents = [Agents.load(folder / "agents.npz", num_blocks) for folder in (whole, killed)]
    state = np.random.default_rng(0).normal(size=agents[0].space.state_size)
    np.testing.assert_array_equal(agents[0].act(state), agents[1].act(state))


def test_the_stages_of_the_agents_are_those_of_the_trained_gpg(tmp_path):
    pytest.importorskip("torch")
    from tvm_interop.latency.contended import ContendedLatency
    from tvm_interop.serving.programs import joint_graph

    training = tiny(tmp_path, 30)
    assert training.estimate_s(steps=3) > 0
    assert not (tmp_path / "estimate.npz").exists()
    training.run()
    programs = training.programs()
    assert programs.options["gpg"]["weights"] == tmp_path / "gpg.npz"
    parts = tuple((m, 0) for m in range(len(programs.models)))
    graph, costs, _ = joint_graph(programs.models, parts)
    device = programs.device
    latency = ContendedLatency(
        costs.op_us, device.cores, device.bandwidth, costs.op_cores, costs.memory_share
    )
    expected = schedule(graph, "gpg", latency, weights=tmp_path / "gpg.npz")
    program = programs.of_parts(parts, "gpg", True)
    assert programs.alone_us(program, 3) >= expected.makespan * (1 - 1e-9)
