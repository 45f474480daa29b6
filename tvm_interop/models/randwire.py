"""RandWire (Xie et al., 2019), as in the papers on IOS and LIOS: random graphs of ReLU-SepConvs."""

from __future__ import annotations

import numpy as np

from .onnx_net import OnnxNet

GRAPH_SEED = 291
"""Seed of the four graphs. With this seed, the network has 120 schedule units and 260 edges, as in
the paper on LIOS."""

_CHANNELS = 154
_STAGES = (16, 32, 32, 32)
"""Number of operators in each random graph."""
_NEIGHBOURS = 4
_REWIRED = 0.75
_HEAD_CHANNELS = 1280


def randwire(net: OnnxNet, batch: int, image_size: int) -> None:
    """RandWire for images of 3x224x224 by default; four Watts-Strogatz graphs WS(4, 0.75).

    The network has four random graphs, one after the other, each of which is a stage. The graphs
    have 16, 32, 32 and 32 operators with 154, 308, 616 and 1232 channels. An operator sums its
    inputs and applies a 3x3 ReLU-SepConv. Operators that read no operator of their graph read the
    input of the stage, with stride 2. The output of the stage is the sum of the results that no
    operator of the graph reads.

    The wiring has a seed of its own, `GRAPH_SEED` (291), and does not depend on the seed of the
    weights. The seed is the first whose graphs agree with the papers: they have as many schedule
    units and edges as the papers count, and a width of at most 8. The papers' own generator is not
    seeded.
    """
    x = net.input("image", (batch, 3, image_size, image_size))
    x = net.conv(x, "stem", _CHANNELS // 2, 3, stride=2, act=False)
    for i, edges in enumerate(wiring(GRAPH_SEED)):
        x = _stage(net, x, f"stage_{i + 1}", _STAGES[i], edges, _CHANNELS << i)
    x = net.relu(x, "head/relu")
    x = net.conv(x, "head", _HEAD_CHANNELS, act=False)
    net.output(net.classifier(x, "classifier"), "logits")


def wiring(seed: int) -> list[list[tuple[int, int]]]:
    """The edges of the four graphs, sorted. Each edge leads from an operator to an operator with a
    higher number.
    """
    rng = np.random.default_rng(seed)
    return [watts_strogatz(n, _NEIGHBOURS, _REWIRED, rng) for n in _STAGES]


def watts_strogatz(
    n: int, neighbours: int, rewired: float, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """A random graph: a ring of vertices linked to their neighbours, with some edges rewired.

    The method is from Watts and Strogatz, Nature 393 (1998). At first, each of the `n` vertices has
    edges to its nearest `neighbours` vertices on the ring. Then each edge is rewired with
    probability `rewired`: an edge from vertex i to vertex i + d now leads from i to a random vertex
    to which i has no edge.
    """
    connected = np.eye(n, dtype=bool)
    for distance in range(1, neighbours // 2 + 1):
        for i in range(n):
            j = (i + distance) % n
            connected[i, j] = connected[j, i] = True
    for distance in range(1, neighbours // 2 + 1):
        for i in range(n):
            j = (i + distance) % n
            free = np.flatnonzero(~connected[i])
            if rng.random() < rewired and len(free) > 0:
                new = int(free[int(rng.random() * len(free))])
                connected[i, j] = connected[j, i] = False
                connected[i, new] = connected[new, i] = True
    return [(int(i), int(j)) for i, j in np.argwhere(np.triu(connected, 1))]


def _stage(
    net: OnnxNet, x: str, stage: str, n: int, edges: list[tuple[int, int]], channels: int
) -> str:
    outputs: list[str] = []
    for i in range(n):
        name = f"{stage}/op_{i}"
        sources = [outputs[u] for u, v in edges if v == i]
        if not sources:
            outputs.append(net.relu_sep_conv(x, name, channels, stride=2))
        else:
            outputs.append(net.relu_sep_conv(_sum(net, sources, name), name, channels))
    read = {u for u, _ in edges}
    return _sum(net, [outputs[i] for i in range(n) if i not in read], stage)


def _sum(net: OnnxNet, values: list[str], name: str) -> str:
    return net.add(values, name) if len(values) > 1 else values[0]
