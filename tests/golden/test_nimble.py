"""Tests Nimble's figures for two networks: its edges, matching, chains, waits and streams."""

import pytest

from tvm_interop import operator_graph
from tvm_interop.scheduling import schedule

# For each network: reduced edges, matching, chains, waits, streams.
FIGURES = {"squeezenet": (61, 37, 13, 24, 3), "inception_v3": (153, 83, 36, 70, 6)}


@pytest.mark.parametrize("network", FIGURES)
def test_the_published_figures(network):
    stats = schedule(operator_graph(network, unit="schedule"), "nimble").stats
    counted = ("reduced_edges", "matching", "chains", "waits", "streams")
    assert tuple(stats[name] for name in counted) == FIGURES[network]
