"""IOS: schedules for other batches and devices (section 7.2 and 7.3), simulated block by block."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

from tvm_interop import OpGraph

from .record import Chart, Record, Table, above, equal, near
from .registry import experiment
from .simulated import Found, Subject, given_blocks, made_us, searched, stages_us, subject

NETWORK = "inception_v3"
BATCHES = (1, 16, 32, 64, 128)
TABLE_3_BATCHES = {
    1: {1: 4.03, 32: 4.50, 128: 4.63},
    32: {1: 29.21, 32: 27.44, 128: 27.93},
    128: {1: 105.98, 32: 103.74, 128: 103.29},
}
"""Latencies in milliseconds. The first key is the batch size of the run, and the second key is the
batch size for which the schedule was made."""
TABLE_3_DEVICES = {"k80": {"k80": 13.87, "v100": 14.65}, "v100": {"k80": 4.49, "v100": 4.03}}
"""Latencies in milliseconds. The first key is the GPU that runs the schedule, and the second key is
the GPU for which the schedule was made."""
_RATIO = 0.1
"""How far a ratio of two schedules on one device may be from the paper's."""


@functools.cache
def _at(sheet: str, batch: int) -> tuple[Subject, Found]:
    """Inception-V3 on a device at a batch size, and IOS-Both's schedule for this case."""
    found = subject(NETWORK, sheet, batch)
    return found, searched(found, "ios-both")


def _times_by(
    what: str, ms: Mapping[Any, float], papers: Mapping[Any, Mapping[Any, float]]
) -> Table:
    """A table of times.

    A row has the batch or the GPU of the run. A column has the batch or the GPU for which the
    schedule was made.
    """
    return Table(
        f"Milliseconds, ours (the paper's), by the {what} that runs",
        ["runs", *(f"made for {of}" for of in papers)],
        [
            [str(on), *(f"{ms[on, of]:.2f} ({paper[of]:.2f})" for of in paper)]
            for on, paper in papers.items()
        ],
    )


@experiment("ios", "Table 3 (1)", "schedules made for other batches", seconds=35)
def table_3_batches() -> Record:
    """Run the schedule made for each batch at every batch."""
    ms = {
        (on, of): stages_us(_at("v100", of)[1], _at("v100", on)[0].latency) / 1e3
        for on in TABLE_3_BATCHES
        for of in TABLE_3_BATCHES
    }
    checks = []
    for on, paper in TABLE_3_BATCHES.items():
        for of in paper:
            if on == of:
                continue
            ours = ms[on, of] / ms[on, on]
            what = f"batch {on}: the schedule for {of} over its own"
            checks.append(above(f"{what} is above 1", ours, 1.0, paper[of] / paper[on]))
            checks.append(near(what, paper[of] / paper[on], ours, _RATIO))
    return Record(
        "A schedule that is made for a batch is the fastest at this batch.",
        "a V100, simulated block by block",
        checks,
        why="The simulator has neither caches nor other kernels for larger batches.",
        remarks="The checks compare schedules on one device. The times themselves are in the "
        "table. At larger batches the simulated times are longer than the paper's, because the "
        "tile and the efficiency of a product were fitted at batch 1. cuDNN takes other "
        "algorithms there.",
        tables=[_times_by("batch", ms, TABLE_3_BATCHES)],
    )


@experiment("ios", "Table 3 (2)", "schedules made for another GPU", seconds=8)
def table_3_devices() -> Record:
    """Run the schedule made for a K80 and the schedule made for a V100 on both GPUs."""
    ms = {
        (on, of): stages_us(_at(of, 1)[1], _at(on, 1)[0].latency) / 1e3
        for on in TABLE_3_DEVICES
        for of in TABLE_3_DEVICES
    }
    checks = []
    for on, paper in TABLE_3_DEVICES.items():
        (of,) = {*paper} - {on}
        ours, theirs = ms[on, of] / ms[on, on], paper[of] / paper[on]
        checks.append(above(f"{on}: the schedule for {of} over its own, above 1", ours, 1, theirs))
        checks.append(near(f"{on}: the schedule for {of} over its own", theirs, ours, _RATIO))
    return Record(
        "A schedule that is made for a GPU is the fastest on this GPU.",
        "a K80 and a V100, simulated block by block",
        checks,
        why="The parameters of the simulator were fitted to a V100 only.",
        remarks="The checks compare schedules on one GPU. The simulated K80 is much faster than "
        "the paper's: it reaches the same share of its peak as the V100, and its peak is at the "
        "boost clock. The paper's K80 reaches about a fifth of it.",
        tables=[_times_by("GPU", ms, TABLE_3_DEVICES)],
    )


