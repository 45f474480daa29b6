"""Runs single cells of the comparison of serving policies.

A cell is a simulated device, a load, a mix of models and a pattern of arrivals. The models come
from the TOP paper. A load of 1 is the throughput of the mix if one instance runs at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.paper_device import network_work
from tvm_interop.latency.described import DeviceDescription, described_latency
from tvm_interop.serving import (
    Arrivals,
    Programs,
    ServedModel,
    ServingDevice,
    ServingRun,
    make_policy,
    on_off,
    periodic,
    poisson,
    simulate_serving,
)
from tvm_interop.serving.devices import SHEETS

NETWORKS = {"inception_v3": 13, "resnet50": 5, "squeezenet": 12}
"""The models of the TOP paper and their numbers of blocks (Table II)."""
BARRIER_US = 10.0
"""Microseconds that a host takes to notice the end of a stage. The engines of IOS and TOP
synchronise in this way."""
WARM_UP = 0.25
"""Share of a run, at its start, in which latencies and queues do not count and policies learn."""

CONTESTANTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "sequential, fifo": ("sequential", {}),
    "sequential, longest queue": ("sequential", {"order": "longest"}),
    **{f"{k} streams": ("streams", {"streams": k}) for k in (2, 4, 6, 8, 12, 24)},
    "4 streams, longest queue": ("streams", {"streams": 4, "order": "longest"}),
    "12 streams, longest queue": ("streams", {"streams": 12, "order": "longest"}),
    "adapted streams": ("streams", {"streams": None}),
    "pos, wait": ("pos", {"absent": "wait"}),
    "pos, skip": ("pos", {"absent": "skip"}),
    "pos, skip, best schedule, no barriers": (
        "pos", {"absent": "skip", "schedule": "best", "barriers": False},
    ),
    "batching, 4": ("batching", {"batch": 4}),
    "batching, 8": ("batching", {"batch": 8}),
    "batching, 8, 2 ms": ("batching", {"batch": 8, "delay_us": 2000.0}),
    "batching, 4, 4 streams": ("batching", {"batch": 4, "streams": 4}),
    "batching, 8, 2 streams": ("batching", {"batch": 8, "streams": 2}),
    "search": ("search", {"budget": 40}),
    "auto": ("auto", {}),
}  # fmt: skip

FIXED_STREAMS = tuple(
    name for name in CONTESTANTS if name.endswith(" streams") and name[0].isdigit()
)


@dataclass(frozen=True)
class Cell:
    """A setting in which policies are compared.

    Attributes
    ----------
    device: name of a data sheet in `SHEETS`.
    interference: interference between running instances, see `ServingDevice`.
    load: rate of requests, relative to the throughput of one instance at a time.
    mix: shares of the models in the requests, as numbers with any sum.
    arrivals: `poisson`, `periodic` or `on_off`.
    requests: number of requests that arrive, on average.
    """

    device: str
    interference: float
    load: float
    mix: tuple[float, ...] = (1, 2, 4)
    arrivals: str = "poisson"
    seed: int = 0
    requests: int = 4000


@functools.cache
def _work(name: str, image_size: int | None) -> tuple[Any, np.ndarray, np.ndarray]:
    graph, one = network_work(name, image_size)
    _, two = network_work(name, image_size, batch=2)
    return graph, one, two


def served_model(
    name: str,
    sheet: DeviceDescription,
    batches: Sequence[int] = (),
    image_size: int | None = None,
) -> ServedModel:
    """A network on the device of a data sheet.

    Memory traffic and floating-point operations are linear in the batch size.

    Parameters
    ----------
    batches: batch sizes above 1 that the model can run.
    """
    graph, one, two = _work(name, image_size)
    prices = {}
    for batch in (1, *batches):
        flops, nbytes, values = (one + (two - one) * (batch - 1)).T
        prices[batch] = described_latency(sheet, flops, nbytes, values)
    model = ServedModel.priced(name, graph, prices[1], prices)
    return model.divided(NETWORKS[name]) if name in NETWORKS else model


@functools.lru_cache(maxsize=64)
def programs_on(
    device: str,
    interference: float,
    batches: tuple[int, ...] = (2, 4, 8),
    sheet_changes: tuple[tuple[str, float], ...] = (),
) -> Programs:
    """The three models of the TOP paper on a device.

    Parameters
    ----------
    sheet_changes: entries in which the device differs from its data sheet, as (name, value).
    """
    sheet = replace(SHEETS[device], **dict(sheet_changes))  # type: ignore[arg-type]
    models = [served_model(name, sheet, batches) for name in NETWORKS]
    serving = replace(ServingDevice.described(sheet, interference), barrier_us=BARRIER_US)
    return Programs(models, serving)


def capacity(programs: Programs, mix: Sequence[float]) -> float:
    """Throughput of a mix in requests a second, if one instance runs at a time."""
    mean_us = sum(share * programs.model_us(m) for m, share in enumerate(mix)) / sum(mix)
    return 1e6 / mean_us


def arrivals_of(cell: Cell, programs: Programs) -> tuple[Arrivals, float]:
    """The arrivals of a cell, and how many seconds they last."""
    total = cell.load * capacity(programs, cell.mix)
    rates = [total * share / sum(cell.mix) for share in cell.mix]
    seconds = cell.requests / total
    if cell.arrivals == "periodic":
        return periodic(rates, seconds), seconds
    if cell.arrivals == "on_off":
        # The length of a burst: about fifty requests of each model.
        length_s = 50 * len(rates) / total
        return on_off(rates, seconds, cell.seed, length_s, length_s), seconds
    return poisson(rates, seconds, cell.seed), seconds


def run_cell(
    cell: Cell, policy: str, programs: Programs | None = None, **more: Any
) -> tuple[ServingRun, dict[str, Any]]:
    """Run one policy in one cell, and return the run and its row of the table.

    Parameters
    ----------
    policy: a key of `CONTESTANTS`.
    programs: the models on the device; None to make them for the cell.
    more: further options of `simulate_serving`.
    """
    made = programs or programs_on(cell.device, cell.interference)
    arrivals, seconds = arrivals_of(cell, made)
    name, options = CONTESTANTS[policy]
    if name == "search":
        options = {**options, "rates": cell.mix}
    run = simulate_serving(
        made.models, arrivals, make_policy(name, **options), made.device, seconds,
        programs=made, **more,
    )  # fmt: skip
    since_us = WARM_UP * run.end_us
    row = {
        "device": cell.device,
        "interference": cell.interference,
        "load": cell.load,
        "mix": list(cell.mix),
        "arrivals": cell.arrivals,
        "seed": cell.seed,
        "policy": policy,
        # Throughput counts from the start of the run, and not from the end of the warm-up. A policy
        # with a backlog at the end of the warm-up could then serve more requests than arrive.
        "throughput": run.throughput(),
        "mean_ms": run.latency(since_us).mean,
        "p50_ms": run.latency(since_us).p50,
        "p99_ms": run.latency(since_us).p99,
        "utilisation": run.utilisation,
        "backlog_variance": run.backlog_variance(since_us),
    }
    return run, row


def verdict(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare `auto` with the best of the other policies in one cell.

    `throughput` is the throughput of `auto` over the highest of the other policies. `p99` is the
    99th percentile of latency of `auto` over the lowest of other fast policies. A policy is fast if
    its throughput is at least 0.99 of the highest of all policies, `auto` included. If no other
    policy is fast, `p99` is 1 and `is_alone` is True.

    Parameters
    ----------
    rows: a row for each policy, as `run_cell` returns it.
    """
    auto = next(row for row in rows if row["policy"] == "auto")
    others = [row for row in rows if row["policy"] != "auto"]
    by_name = {row["policy"]: row for row in others}
    fastest = max(others, key=lambda row: row["throughput"])
    most = max(fastest["throughput"], auto["throughput"])
    as_fast = [row for row in others if row["throughput"] >= 0.99 * most]
    best = min(as_fast, key=lambda row: row["p99_ms"], default=auto)
    fixed = max(
        (row for name, row in by_name.items() if name in FIXED_STREAMS),
        key=lambda row: row["throughput"],
    )
    return {
        **{key: auto[key] for key in ("device", "interference", "load", "mix", "arrivals", "seed")},
        "throughput": auto["throughput"] / fastest["throughput"],
        "p99": auto["p99_ms"] / best["p99_ms"],
        "is_alone": not as_fast,
        "fastest": fastest["policy"],
        "least_p99": best["policy"],
        "over": {
            name: {
                "throughput": auto["throughput"] / row["throughput"],
                "p99": auto["p99_ms"] / row["p99_ms"],
            }
            for name, row in (
                ("sequential", by_name["sequential, fifo"]),
                ("pos, skip", by_name["pos, skip"]),
                ("the best fixed streams", fixed),
            )
        },
    }
