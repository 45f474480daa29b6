"""Tests the choice of one of two labels for each item at the lowest cost, by a minimum cut.

The chosen labels are compared with all possible labels. Some costs cannot be expressed by a cut.
"""

from __future__ import annotations

import random
from itertools import product

import pytest

from tvm_interop.compiler.two_labels import PairCost, cheapest_labels

Labels = dict[int, int]
Pairs = list[tuple[int, int]]


def all_labels(things: int, equal: Pairs = ()) -> list[Labels]:  # type: ignore[assignment]
    """All ways to label `things` things, if the things in `equal` must have the same label."""
    found = (dict(enumerate(labels)) for labels in product((0, 1), repeat=things))
    return [labels for labels in found if all(labels[a] == labels[b] for a, b in equal)]


def random_cost(rng: random.Random, things: int) -> PairCost:
    """Draw a random cost, in whole nanoseconds, of the labels of two things.

    Two unlike labels cost at least as much as two like labels. If one thing is None, the cost
    depends only on the other thing. If both are None, it depends on nothing.
    """
    c00, c11, c01 = (rng.randint(0, 40) for _ in range(3))
    c10 = max(c00 + c11 - c01, 0) + rng.choice([0, 0, rng.randint(0, 20)])
    ends = [rng.choice([None, *range(things)]), rng.choice([None, *range(things)])]
    return PairCost(*ends, ((c00 / 1e3, c01 / 1e3), (c10 / 1e3, c11 / 1e3)))


def random_instance(seed: int) -> tuple[int, list[PairCost], Pairs]:
    rng = random.Random(seed)
    things = rng.randint(1, 9)
    costs = [random_cost(rng, things) for _ in range(rng.randint(0, 3 * things))]
    equal = [
        (rng.randrange(things), rng.randrange(things)) for _ in range(rng.choice([0, 0, 1, 3]))
    ]
    return things, costs, equal


def labels_cost(labels: Labels, costs: list[PairCost]) -> float:
    """The cost of these labels, in microseconds."""
    total = 0.0
    for cost in costs:
        first = 0 if cost.first is None else labels[cost.first]
        second = 0 if cost.second is None else labels[cost.second]
        total += cost.us[first][second]
    return total


@pytest.mark.parametrize("hundred", range(2))
def test_as_cheap_as_trying_all(hundred: int) -> None:
    mixed = 0
    for seed in range(100 * hundred, 100 * hundred + 100):
        things, costs, equal = random_instance(seed)
        labels = cheapest_labels(range(things), costs, equal)
        assert labels.keys() == set(range(things))
        assert all(labels[a] == labels[b] for a, b in equal)
        found = all_labels(things, equal)
        least = min(labels_cost(each, costs) for each in found)
        assert labels_cost(labels, costs) == pytest.approx(least, abs=1e-9)
        # The choice is the cheapest labelling, and in a tie the labelling with the fewest labels 1.
        ties = [each for each in found if labels_cost(each, costs) < least + 1e-6]
        assert sum(labels.values()) == min(sum(each.values()) for each in ties)
        mixed += len(set(labels.values())) == 2
    assert mixed > 20


def test_a_long_chain_is_as_cheap_as_step_by_step() -> None:
    """In a chain, the lowest costs of the first n things follow from the lowest costs of n - 1
    things."""
    for seed in range(3):
        rng = random.Random(seed)
        things = 300
        alone = [(rng.randint(0, 30) / 1e3, rng.randint(0, 30) / 1e3) for _ in range(things)]
        unlike = [rng.randint(0, 20) / 1e3 for _ in range(things - 1)]
        costs = [PairCost(None, i, (us, (0.0, 0.0))) for i, us in enumerate(alone)]
        costs += [PairCost(i, i + 1, ((0.0, us), (us, 0.0))) for i, us in enumerate(unlike)]
        zero, one = alone[0]
        for us, (next_zero, next_one) in zip(unlike, alone[1:], strict=True):
            zero, one = min(zero, one + us) + next_zero, min(one, zero + us) + next_one
        labels = cheapest_labels(range(things), costs)
        assert labels_cost(labels, costs) == pytest.approx(min(zero, one), abs=1e-9)
        assert set(labels.values()) == {0, 1}


def test_like_labels_hold_together() -> None:
    """Thing 1 gains 5 by label 1, thing 0 gains 3 by label 0, and unlike labels cost 4."""
    costs = [
        PairCost(None, 1, ((5.0, 0.0), (0.0, 0.0))),
        PairCost(0, None, ((0.0, 0.0), (3.0, 0.0))),
        PairCost(0, 1, ((0.0, 4.0), (4.0, 0.0))),
    ]
    assert cheapest_labels([0, 1], costs) == {0: 1, 1: 1}
    assert cheapest_labels([0, 1], costs[:2]) == {0: 0, 1: 1}
    assert cheapest_labels([0, 1], costs[1:]) == {0: 0, 1: 0}


def test_things_that_must_be_equal_are() -> None:
    wants = [PairCost(None, 1, ((5.0, 0.0), (0.0, 0.0))), PairCost(0, None, ((0, 0), (3.0, 0)))]
    assert cheapest_labels([0, 1], wants) == {0: 0, 1: 1}
    assert cheapest_labels([0, 1], wants, [(0, 1)]) == {0: 1, 1: 1}
    assert cheapest_labels([0, 1], [*wants, wants[1]], [(1, 0)]) == {0: 0, 1: 0}


def test_a_cost_between_a_thing_and_itself() -> None:
    """If an operator reads one part of a tensor and writes another part, its cost depends on the
    label of the tensor twice."""
    cost = PairCost(0, 0, ((3.0, 9.0), (9.0, 2.0)))
    assert cheapest_labels([0], [cost]) == {0: 1}


def test_ties_give_label_zero() -> None:
    nothing = [PairCost(0, 1, ((2.0, 2.0), (2.0, 2.0)))]
    assert cheapest_labels([0, 1, 2], nothing) == {0: 0, 1: 0, 2: 0}
    assert cheapest_labels([], []) == {}
    below_a_nanosecond = [PairCost(None, 0, ((2.0004, 2.0), (0.0, 0.0)))]
    assert cheapest_labels([0], below_a_nanosecond) == {0: 0}


def test_a_cost_that_prefers_unlike_labels_is_raised() -> None:
    """The raised cost is never below the true cost, and equals it if a cut can express it."""
    unlike = PairCost(0, 1, ((9.0, 0.0), (1.0, 9.0)))
    labels = cheapest_labels([0, 1], [unlike])
    raised = PairCost(0, 1, ((9.0, 17.0), (1.0, 9.0)))
    assert labels == cheapest_labels([0, 1], [raised]) == {0: 1, 1: 0}
    rng = random.Random(0)
    for _ in range(50):
        costs = [
            PairCost(
                *rng.sample(range(5), 2),
                tuple(tuple(float(rng.randint(0, 9)) for _ in "01") for _ in "01"),  # type: ignore[arg-type]
            )
            for _ in range(8)
        ]
        chosen = cheapest_labels(range(5), costs)
        raised_costs = [_raised(cost) for cost in costs]
        least = min(labels_cost(each, raised_costs) for each in all_labels(5))
        assert labels_cost(chosen, raised_costs) == pytest.approx(least)


def _raised(cost: PairCost) -> PairCost:
    """The cost, raised for the labels (0, 1) until a minimum cut can express it."""
    (c00, c01), (c10, c11) = cost.us
    return PairCost(cost.first, cost.second, ((c00, max(c01, c00 + c11 - c10)), (c10, c11)))