@experiment("ios", "Figure 10", "the last block of Inception-V3 at batches 1 and 32", seconds=1)
def figure_10() -> Record:
    """Compare the last block's stages at batches 1 and 32, and run each schedule at both."""
    parts = {batch: _last_block(*_at("v100", batch)) for batch in (1, 32)}
    us = {
        (on, of): stages_us(parts[of], _at("v100", on)[0].latency) for on in parts for of in parts
    }
    graph = _at("v100", 1)[0].graph
    last = {"branch3x3dbl_3a", "branch3x3dbl_3b", "branch3x3_2a", "branch3x3_2b"}
    merged = {
        batch: sum(
            kind == "merge" and bool(last & {_short(graph.names[g[0]]) for g in groups})
            for kind, groups in part.stages
        )
        for batch, part in parts.items()
    }
    stages = {
        batch: [
            [
                f"stage {i}",
                kind,
                "; ".join(", ".join(_short(graph.names[o]) for o in g) for g in gs),
            ]
            for i, (kind, gs) in enumerate(part.stages, 1)
        ]
        for batch, part in parts.items()
    }
    return Record(
        "At batch 1 the block has 2 stages, and at batch 32 it has 4. At batch 1 the first "
        "schedule is 28% faster than the second, and at batch 32 the second is 8% faster than the "
        "first. At batch 32 the convolutions f and g, of 3x1 and 1x3, are merged.",
        "a V100, simulated block by block",
        [
            equal("stages at batch 1 (without the concatenation)", 2, _computing(parts[1], graph)),
            equal("stages at batch 32 (without the concatenation)", 4,
                  _computing(parts[32], graph)),
            near("batch 1: the schedule for 32 over its own", 1.28, us[1, 32] / us[1, 1], 0.15),
            near("batch 32: the schedule for 1 over its own", 1.08, us[32, 1] / us[32, 32], 0.15),
            equal("merged pairs of 3x1 and 1x3 at batch 1", 0, merged[1]),
            above("merged pairs of 3x1 and 1x3 at batch 32", merged[32], 0, 1),
        ],
        why="At batch 1 our schedule begins with the three convolutions of 1x1 on the block's "
        "input as one merged operator, which makes a stage more. At batch 32 the simulator merges "
        "nothing in this block: 3x1 and 1x3 would become 3x3, which computes three times as much, "
        "and there are no caches, in which a second reading of the input would cost something.",
        remarks="Our block has one more operator, the concatenation.",
        tables=[
            Table(f"Our stages at batch {batch}", ["", "kind", "groups"], rows)
            for batch, rows in stages.items()
        ],
    )  # fmt: skip


def _last_block(network: Subject, found: Found) -> Found:
    ops = {*max(given_blocks(NETWORK, network.graph), key=lambda b: (len(b) > 1, b))}
    stages = tuple(
        stage for stage in found.stages if ops.issuperset(op for group in stage[1] for op in group)
    )
    return Found(0.0, stages, 0)


def _computing(part: Found, graph: OpGraph) -> int:
    """The number of stages, without stages that hold nothing but the concatenation."""
    return sum(
        any(_short(graph.names[op]) != "concat" for group in groups for op in group)
        for _, groups in part.stages
    )


def _short(name: str) -> str:
    return name.split("/")[1]


@experiment("ios", "Figure 11", "throughput by batch", seconds=45)
def figure_11() -> Record:
    """Images per second of sequential execution and IOS at each batch of the figure."""
    rate = {}
    for batch in BATCHES:
        network, found = _at("v100", batch)
        rate[batch, "sequential"] = batch / made_us(network, "sequential") * 1e6
        rate[batch, "ios"] = batch / found.us * 1e6
    paper = {batch: batch / TABLE_3_BATCHES[batch][batch] * 1e3 for batch in TABLE_3_BATCHES}
    checks = [
        above(f"batch {b}: IOS over sequential", rate[b, "ios"] / rate[b, "sequential"], 1.0)
        for b in BATCHES
    ]
    checks += [
        above(f"batch {b}: throughput over that of batch {a}", rate[b, "ios"] / rate[a, "ios"], 1.0)
        for a, b in itertools.pairwise(BATCHES)
    ]
    checks += [
        near(f"batch {batch}: images per second of IOS", theirs, rate[batch, "ios"], 0.25)
        for batch, theirs in paper.items()
    ]
    series = {
        "IOS, ours": [rate[b, "ios"] for b in BATCHES],
        "sequential, ours": [rate[b, "sequential"] for b in BATCHES],
        "IOS, paper (Table 3)": [paper.get(b) for b in BATCHES],
    }
    return Record(
        "The throughput of IOS rises with the batch, hardly rises any more at 128, and is above "
        "that of sequential execution, TVM with cuDNN, TASO and TensorRT at every batch. The "
        "figure has no numbers; those of batches 1, 32 and 128 follow from Table 3.",
        "a V100, simulated block by block",
        checks,
        why="The tile and the efficiency of a product were fitted at batch 1. At batches 32 and "
        "128 cuDNN has faster algorithms, such as Winograd's, so the paper's throughput is "
        "higher. The other libraries cannot be run without a GPU.",
        charts=[Chart("IOS, Figure 11", "lines", [str(b) for b in BATCHES], series,
                      "images per second")],
    )  # fmt: skip
