"""Tests TOP's decisions, agents and policies: how they decide, train and serve."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.top_cells import SEARCHES
from benchmarks.top_exact import (
    CASES,
    CONFIG,
    MENDED,
    SmallCase,
    search_and_compare,
    train_and_compare,
)
from tests.serving_models import random_device, random_models
from tvm_interop.errors import InputError
from tvm_interop.serving import (
    Programs,
    combination_of,
    each_alone,
    make_policy,
    poisson,
    simulate_serving,
)
from tvm_interop.serving.decisions import PRINTED, SAMPLES, Agents, Score, Space
from tvm_interop.serving.policies.search import Search

TINY = replace(
    CONFIG, steps=60, random_steps=20, batch=16, critic=(16, 8), actor=(16, 8), learning_rate=1e-3
)


@pytest.fixture(autouse=True)
def one_thread():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # The networks are so small that more threads would be slower.
    yield
    torch.set_num_threads(before)


def random_agents(models, seed=0) -> Agents:
    space = Space(tuple(len(model.blocks) for model in models))
    rng = np.random.default_rng(seed)
    weights = {}
    for i, part in enumerate(space.slices()):
        widths = [space.state_size, 12, 8, part.stop - part.start]
        for layer, (a, b) in enumerate(itertools.pairwise(widths)):
            weights[f"actor{i}.{layer}.w"] = rng.normal(0, a**-0.5, (a, b))
            weights[f"actor{i}.{layer}.b"] = rng.normal(0, 1, b)
    return Agents(space, weights)


def test_blocks_in_one_interval_are_one_combined_block():
    case = SmallCase.on(CASES["crowded"])
    models = case.programs.models
    action = np.array([0.1, 1.0, 0.0, 0.24, 0.25, 1.0])
    combination, first, second = case.key(action)
    assert combination == combination_of(models, [[(0, 0), (0, 1)], [(1, 0)], [(1, 1)]])
    assert (first, second) == (1, 5)
    assert case.space.combination(models, np.full(6, 0.6)) == (((0, 0), (0, 1), (1, 0), (1, 1)),)


def test_intervals_are_linear_or_logarithmic():
    action = np.array([0.0, 0.5, 1.0, 0, 0, 0])
    space = Space((1, 1, 1))
    np.testing.assert_allclose(space.intervals_us(action), [100, 1e4, 1e6])
    linear = replace(space, interval="linear")
    np.testing.assert_allclose(linear.intervals_us(action), [1, 5e5, 1e6])
    np.testing.assert_allclose(replace(linear, levels=4).intervals_us(action), [2.5e5, 5e5, 1e6])
    with pytest.raises(InputError, match="`interval` is 'cubic'"):
        Space((1,), interval="cubic")


def test_actions_for_one_decision_have_the_same_features():
    case = SmallCase.on(CASES["crowded"])
    draw = np.random.default_rng(2).random((4000, 6))
    features = case.space.features(draw)
    assert features.shape == (4000, case.space.num_features)
    found: dict = {}
    for action, row in zip(draw, features.tolist(), strict=True):
        found.setdefault(case.key(action), set()).add(tuple(row))
    assert len(found) > 300
    assert all(len(rows) == 1 for rows in found.values())
    assert len(set.union(*found.values())) == len(found), "two decisions share features"


@pytest.mark.parametrize("levels", [0, 5])
def test_of_all_actions_for_a_decision_one_stands_for_it_in_the_middle(levels):
    space = Space((2, 3), levels=levels)
    actions = np.random.default_rng(levels).random((200, space.size))
    actions[:3, 2:] = [[0.0] * 5, [1.0] * 5, [0.21, 0.99, 0.3, 0.0, 1.0]]
    canonical = space.canonical(actions)
    np.testing.assert_array_equal(space.features(canonical), space.features(actions))
    np.testing.assert_array_equal(space.canonical(canonical), canonical)
    np.testing.assert_array_equal(canonical[0, 2:], canonical[1, 2:])
    np.testing.assert_allclose(canonical[2, 2:], [0.1, 0.3, 0.1, 0.7, 0.3])
    if levels:
        np.testing.assert_allclose((canonical[:, :2] * levels) % 1, 0.5)


class Paid:
    """An environment in which an action chooses a number for each of two intervals. The reward,
    given by `gains`, depends only on the two numbers."""

    calls, rule = 0, PRINTED

    def __init__(self, gains):
        self.space, self._rng = SmallCase.on(CASES["crowded"]).space, np.random.default_rng(0)
        self.state = np.zeros(self.space.state_size)
        self.gains = gains

    def levels(self, action):
        return tuple(np.maximum(np.ceil(action[:2] * 5), 1).astype(int).tolist())

    def step(self, action):
        from tvm_interop.serving.decisions import Outcome

        gain = self.gains.get(self.levels(action), 0.0)
        return Outcome(self.state, np.array([gain, 0.0, 0.0, 0.0]), None)


@pytest.mark.parametrize(
    "gains",
    [
        {(4, other): 1.0 for other in range(1, 6)},
        # To leave (2, 2) for a better reward, both agents must change together.
        {(2, 2): 0.6, (4, 4): 1.0},
    ],
    ids=["one of them", "both together"],
)
def test_agents_learn_the_candidate_that_pays_where_the_reward_has_no_slope(gains):
    from tvm_interop.serving.learning.maddpg import MaddpgTraining

    config = replace(
        TINY, steps=500, random_steps=200, batch=64, critic=(32, 32), actor=(16, 16), gamma=0.0,
        actor_rate=3e-3, learning_rate=3e-3, shared_reward=True, actor_update="candidates",
    )  # fmt: skip
    environment = Paid(gains)
    training = MaddpgTraining(environment, config)
    training.run()
    assert gains[environment.levels(training.decide())] == 1.0


def test_of_candidates_as_good_as_the_best_the_nearest_is_taken():
    from tvm_interop.serving.learning.maddpg import _nearest_of_the_best

    # There are two states. The fourth candidate is the worst in both.
    places = np.array([[0.1, 0.1], [0.4, 0.4], [0.2, 0.2], [0.2, 0.3]], dtype=np.float32)
    candidates = np.repeat(places[:, None], 2, axis=1)
    chosen = np.array([[0.2, 0.2], [0.35, 0.35]], dtype=np.float32)
    values = np.array([[3.0, 3.0], [2.99, 2.99], [2.9, 2.9], [1.0, 1.0]], dtype=np.float32)
    found = _nearest_of_the_best(candidates, values, chosen)
    # The worst value is 2 below the best value. Compared with 2, a distance of 0.01 from the best
    # value is small enough to count as good, and a distance of 0.1 is not.
    np.testing.assert_array_equal(found, [places[0], places[1]])
    values[1] = 2.97
    found = _nearest_of_the_best(candidates, values, chosen)
    np.testing.assert_array_equal(found, [places[0], places[0]])


def test_critics_that_see_decisions_learn_as_much_from_each():
    from tvm_interop.serving.learning.maddpg import MaddpgTraining

    config = replace(TINY, steps=200, random_steps=60, noise=(0.02, 0.0), actor_update="candidates")
    training = MaddpgTraining(Paid({(1, 1): 1.0}), config)
    training.run()
    space = training.environment.space
    shown = [space.features(action).tobytes() for action in training._actions]
    visits = {decision: shown.count(decision) for decision in shown}
    most = max(visits, key=lambda decision: visits[decision])
    assert visits[most] > 20
    drawn = [shown[i] for _ in range(2000) for i in training._drawn()]
    assert {*drawn} == {*shown}
    assert drawn.count(most) == pytest.approx(len(drawn) / len(visits), rel=0.3)


def test_a_state_tells_queues_and_blocks_in_progress():
    space = Space((2, 3))
    sample = space.sample([[1], [0, 2]], [6, 2])
    assert sample.tolist() == [0.5, -0.5, 0, 1, 1, 0, 1]
    assert space.sample([[], []], [0, 0]).tolist() == [0.0] * 7
    case = SmallCase.on(CASES["crowded"])
    environment = case.environment(0)
    state = environment.step(np.array([0.1, 0.1, 0, 0, 0.9, 0.9])).state
    assert state.shape == (case.space.state_size,)
    assert {*state.reshape(SAMPLES, -1)[:, 2:].ravel()} == {0.0, 1.0}


def test_a_combined_block_that_is_too_large_changes_nothing_and_earns_nothing():
    case = SmallCase.on(CASES["crowded"])
    environment = case.environment(0)
    environment._most = 3
    before = environment.step(np.array([0.1, 0.1, 0, 0, 0, 0.9]))
    assert before.figures is not None
    refused = environment.step(np.array([0.1, 0.1, 0, 0, 0, 0]))
    assert refused.figures is None
    assert refused.run is None
    np.testing.assert_array_equal(refused.state, before.state)
    score = Score.of([before.figures, before.figures * 1.1])
    assert score.rewards(None).tolist() == [0.0, 0.0, 0.0]
    assert score.rewards(before.figures).shape == (3,)
    assert environment.calls == 2


def test_rewards_are_equation_2():
    score = Score(np.array([0.5, 10.0, 2.0, 4.0]), np.array([0.1, 5.0, 1.0, 2.0]))
    rewards = score.rewards(np.array([0.6, 5.0, 3.0, 2.0]))  # The z-scores are 1, -1, 1, -1.
    np.testing.assert_allclose(rewards, np.exp([0.6, 0.2, 1.0]))
    assert score.team(np.array([0.6, 5.0, 3.0, 2.0])) == pytest.approx(rewards.mean())


def test_agents_in_numpy_and_torch_agree_and_are_read_again(tmp_path):
    from tvm_interop.serving.learning.maddpg import MaddpgTraining, save_agents

    case = SmallCase.on(CASES["crowded"])
    training = MaddpgTraining(case.environment(0), TINY)
    agents = training.run()
    state = np.random.default_rng(0).normal(size=case.space.state_size)
    np.testing.assert_allclose(agents.act(state), training.decide(state), atol=1e-6)
    save_agents(tmp_path / "a.npz", training)
    read = Agents.load(tmp_path / "a.npz", (2, 2))
    assert read.space == case.space
    np.testing.assert_array_equal(read.act(state), agents.act(state))
    with pytest.raises(InputError, match=r"of \(2, 2\) blocks, but these models have \(2, 3\)"):
        Agents.load(tmp_path / "a.npz", (2, 3))
    (tmp_path / "text.npz").write_text("none")
    with pytest.raises(InputError, match=r"text\.npz` cannot be read"):
        Agents.load(tmp_path / "text.npz", (2, 2))


@pytest.mark.parametrize(
    ("agents", "actor_update"), [("each", "gradient"), ("one", "gradient"), ("each", "candidates")]
)
def test_a_training_goes_on_where_it_was_saved(agents, actor_update, tmp_path):
    from tvm_interop.serving.learning.maddpg import MaddpgTraining

    case = SmallCase.on(CASES["crowded"])
    config = replace(TINY, agents=agents, actor_update=actor_update)
    whole = MaddpgTraining(case.environment(3), config)
    whole.run()
    MaddpgTraining(case.environment(3), config).run(40, tmp_path / "c.npz")
    again = MaddpgTraining(case.environment(3), config)
    again.run(checkpoint_path=tmp_path / "c.npz")
    assert (again.step, again.environment.calls) == (60, 60)
    assert again.curve == whole.curve
    np.testing.assert_array_equal(again.decide(), whole.decide())
    other = MaddpgTraining(case.environment(3), replace(config, seed=8))
    with pytest.raises(InputError, match="another configuration"):
        other.run(checkpoint_path=tmp_path / "c.npz")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "config"),
    [
        ("room for all", replace(CONFIG, steps=2000)),
        ("room for all", replace(MENDED, seed=3)),
        ("crowded", MENDED),
    ],
)
def test_the_final_agents_decide_as_the_best_of_all_decisions(case, config):
    """The final decision of the agents is within 2% of the best of all 375 decisions."""
    found = train_and_compare(case, config)
    assert found["decisions"] == 375
    assert found["final over best"] >= 0.98


@pytest.mark.parametrize("method", SEARCHES)
def test_searches_of_the_small_case_have_so_many_calls_and_their_best_decision(method):
    few, many = (search_and_compare("crowded", method, calls, 3) for calls in (20, 1500))
    assert (few["calls"], many["calls"]) == (20, 1500)
    assert 0 < few["final over best"] <= 1
    assert many["calls until within 2%"] is None or many["final over best"] >= 0.98
    assert few["final over best"] <= many["final over best"]


def serve(models, policy, device, seconds=None, load=1.5):
    programs = Programs(models, device)
    total_us = sum(programs.model_us(m) for m in range(len(models)))
    seconds = seconds or 60 * total_us / 1e6
    arrivals = poisson([load * 1e6 / total_us] * len(models), seconds, 1)
    return simulate_serving(models, arrivals, policy, device, seconds, programs=programs)


def test_top_decides_again_when_the_queues_differ_too_much():
    models = random_models(5, 2)
    for threshold, again in ((0.0, True), (1e9, False)):
        policy = make_policy(
            "top", agents=random_agents(models), threshold=threshold, check_us=200.0, most=16
        )
        run = serve(models, policy, random_device(5))
        assert (len(run.log) > 1) == again
        assert "combined blocks" in run.log[0][1]
        assert run.served().sum() > 0


def test_top_serves_by_the_combination_of_its_agents():
    models = random_models(5, 2)
    agents = random_agents(models)
    top = make_policy("top", agents=agents, threshold=1e9, most=16, schedule="greedy")
    device = random_device(5)
    run = serve(models, top, device)
    empty = np.concatenate([agents.space.sample([[], []], [0, 0])] * SAMPLES)
    action = agents.act(empty)
    search = make_policy(
        "search", combination=agents.space.combination(models, action),
        interval_us=agents.space.intervals_us(action),
    )  # fmt: skip
    np.testing.assert_array_equal(run.finished_us, serve(models, search, device).finished_us)


def test_top_keeps_what_it_has_where_a_combined_block_is_too_large():
    models = random_models(5, 2)
    agents = random_agents(models)
    agents.act = lambda state: np.full(agents.space.size, 0.5)
    run = serve(models, make_policy("top", agents=agents, most=1), random_device(5))
    assert "not taken" in run.log[0][1]
    alone = make_policy("search", combination=each_alone(models), schedule="gpg-scored")
    expected = serve(models, alone, random_device(5))
    np.testing.assert_array_equal(run.finished_us, expected.finished_us)


class Watched(Search):
    """A policy that runs up to two combined blocks at once, and notes how many run side by side."""

    most = 0

    def decide(self, view):
        parts = [p for r in view.running.values() for p in r.start.parts]
        assert len(parts) == len(set(parts)), "two running blocks have the same part"
        self.most = max(self.most, len(view.running))
        return super().decide(view)


def test_two_combined_blocks_are_in_flight_and_no_block_has_two_instances():
    for seed in range(6):
        models = random_models(seed, 2)
        policy = Watched(combination=each_alone(models), barriers=False, in_flight=2)
        run = serve(models, policy, random_device(seed), load=0.4)
        assert policy.most == 2
        done = run.finished_us[~np.isnan(run.finished_us)]
        assert len(done) > 10


class Inside(Search):
    most = 0

    def decide(self, view):
        for model, between in enumerate(view.between):
            run = [r for each in view.running.values() for r in each.start.requests]
            mine = sum(r is not None and r.model == model for r in run)
            self.most = max(self.most, mine + sum(map(len, between)))
        return super().decide(view)


@pytest.mark.parametrize("inside", [1, 2])
def test_no_more_requests_are_between_blocks_than_there_are_tensors_for(inside):
    models = random_models(1, 2)
    assert max(len(model.blocks) for model in models) == 2
    policy = Inside(combination=each_alone(models), inside=inside)
    run = serve(models, policy, random_device(1), load=2.0)
    assert policy.most == inside
    assert (run.served() > 5).all()
    free = Inside(combination=each_alone(models))
    serve(models, free, random_device(1), load=2.0)
    assert free.most > 2


def test_top_plus_serves_no_less_than_one_after_the_other():
    for seed in (2, 5):
        models, device = random_models(seed, 2), random_device(seed)
        plus = make_policy("top+", budget=6, agents=random_agents(models))
        served = serve(models, plus, device, load=4.0).served()
        alone = serve(models, make_policy("sequential"), device, load=4.0).served()
        assert served.min() >= 0.9 * alone.min()


def test_options_that_are_none_are_refused():
    models = random_models(5, 2)
    with pytest.raises(InputError, match="needs agents trained for these models"):
        make_policy("top")
    with pytest.raises(InputError, match="`threshold` is -1"):
        make_policy("top", agents=random_agents(models), threshold=-1)
    with pytest.raises(InputError, match="`in_flight` is 0"):
        make_policy("search", in_flight=0)
    wrong = make_policy("top", agents=random_agents(random_models(6, 3)))
    with pytest.raises(InputError, match="the agents are for models of"):
        serve(models, wrong, random_device(5))
    with pytest.raises(InputError, match="these weights do not belong to"):
        Agents(Space((2, 2)), {})
