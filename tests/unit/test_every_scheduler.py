"""What holds for every scheduler, on 2,000 random graphs."""

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
STEP = {"auto": 5, "gpg": 7, "gpg-scored": 67, "multi-gpu": 19}
"""Slower ones are tried on every so many graphs: two ask networks, two run most of the others."""


def random_graph(seed):
    """Up to 24 operators; every hundredth graph has up to 150."""
    size = random.Random(seed).randint(0, 150 if seed % 100 == 0 else 24)
    return layered(size, seed) if seed % 2 else sparse(size, seed)


@pytest.mark.parametrize("name", schedulers())
def test_every_schedule_is_valid(name):
    """`schedule` validates what it returns; each operator then runs once, on some stream."""
    for seed in range(0, GRAPHS, STEP.get(name, 1)):
        graph = random_graph(seed)
        us = LatencyTable(latencies(graph.num_ops, seed))
        made = schedule(graph, name, us, **OPTIONS.get(name, {}))
        made.validate(graph)
        assert sorted(op for ops in made.streams for op in ops) == list(range(graph.num_ops))
