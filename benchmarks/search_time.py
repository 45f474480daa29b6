"""How long schedulers think, with nothing to measure: milliseconds, the median of several calls.

python -m benchmarks.search_time [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import tvm_interop
from tests.graphs import latencies, layered, randwire
from tvm_interop import LatencyTable, OpGraph
from tvm_interop.machine import cpu_model

CALLS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    rows = [
        row("374 operators", layered(374, 1, layer=16), "lios", streams=4),
        row("374 operators", layered(374, 1, layer=16), "greedy"),
        row("10,000 operators", layered(10_000, 1, layer=16), "lios", streams=4),
        row("10,000 operators", layered(10_000, 1, layer=16), "greedy"),
        *(row(f"one random block, seed {s}", randwire(33, s), "ios") for s in (9, 20, 22)),
    ]
    if as_json:
        print(json.dumps({"machine": cpu_model(), "rows": rows}))
        return
    print(cpu_model())
    for found in rows:
        print(
            f"{found['scheduler']:8s}{found['graph']:28s}{found['operators']:7d} operators  "
            f"width {found['width']:<5d}{found['search_ms']:10.2f} ms  {found['stats']}"
        )


def row(what: str, graph: OpGraph, scheduler: str, **options: int) -> dict[str, object]:
    """Run one scheduler on one graph; the search alone, without pricing."""
    latency = LatencyTable(latencies(graph.num_ops, 0))
    width = graph.width  # Kept by the graph: found once, it costs the calls below nothing.
    search_ms = []
    for _ in range(CALLS):
        began = time.perf_counter()
        schedule = tvm_interop.schedule(graph, scheduler, latency=latency, **options)
        total_us = (time.perf_counter() - began) * 1e6
        assert schedule.stats["search_us"] <= total_us
        search_ms.append(schedule.stats["search_us"] / 1e3)
    counts = {
        key: value
        for key, value in schedule.stats.items()
        if key in ("states", "transitions", "stages_priced", "parts_cut")
    }
    return {
        "graph": what,
        "operators": graph.num_ops,
        "width": width,
        "scheduler": scheduler,
        "search_ms": statistics.median(search_ms),
        "stats": counts,
    }


if __name__ == "__main__":
    main()
