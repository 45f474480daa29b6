"""Measures the search time of schedulers on simulated devices.

    python -m benchmarks.search_time [--json]

The search time is the time of the whole call, including the check of the schedule, less the time
spent in the latency model. Latencies come from `paper_device`; on a real device they would be
measured. Each figure is the median of several calls. There are these tables:
- the networks of the papers, with the figures that the papers give;
- IOS in detail, with and without contention, because IOS needs more latencies under contention;
- random graphs of 100 to 10,000 operators;
- our aims for search times, and whether they are met.

The machine should be quiet.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import tvm_interop
from tests.graphs import latencies, layered
from tvm_interop import LatencyTable, OpGraph
from tvm_interop.latency import LatencyModel
from tvm_interop.machine.cpu_name import cpu_model
from tvm_interop.scheduling import OperatorTraits

from .paper_device import paper_network

NETWORKS = (
    *("squeezenet", "inception_v3", "randwire", "nasnet_a"),
    *("googlenet", "bert_base", "t5_encoder"),
)
SIZES = (100, 300, 1000, 3000, 10_000)
GROWING = ("lios", "opara", "nimble", "greedy")
MEASURING = {"auto": "it runs its candidates to choose one"}
"""The schedulers that cannot run without measurements, and why."""
OPTIONS: dict[str, dict[str, Any]] = {
    name: {"streams": 8} for name in ("lios", "lios+", "lios-rand", "lios-rand1", "lios-rand2")
}
"""Options of each scheduler, by name. LIOS has eight streams, as in its paper (section V-A). IOS
needs no options: its defaults, r = 3 and s = 8, are as in its paper."""

PUBLISHED_S = {
    ("lios", "LIOS, Table V"): {
        "squeezenet": 0.05,
        "inception_v3": 0.27,
        "randwire": 0.41,
        "nasnet_a": 1.79,
    },
    ("ios", "LIOS, Table V"): {
        "squeezenet": 0.34,
        "inception_v3": 38.28,
        "randwire": 3775.94,
        "nasnet_a": 2782.66,
    },
    ("opara", "Opara, Table I"): {
        "inception_v3": 0.50e-3,
        "googlenet": 0.27e-3,
        "bert_base": 0.58e-3,
        "t5_encoder": 2.8e-3,
    },
    ("nimble", "Opara, Table I"): {
        "inception_v3": 14.40e-3,
        "googlenet": 5.80e-3,
        "bert_base": 20.8e-3,
        "t5_encoder": 161.4e-3,
    },
}
SOURCES = {
    "LIOS, Table V": "measured on two Intel Xeon Gold 6226R and an RTX 3080; LIOS is in Python; "
    "IOS is as published, and measures stages while it searches",
    "Opara, Table I": "the times are of the stream allocation alone. The CPU is an Intel Xeon Gold "
    "6240 (A100) or a Core i9-10920X (RTX 2080 SUPER); the paper does not say which. The paper "
    "does not say the size of BERT either, and T5 may be the whole model",
}

_LEAST_CALLS, _MOST_CALLS = 3, 15
_ENOUGH_S = 1.0


@dataclass(frozen=True)
class Row:
    """The results of one scheduler on one graph.

    Attributes
    ----------
    operators: number of operators of the graph.
    search_s: median seconds of a call, without the time in the latency model.
    pricing_s: median seconds in the latency model.
    stats: counts of a search by IOS, such as its states and stages; empty for other schedulers.
    """

    scheduler: str
    graph: str
    operators: int
    search_s: float
    pricing_s: float
    stats: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Aim:
    """An aim for the search time of a scheduler on one graph, beside the measured search time.

    Attributes
    ----------
    at_most_s: the aim: the longest search time in seconds.
    search_s: the measured search time in seconds.
    """

    scheduler: str
    graph: str
    at_most_s: float
    search_s: float

    @property
    def is_met(self) -> bool:
        """Whether the search was fast enough for the aim."""
        return self.search_s <= self.at_most_s


class Timed(LatencyModel):
    """A latency model that passes calls on to another model, and adds up the seconds they take."""

    def __init__(self, model: LatencyModel) -> None:
        self.seconds = 0.0
        self._model = model

    def op(self, op: int) -> float:
        began = time.perf_counter()
        found = self._model.op(op)
        self.seconds += time.perf_counter() - began
        return found

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        began = time.perf_counter()
        found = self._model.stages(stages)
        self.seconds += time.perf_counter() - began
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args().json
    on_networks = [row for name in NETWORKS for row in search_network(name)]
    growth = [row for size in SIZES for row in search_random(size)]
    uncontended = [search_ios_without_contention(name) for name in NETWORKS]
    found_aims = aims([*on_networks, *growth])
    if as_json:
        facts = {
            "machine": cpu_model(),
            "networks": [asdict(row) for row in on_networks],
            "ios_without_contention": [asdict(row) for row in uncontended],
            "growth": [asdict(row) for row in growth],
            "aims": [{**asdict(aim), "met": aim.is_met} for aim in found_aims],
            "left_out": MEASURING,
        }
        print(json.dumps(facts, indent=1))
        return
    contended = [row for row in on_networks if row.scheduler == "ios"]
    parts = (
        network_table(on_networks),
        ios_table("operators share a simulated GPU", contended),
        ios_table("operators never slow each other down", uncontended),
        growth_table(growth),
        aim_table(found_aims),
    )
    print(cpu_model(), *parts, sep="\n\n")


def search_network(name: str) -> list[Row]:
    """Run every scheduler on one network."""
    subject = paper_network(name)
    return [
        search(scheduler, name, subject.graph, subject.latency, subject.traits)
        for scheduler in tvm_interop.schedulers()
        if scheduler not in MEASURING
    ]


def search_ios_without_contention(name: str) -> Row:
    """Run IOS on a device where operators never slow each other down.

    On such a device, IOS rules out most stages by bounds, without asking for their latency.
    """
    subject = paper_network(name)
    table = LatencyTable(subject.latency.op_us)
    return search("ios", name, subject.graph, table, subject.traits)


def search_random(num_ops: int) -> list[Row]:
    """Run the schedulers in `GROWING`, which must be fast on large graphs, on a random graph."""
    graph = layered(num_ops, seed=1, layer=16)
    latency = LatencyTable(latencies(num_ops, 0))
    draw = random.Random(0)
    traits = [OperatorTraits(draw.uniform(0, 1e6), draw.uniform(0, 1e5)) for _ in range(num_ops)]
    return [search(name, f"{num_ops:,} operators", graph, latency, traits) for name in GROWING]


def search(
    scheduler: str,
    name: str,
    graph: OpGraph,
    latency: LatencyModel,
    traits: Sequence[OperatorTraits],
) -> Row:
    """Run one scheduler on one graph several times. The first call is not timed."""
    options = OPTIONS.get(scheduler, {})
    if scheduler == "opara":
        options = {"traits": traits}
    took: list[tuple[float, float]] = []
    while len(took) <= _LEAST_CALLS or (len(took) <= _MOST_CALLS and _total_s(took) < _ENOUGH_S):
        timed = Timed(latency)
        began = time.perf_counter()
        schedule = tvm_interop.schedule(graph, scheduler, timed, **options)
        call_s = time.perf_counter() - began
        took.append((call_s - timed.seconds, timed.seconds))
    search_s, pricing_s = (statistics.median(times) for times in zip(*took[1:], strict=True))
    counted = ("states", "transitions", "stages", "stages_priced", "blocks", "parts_cut")
    stats = {key: schedule.stats[key] for key in counted if key in schedule.stats}
    return Row(scheduler, name, graph.num_ops, search_s, pricing_s, stats)


def aims(rows: Iterable[Row]) -> list[Aim]:
    """The aims for the schedulers and graphs in `rows`, with the search times."""
    at_most_s = {
        **{(name, "nasnet_a"): 5e-3 for name in GROWING},
        **{(name, "10,000 operators"): 0.2 for name in GROWING},
        **{("ios", name): 2.0 for name in ("randwire", "nasnet_a")},
    }
    return [
        Aim(row.scheduler, row.graph, at_most_s[row.scheduler, row.graph], row.search_s)
        for row in rows
        if (row.scheduler, row.graph) in at_most_s
    ]


def network_table(rows: Sequence[Row]) -> str:
    """A Markdown table with a line for each scheduler and a column for each network.

    The figures of the papers are below ours.
    """
    found = {(row.scheduler, row.graph): row for row in rows}
    graphs = list(dict.fromkeys(row.graph for row in rows))
    operators = {row.graph: row.operators for row in rows}
    headings = (f"{graph} ({operators[graph]})" for graph in graphs)
    lines = [
        "Search times without the latency model, by network (with its number of operators). "
        "Published figures are below ours.",
        "",
        _line("scheduler", *headings),
        _rule(len(graphs)),
    ]
    for scheduler in dict.fromkeys(row.scheduler for row in rows):
        lines.append(_line(scheduler, *(duration(found[scheduler, g].search_s) for g in graphs)))
        for (whose, source), seconds in PUBLISHED_S.items():
            if whose == scheduler:
                cells = (duration(seconds[g]) if g in seconds else "" for g in graphs)
                lines.append(_line(f"{source}: {scheduler}", *cells))
    lines.append("")
    lines += [f"{source}: {machine}." for source, machine in SOURCES.items()]
    lines += [f"`{name}` did not take part: {why}." for name, why in MEASURING.items()]
    return "\n".join(lines)


def ios_table(device: str, rows: Sequence[Row]) -> str:
    """A Markdown table of the counts and times of IOS, and of the time of the latency model."""
    lines = [
        f"IOS with r = 3 and s = 8, on a simulated device where {device}.",
        "",
        "| network | operators | blocks (cuts) | states | transitions | stages | priced | search "
        "| latency model |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        s = row.stats
        lines.append(
            f"| {row.graph} | {row.operators} | {s['blocks']} ({s['parts_cut']}) "
            f"| {s['states']:,} | {s['transitions']:,} | {s['stages']:,} "
            f"| {s['stages_priced']:,} | {duration(row.search_s)} | {duration(row.pricing_s)} |"
        )
    return "\n".join(lines)


def growth_table(rows: Sequence[Row]) -> str:
    """A Markdown table with a line for each scheduler and a column for each size of the graph.

    The last column tells how the search time grows with the size of the graph.
    """
    graphs = list(dict.fromkeys(row.graph for row in rows))
    found = {(row.scheduler, row.graph): row for row in rows}
    lines = [
        "Search times on random layers of up to 16 operators. Growth is the exponent b of "
        f"time = a n^b, from {graphs[-3]} to {graphs[-1]}. A growth of 1 is linear.",
        "",
        _line("scheduler", *graphs, "growth"),
        _rule(len(graphs) + 1),
    ]
    for scheduler in dict.fromkeys(row.scheduler for row in rows):
        line = [found[scheduler, graph] for graph in graphs]
        times = [duration(row.search_s) for row in line]
        lines.append(_line(scheduler, *times, f"{exponent(line[-3], line[-1]):.2f}"))
    return "\n".join(lines)


def aim_table(found: Sequence[Aim]) -> str:
    """A Markdown table of the aims, and whether they are met."""
    lines = ["Our aims.", "", _line("scheduler", "graph", "at most", "took", ""), _rule(4)]
    lines += [
        _line(
            aim.scheduler,
            aim.graph,
            duration(aim.at_most_s),
            duration(aim.search_s),
            "met" if aim.is_met else "**missed**",
        )
        for aim in found
    ]
    return "\n".join(lines)


def exponent(small: Row, large: Row) -> float:
    """The exponent b of time = a n^b, from the times at two sizes n."""
    return math.log(large.search_s / small.search_s) / math.log(large.operators / small.operators)


def duration(seconds: float) -> str:
    """Seconds as text with three digits, in s or ms."""
    if seconds >= 1000:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _total_s(took: Sequence[tuple[float, float]]) -> float:
    return sum(map(sum, took))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: int) -> str:
    return "|---|" + "--:|" * columns


if __name__ == "__main__":
    main()
