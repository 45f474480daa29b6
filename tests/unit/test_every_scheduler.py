"""Tests properties of every scheduler on 2,000 random graphs."""

import random

import pytest

from tests.graphs import latencies, layered, sparse
from tvm_interop.latency import LatencyTable
from tvm_interop.scheduling import schedule, schedulers

SMALL = {"max_group_ops": 2, "max_groups": 4, "max_transitions": 500}
OPTIONS = {
    "auto": {"max_group_ops": 1, "max_groups": 2, "streams": 3},
    "ios": SMALL,
    "ios-both": SMALL,
    "ios-merge": {"max_groups": 4, "max_transitions": 500},
    "ios-parallel": SMALL,
    "multi-gpu": {"time_budget_s": 0.01},
}
GRAPHS = 2000
STEP = {
    "auto": 11,
    "gpg": 7,
    "gpg-scored": 101,
    "ios": 3,
    "ios-both": 5,
    "ios-merge": 5,
    "ios-parallel": 5,
    "multi-gpu": 19,
}
"""For each slow scheduler a number n: the test uses one of n graphs.

Two of these schedulers run neural networks, and two run most of the other schedulers. Four search
for stages. A table of latencies has no merged operators, so three of these have the same choices as
`ios`.
"""


def random_graph(seed):
    """A random graph of up to 24 operators. Every hundredth graph has up to 150."""
    size = random.Random(seed).randint(0, 150 if seed % 100 == 0 else 24)
    return layered(size, seed) if seed % 2 else sparse(size, seed)


@pytest.mark.parametrize("name", schedulers())
def test_every_schedule_is_valid(name):
    """The function `schedule` already validates each schedule that it returns.

    This test also checks that each operator runs once, on some stream.
    """
    for seed in range(0, GRAPHS, STEP.get(name, 1)):
        graph = random_graph(seed)
        us = LatencyTable(latencies(graph.num_ops, seed))
        made = schedule(graph, name, us, **OPTIONS.get(name, {}))
        made.validate(graph)
        assert sorted(op for ops in made.streams for op in ops) == list(range(graph.num_ops))
