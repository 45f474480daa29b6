"""Networks and schedules on GPUs that are simulated block by block, for all papers.

The simulator has the parameters that `benchmarks.block_simulation` fitted to one half of the IOS
paper's times. Data sheets give all other parameters.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tvm_interop import OpGraph, Schedule, schedule
from tvm_interop.latency.base import LatencyModel
from tvm_interop.latency.some_operators import LatencyOfSome
from tvm_interop.scheduling.given_blocks import part_of

from ..block_calibration import Parameters, device
from ..block_simulation import RESULT
from ..paper_kernels import PaperGraph, Work, paper_graph, paper_latency

NETWORKS = ("inception_v3", "randwire", "nasnet_a", "squeezenet")
LIMITS = {"max_group_ops": 3, "max_groups": 8}
"""The limits r and s of the IOS paper: operators of a group, and groups of a stage."""
FEW = {"max_transitions": 20_000}
"""A limit on the transitions of IOS's search.

With this limit, NASNet-A takes a second instead of minutes, but its schedule is a few per cent
slower than that of a complete search of its cells.
"""


_NO_MERGES = ("ios", "ios-parallel")
"""The schedulers that merge no operators."""


@dataclass(frozen=True)
class Subject:
    """A network on a simulated GPU."""

    graph: OpGraph
    latency: LatencyModel
    blocks: tuple[tuple[int, ...], ...]
    work: tuple[tuple[Work, ...], ...]


@dataclass(frozen=True)
class Found:
    """The result of a search on a network.

    Attributes
    ----------
    us: microseconds of all stages together.
    stages: for each stage its kind, `concurrent` or `merge`, and its groups of operators.
    priced: number of stages whose latency the search asked for.
    """

    us: float
    stages: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]
    priced: int


def parameters() -> Parameters:
    """The fitted parameters of the simulator."""
    return Parameters(**json.loads(RESULT.read_text())["parameters"])


def subject(name: str, sheet: str = "v100", batch: int = 1) -> Subject:
    """A network on the GPU with the data sheet `sheet`, divided into blocks by `given_blocks`."""
    network = paper_graph(name, batch=batch)
    graph = network.graph
    return Subject(graph, latency_of(network, sheet), given_blocks(name, graph), network.work)


def latency_of(network: PaperGraph, sheet: str) -> LatencyModel:
    """The latencies of a network on the GPU with the data sheet `sheet`."""
    found = parameters()
    return paper_latency(network, device(found, sheet), found.tile, found.depthwise)


def given_blocks(name: str, graph: OpGraph) -> tuple[tuple[int, ...], ...]:
    """The blocks of a network: for NASNet-A its cells by name, otherwise the blocks of its graph.

    A cell of NASNet-A reads the two cells before it, so that no cut of the graph separates two
    cells.
    """
    if name != "nasnet_a":
        return graph.blocks()
    cells: dict[str, list[int]] = {}
    for op in graph.topological_order():
        cells.setdefault(graph.names[op].split("/")[0], []).append(op)
    return tuple(tuple(ops) for ops in cells.values())


def searched(found: Subject, scheduler: str, **options: Any) -> Found:
    """Call a scheduler for each block, and put the stages of the blocks together.

    Each block must depend only on blocks before it. Blocks with equal kernels and edges have equal
    stages, so only one of these blocks is searched. If operators may be merged, every block is
    searched.
    """
    us, priced = 0.0, 0
    known: dict[object, Schedule] = {}
    stages: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
    for ops in found.blocks:
        part = part_of(found.graph, ops)
        key = (*part.edges, *(found.work[op] for op in ops)) if scheduler in _NO_MERGES else ops
        if key not in known:
            latency = LatencyOfSome(found.latency, ops)
            known[key] = schedule(part, scheduler, latency, **{**LIMITS, **options})
        made = known[key]
        us += made.makespan or 0.0
        priced += made.stats["stages_priced"]
        stages += [
            (stage.kind, tuple(tuple(ops[op] for op in group) for group in stage.groups))
            for stage in made.stages
        ]
    return Found(us, tuple(stages), priced)


def best_us(network: Subject, name: str) -> float:
    """Microseconds of the stages that IOS finds, or IOS-Both if operators can be merged."""
    merges = name in ("inception_v3", "squeezenet")
    return searched(network, "ios-both" if merges else "ios", **(FEW if not merges else {})).us


def stages_us(found: Found, latency: LatencyModel) -> float:
    """Microseconds of the stages of `found` under other latencies, as on another GPU or batch."""
    us = 0.0
    for kind, groups in found.stages:
        if kind == "merge":
            us += float(latency.merges([[op for group in groups for op in group]])[0])
        else:
            us += latency.stage(groups)
    return us


def made_us(network: Subject, scheduler: str, **options: Any) -> float:
    """Microseconds of a schedule that needs no search."""
    made: Schedule = schedule(network.graph, scheduler, network.latency, **options)
    return made.makespan if made.makespan is not None else made.simulate(
        network.graph, network.latency
    )  # fmt: skip


def choose_2(number: float) -> float:
    """The number of pairs among `number` things; `number` may have a fraction."""
    return number * (number - 1) / 2
