"""Tests the numbers of transitions and schedules in Table 1 of the IOS paper, and the same numbers
for the complete set of endings.

The published counts come from an enumeration that allows only groups with a single root: the mode
`paper`. They are 51 transitions and 131 schedules for the fire block, and 4871 and 3 757 392 for
Inception E. With at most r = 3 operators in a group and s = 8 groups in a stage, they are 47
transitions and 26 stages for the fire block, and 4616 and 775 for Inception E.
"""

import pytest

from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import schedule

# SqueezeNet's fire block with a convolution on its bypass. The squeeze is operator 0, the expands
# are 1 and 2, their concatenation is 3, the bypass is 4, and the sum is 5.
FIRE = OpGraph.from_edges(6, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 5), (4, 5)])

INCEPTION_E = OpGraph.from_edges(
    ["1x1", "b_1x1", "b_1x3", "b_3x1", "c_1x1", "c_3x3", "c_1x3", "c_3x1", "pool", "d_1x1", "cat"],
    [
        ("b_1x1", "b_1x3"),
        ("b_1x1", "b_3x1"),
        ("c_1x1", "c_3x3"),
        ("c_3x3", "c_1x3"),
        ("c_3x3", "c_3x1"),
        ("pool", "d_1x1"),
        *((op, "cat") for op in ("1x1", "b_1x3", "b_3x1", "c_1x3", "c_3x1", "d_1x1")),
    ],
)

# Each row has: graph, endings, r, s (0 for no limit), states, transitions, distinct stages,
# schedules.
COUNTS = [
    (FIRE, "paper", 0, 0, 12, 51, 29, 131),
    (FIRE, "paper", 3, 8, 12, 47, 26, 126),
    (FIRE, "complete", 0, 0, 12, 60, 37, 152),
    (FIRE, "complete", 3, 8, 12, 51, 29, 138),
    (INCEPTION_E, "paper", 0, 0, 180, 4871, 842, 3757392),
    (INCEPTION_E, "paper", 3, 8, 180, 4616, 775, 3727132),
    (INCEPTION_E, "complete", 0, 0, 180, 5040, 1011, 4410136),
    (INCEPTION_E, "complete", 3, 8, 180, 4631, 790, 4226508),
]


@pytest.mark.parametrize(("graph", "width"), [(FIRE, 3), (INCEPTION_E, 6)])
def test_each_is_one_block_of_the_published_width(graph, width):
    assert graph.width == width
    assert len(graph.blocks()) == 1


@pytest.mark.parametrize(
    ("graph", "endings", "r", "s", "states", "transitions", "stages", "schedules"), COUNTS
)
def test_counts(graph, endings, r, s, states, transitions, stages, schedules):
    stats = schedule(
        graph,
        "ios",
        LatencyTable([1.0] * graph.num_ops),
        endings=endings,
        max_group_ops=r,
        max_groups=s,
    ).stats
    assert (stats["states"], stats["transitions"]) == (states, transitions)
    assert (stats["stages"], stats["schedules"]) == (stages, schedules)
    assert (stats["blocks"], stats["parts_cut"]) == (1, 0)
