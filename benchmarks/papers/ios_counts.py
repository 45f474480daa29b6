"""IOS: counts of blocks, operators and schedules, for which nothing runs."""

from __future__ import annotations

from tvm_interop import LatencyTable, OpGraph, operator_graph, schedule
from tvm_interop.models import catalog
from tvm_interop.models.describe import node_flops, value_shapes
from tvm_interop.scheduling.given_blocks import part_of

from .record import Check, Record, Table, equal, near, within
from .registry import experiment
from .simulated import choose_2

_COUNTED = "none, because operators and schedules are counted"
TABLE_1 = {
    "randwire": (33, 8, 3.7e9, None, 9.2e22),
    "nasnet_a": (18, 8, 5.2e6, 3.1e5, 7.2e12),
    "squeezenet": (6, 3, 2.2e2, 51, 1.3e2),
}
"""For the largest block of each network: operators, width, bound of transitions, transitions and
schedules."""
_ROUNDED = 0.05
"""The paper rounds its numbers to two digits, so ours may differ from them by a twentieth."""
TABLE_2 = {
    "inception_v3": (11, 119),
    "randwire": (3, 120),
    "nasnet_a": (13, 374),
    "squeezenet": (10, 50),
}
"""Blocks and operators of each network."""


@experiment(
    "ios", "Table 1", "operators, transitions and schedules of the largest blocks", seconds=5
)
def table_1() -> Record:
    """Count the operators, transitions and schedules of the largest block of each network.

    An ending is a set of operators that can be the last stage. The search goes through the endings
    that the authors' code enumerates. IOS's limits on the operators of a group (r) and on the
    groups of an ending (s) are not set.
    """
    checks, rows = [], []
    for name, (ops, width, bound, transitions, schedules) in TABLE_1.items():
        block = _largest(name)
        ours = _counted(block)
        per_chain = block.num_ops / block.width
        ours_bound = choose_2(per_chain + 2) ** block.width
        random_graph = name == "randwire"
        checks += [
            equal(f"{name}: operators n", ops, block.num_ops),
            equal(f"{name}: width d", width, block.width),
            near(f"{name}: bound of transitions", bound, ours_bound, _ROUNDED),
        ]
        if transitions is not None:
            checks.append(near(f"{name}: transitions", transitions, ours[0], 2 * _ROUNDED))
        least, most = (schedules / 10, schedules * 10) if random_graph else (
            schedules * (1 - _ROUNDED), schedules * (1 + _ROUNDED)
        )  # fmt: skip
        checks.append(Check(f"{name}: schedules", schedules, ours[1], least, most))
        rows.append([name, str(block.num_ops), str(block.width), f"{ours_bound:.2g}",
                     f"{ours[0]:,}", f"{ours[1]:.3g}"])  # fmt: skip
    return Record(
        "The table has, for the largest block of each network, the number of operators n, the "
        "width d, the bound of transitions, the real number of transitions and the number of "
        "schedules. The text at hand lacks the row of Inception-V3 and RandWire's transitions.",
        _COUNTED,
        checks,
        why="RandWire's graph is random and its seed unpublished; its number of schedules may "
        "differ by a factor of ten. The blocks of NASNet-A are not spelled out in the paper. We "
        "take the first normal cell, which has as many operators and the same width. One or two "
        "of its edges seem to differ from the authors' cell.",
        remarks="Inception-V3's last block has 11 operators and the width 6. It has 4,871 "
        "transitions and 3,757,392 schedules (`tests/golden/test_ios_counts.py`).",
        tables=[Table("Ours", ["", "n", "d", "bound", "transitions", "schedules"], rows)],
    )


def _largest(name: str) -> OpGraph:
    """The block of a network that IOS's Table 1 counts, as a graph of its own."""
    graph = operator_graph(name)
    if name == "nasnet_a":
        return part_of(graph, [i for i, op in enumerate(graph.names) if op.startswith("cell_0/")])
    ops, width = TABLE_1[name][:2]
    parts = [part_of(graph, block) for block in graph.blocks() if len(block) == ops]
    # RandWire has three blocks of this size and width. A search with eight million transitions has
    # only enough memory to count the block with the fewest edges.
    return min((part for part in parts if part.width == width), key=lambda part: part.num_edges)


def _counted(block: OpGraph) -> tuple[int, float]:
    """The transitions and the schedules of a block.

    Raises
    ------
    ValueError: the block is too large to be counted.
    """
    stats = schedule(
        block, "ios", LatencyTable([1.0] * block.num_ops),
        endings="paper", max_group_ops=0, max_groups=0,
    ).stats  # fmt: skip
    if stats["blocks_left"]:
        raise ValueError(f"a block of {block.num_ops} operators is too large: count a smaller one")
    return stats["transitions"], stats["schedules"]


@experiment("ios", "Table 2", "blocks and operators of the networks", seconds=1)
def table_2() -> Record:
    """Count the blocks that are found in the graphs. Blocks of one operator do not count."""
    checks = []
    for name, (blocks, ops) in TABLE_2.items():
        graph = operator_graph(name)
        found = sum(len(block) > 1 for block in graph.blocks())
        checks.append(equal(f"{name}: operators", ops, graph.num_ops))
        checks.append(equal(f"{name}: blocks", blocks, found))
    return Record(
        "Inception-V3 has 11 blocks and 119 operators, RandWire 3 and 120, NASNet-A 13 and 374, "
        "and SqueezeNet 10 and 50.",
        _COUNTED,
        checks,
        why="In the paper, people declare the blocks. Here they are found in the graph, where each "
        "operator before a cut reaches each operator after it. A cell of NASNet-A reads the two "
        "cells before it, so no cut parts its cells. In SqueezeNet every second fire module has "
        "no convolution on its bypass, and falls into a smaller block. RandWire's small first "
        "stage is a block too.",
    )


@experiment("ios", "Figure 1", "computation per convolution falls", seconds=2)
def figure_1() -> Record:
    """Count the multiplications and additions of the convolutions of three networks."""
    vgg = _vgg_16_flops()
    nasnet = _conv_flops("nasnet_a")
    inception = _conv_flops("inception_v3")
    means = [sum(each) / len(each) / 1e6 for each in (vgg, inception, nasnet)]
    return Record(
        "The computation of an average convolution falls from 2,330 MFLOPs in VGG (2013) to 82 in "
        "NASNet-A (2018). The number of convolutions grows.",
        _COUNTED,
        [
            near("VGG: MFLOPs per convolution", 2330, means[0], _ROUNDED),
            near("NASNet-A: MFLOPs per convolution", 82, means[2], 0.25),
            within("Inception-V3 lies between the two, MFLOPs", means[1], means[2], means[0]),
        ],
        why="The paper does not say which kernels of NASNet-A it counts, nor which VGG it takes.",
        remarks=f"We count {len(vgg)} convolutions in VGG-16, {len(inception)} in Inception-V3 and "
        f"{len(nasnet)} in NASNet-A, where a separable convolution counts as two.",
    )


def _conv_flops(name: str) -> list[float]:
    model = catalog.skeleton(name, 1, None)
    shapes = value_shapes(model)
    return [node_flops(node, shapes) for node in model.graph.node if node.op_type == "Conv"]


def _vgg_16_flops() -> list[float]:
    """Operations of each convolution of VGG-16.

    The network is column D of Table 1 of Simonyan and Zisserman, "Very Deep Convolutional
    Networks", 2014.
    """
    flops: list[float] = []
    channels, size = 3, 224
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            flops.append(2.0 * size * size * width * channels * 9)
            channels = width
        size //= 2
    return flops
