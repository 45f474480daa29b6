"""Counts the stages whose latency IOS asks for, with its bounds on latencies and without them.

    python -m benchmarks.stages_priced [NETWORK ...] [--json]

The bounds tell IOS that some stages cannot be part of the best schedule. IOS searches once with
bounds and once without. Both searches ask the same latency model and must find the same schedule.
The devices are simulated (see `paper_device`), so the counts are the same on every machine.

The bounds rule out fewer stages if operators slow each other down a lot. In this case a stage may
take far longer than its longest group. Its bound is then too low to rule it out, so its latency
must be asked for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tvm_interop
from tvm_interop import LatencyTable, models
from tvm_interop.latency import LatencyModel

from .paper_device import TWO_CORES, V100, PaperNetwork, paper_network

DEFAULT = ("squeezenet", "inception_v3", "randwire", "nasnet_a")
LIMITS = {"max_group_ops": 3, "max_groups": 8}
"""The limits r and s of the IOS paper: operators of a group, and groups of a stage."""


def _alone(network: str) -> tuple[PaperNetwork, LatencyModel]:
    subject = paper_network(network, V100)
    return subject, LatencyTable(subject.latency.op_us)


def _on_v100(network: str) -> tuple[PaperNetwork, LatencyModel]:
    subject = paper_network(network, V100)
    return subject, subject.latency


def _on_two_cores(network: str) -> tuple[PaperNetwork, LatencyModel]:
    subject = paper_network(network, TWO_CORES)
    return subject, subject.latency


DEVICES: dict[str, tuple[Callable[[str], tuple[PaperNetwork, LatencyModel]], dict[str, Any]]] = {
    "V100": (_on_v100, {}),
    "V100, no contention": (_alone, {}),
    "2 CPU cores": (_on_two_cores, {"streams": 2}),
    "2 CPU cores, bound by cores": (_on_two_cores, {"streams": 2, "cores": 2}),
}
"""For each device, by name: a function that makes a network's latency model, and options of IOS."""


@dataclass(frozen=True)
class Row:
    """The searches for one network on one device.

    Attributes
    ----------
    blocks, parts_cut: number of blocks that were searched one by one, and of cuts in blocks that
        were too large. The schedule is optimal between the cuts.
    transitions: number of transitions of the search.
    full, bounded: number of stages whose latency was asked for, without bounds and with them.
    sequential_us, optimum_us: microseconds of sequential execution, and of the schedule that both
        searches found.
    """

    network: str
    device: str
    operators: int
    blocks: int
    parts_cut: int
    transitions: int
    full: int
    bounded: int
    sequential_us: float
    optimum_us: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=DEFAULT, help=", ".join(models.list()))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    rows = [count(network, device) for network in options.networks for device in DEVICES]
    if options.json:
        print(json.dumps({**LIMITS, "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print(table(rows))


def count(network: str, device: str) -> Row:
    """Search with bounds and without for one network on one device, and count the stages.

    Raises
    ------
    RuntimeError: the searches find different schedules.
    """
    price, options = DEVICES[device]
    subject, latency = price(network)

    def search(bounds: bool) -> tvm_interop.Schedule:
        return tvm_interop.schedule(
            subject.graph, "ios", latency, bounds=bounds, **LIMITS, **options
        )

    full, bounded = search(bounds=False), search(bounds=True)
    if bounded != full:
        raise RuntimeError(
            f"{network} on {device}: the searches with and without bounds must find the same "
            f"schedule, but theirs take {bounded.makespan} us and {full.makespan} us"
        )
    assert full.makespan is not None
    return Row(
        network,
        device,
        subject.graph.num_ops,
        bounded.stats["blocks"],
        bounded.stats["parts_cut"],
        bounded.stats["transitions"],
        full.stats["stages_priced"],
        bounded.stats["stages_priced"],
        float(subject.latency.op_us.sum()),
        full.makespan,
    )


def table(rows: Sequence[Row]) -> str:
    """The counts as a Markdown table."""
    lines = [
        f"IOS, r = {LIMITS['max_group_ops']}, s = {LIMITS['max_groups']}, on simulated devices; "
        "with and without bounds it finds the same schedule.",
        "",
        "| network | operators | blocks (cuts) | transitions | device | latencies without bounds "
        "| latencies with bounds | fewer | optimum over sequential |",
        "|---|--:|--:|--:|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.network} | {row.operators} | {row.blocks} ({row.parts_cut}) "
        f"| {row.transitions:,} | {row.device} | {row.full:,} | {row.bounded:,} "
        f"| {row.full / row.bounded:.1f} x | {row.optimum_us / row.sequential_us:.3f} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
