"""Compares the serving simulator with measurements on this CPU, with one stream and with two.

    python -m benchmarks.serving_reality [--json FILE] [--rounds N] [--seconds S] [--quick]

There are three real networks. Each is compiled for one thread, so that two instances can run on two
cores. A round serves the same list of requests first with one stream, then with two. Each result is
the median over rounds. Its noise is half the interquartile range, relative to the median.

The simulator gets the latency of each operator, measured while its network runs alone. It also gets
the work of both cores at once, as a multiple of the work of one core (see `machine_state`). This
multiple is less than two if the cores share resources or other programs compute. For the figures
`predicted with interference`, the simulator also gets an interference. This interference is the
share by which two instances of the first network are slower than the simulator predicts without
interference.

The results also have a ceiling for each network: the highest throughput of two instances with a
core each, relative to one instance on both cores. The ceiling is 2 * t2 / t1, where t1 and t2 are
the latencies of the network with one thread and with two.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import tvm_interop
from benchmarks.machine_state import observe
from benchmarks.options import add_json, add_rounds
from tvm_interop import models
from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.serving import (
    Arrivals,
    ServedModel,
    ServingDevice,
    make_policy,
    simulate_serving,
)

NETWORKS: tuple[tuple[str, int | None], ...] = (
    ("squeezenet", 128), ("resnet50", 96), ("wide_deep", None)
)  # fmt: skip
"""Networks and their image sizes in pixels. Two are convolutional networks, the first bound by
memory traffic and the second by arithmetic. The third is a recommender with small operators."""


def compiled(name: str, image_size: int | None, threads: int = 1) -> Any:
    """Compile a network for sequential execution with `threads` threads.

    With one thread, two instances can run on two cores.
    """
    return tvm_interop.compile(
        models.build(name, image_size=image_size), scheduler="sequential", streams=1,
        threads=threads, providers=["tvm", "onednn"],
    )  # fmt: skip


def inputs_of(artifact: Any) -> dict[str, np.ndarray]:
    """Inputs by name: random numbers from 0 to 1 with a fixed seed, or zeros for integer types."""
    rng = np.random.default_rng(0)
    plan = artifact.plan
    return {
        value.name: (
            rng.random(value.shape) if value.dtype.startswith("float") else np.zeros(value.shape)
        ).astype(value.dtype)
        for value in (plan.values[v] for v in plan.inputs)
    }


class Network:
    """A network, compiled for one thread and for two.

    Attributes
    ----------
    instances: two instances of the network with one thread.
    wide: an instance with two threads; None if `quick`.
    """

    def __init__(self, name: str, image_size: int | None, quick: bool) -> None:
        self.name = name
        artifacts = [compiled(name, image_size, threads) for threads in ((1,) if quick else (1, 2))]
        self.instances = [tvm_interop.GraphModule(artifacts[0]) for _ in range(2)]
        self.wide = None if quick else tvm_interop.GraphModule(artifacts[1])
        inputs = inputs_of(artifacts[0])
        for module in (*self.instances, *([self.wide] if self.wide else ())):
            for key, array in inputs.items():
                module.set_input(key, array)
            module.benchmark(repeat=1, number=3)

    def alone_us(self, module: Any, runs: int) -> float:
        """Median microseconds of `runs` runs of a module alone."""
        return (
            float(np.median([module.benchmark(repeat=1, number=1).mean for _ in range(runs)])) * 1e6
        )

    def served(self, runs: int) -> ServedModel:
        """The network for the simulator: a chain of operators with their measured latencies."""
        module = self.instances[0]
        profiles = [module.profile() for _ in range(runs)]
        op_us = np.median([[row.end_us - row.start_us for row in p] for p in profiles], axis=0)
        # A run also has time between operators. So the latencies are scaled to add up to the time
        # of a run.
        op_us *= self.alone_us(module, runs) / op_us.sum()
        names = [f"{i}:{row.name}" for i, row in enumerate(profiles[0])]
        graph = OpGraph.from_edges(names, [(i - 1, i) for i in range(1, len(names))])
        return ServedModel.priced(self.name, graph, LatencyTable(op_us))


def serve(networks: Sequence[Network], requests: Sequence[int], streams: int) -> dict[str, float]:
    """Serve a list of requests, and return throughput and latencies.

    Parameters
    ----------
    requests: the index of the network of each request.
    streams: number of threads that serve.
    """
    took_us: list[list[float]] = [[] for _ in range(streams)]
    position = itertools.count()
    start = threading.Barrier(streams + 1)

    def work(slot: int) -> None:
        start.wait()
        while (i := next(position)) < len(requests):
            begin = time.perf_counter()
            networks[requests[i]].instances[slot].run()
            took_us[slot].append((time.perf_counter() - begin) * 1e6)

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(streams)]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return _figures(np.concatenate(took_us), time.perf_counter() - begin)


def predict(
    served: Sequence[ServedModel],
    requests: Sequence[int],
    streams: int,
    cores: float,
    interference: float = 0.0,
) -> dict[str, float]:
    """Simulate `serve` with the same requests, and return throughput and latencies.

    Parameters
    ----------
    cores: the work of all cores together in a second, as a multiple of the work of one core alone.
    """
    device = ServingDevice(cores=cores, interference=interference)
    arrivals = Arrivals(np.zeros(len(requests)), np.array(requests, dtype=np.int64))
    total_us = sum(float(served[m].costs[1].op_us.sum()) for m in requests)
    run = simulate_serving(
        served, arrivals, make_policy("streams", streams=streams), device, 4 * total_us / 1e6
    )
    end_us = float(run.finished_us.max())
    return _figures(run.finished_us - run.dequeued_us, end_us / 1e6)


def _figures(took_us: np.ndarray, seconds: float) -> dict[str, float]:
    p50, p99 = np.percentile(took_us, [50, 99]) / 1e3
    return {"throughput": len(took_us) / seconds, "p50_ms": float(p50), "p99_ms": float(p99)}


def _noise(values: Sequence[float]) -> float:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float((high - low) / 2 / middle)


def workloads(networks: Sequence[Network], alone_us: Sequence[float], seconds: float):  # type: ignore[no-untyped-def]
    """Yield the workloads by name: requests for one network only, then for all networks in turn.

    Parameters
    ----------
    alone_us: microseconds of a run of each network alone.
    seconds: approximate length of each workload on one stream.
    """
    for i, network in enumerate(networks):
        yield network.name, [i] * max(20, round(seconds * 1e6 / alone_us[i]))
    if len(networks) > 1:
        turns = max(10, round(seconds * 1e6 / sum(alone_us)))
        yield "all in turn", list(range(len(networks))) * turns


def validate(
    chosen: Sequence[tuple[str, int | None]] = NETWORKS,
    rounds: int = 7,
    seconds: float = 1.0,
    quick: bool = False,
) -> dict[str, Any]:
    """Measure and simulate all workloads, and return the results for JSON.

    The entry `validation` has a row for each workload and number of streams.
    """
    machine = observe().as_dict()
    networks = [Network(name, size, quick) for name, size in chosen]
    alone_us = [network.alone_us(network.instances[0], 20) for network in networks]
    measured: dict[tuple[str, int], list[dict[str, float]]] = {}
    predicted: dict[tuple[str, int], list[dict[str, float]]] = {}
    lists = dict(workloads(networks, alone_us, seconds))
    served: list[ServedModel] = []
    cores: list[float] = []
    for _ in range(rounds):
        # The speed of a machine drifts, so each round measures the latencies of single operators
        # again.
        served = [network.served(10) for network in networks]
        cores.append(max(1.0, min(2.0, observe(0.2).cores_at_once)))
        for name, requests in lists.items():
            for streams in (1, 2):
                measured.setdefault((name, streams), []).append(serve(networks, requests, streams))
                predicted.setdefault((name, streams), []).append(
                    predict(served, requests, streams, cores[-1])
                )
    first = networks[0].name
    slower = [
        said["throughput"] / was["throughput"] - 1
        for said, was in zip(predicted[first, 2], measured[first, 2], strict=True)
    ]
    interference = max(0.0, statistics.median(slower))
    rows = []
    for name, requests in lists.items():
        for streams in (1, 2):
            key = (name, streams)
            with_interference = predict(
                served, requests, streams, statistics.median(cores), interference
            )
            row: dict[str, Any] = {"workload": name, "streams": streams}
            for figure in ("throughput", "p50_ms", "p99_ms"):
                was = [m[figure] for m in measured[key]]
                said = [p[figure] for p in predicted[key]]
                ratios = [a / b for a, b in zip(said, was, strict=True)]
                row[figure] = {
                    "predicted": statistics.median(said),
                    "predicted with interference": with_interference[figure],
                    "measured": statistics.median(was),
                    "predicted over measured": statistics.median(ratios),
                    "noise": _noise(was),
                }
            row["predicted"] = row["throughput"]["predicted"]
            row["measured"] = row["throughput"]["measured"]
            row["noise"] = row["throughput"]["noise"]
            rows.append(row)
    ceilings = {}
    for network in networks:
        if network.wide is not None:
            pairs = [
                (network.alone_us(network.instances[0], 5), network.alone_us(network.wide, 5))
                for _ in range(rounds)
            ]
            ceilings[network.name] = {
                "t1_ms": statistics.median(one for one, _ in pairs) / 1e3,
                "t2_ms": statistics.median(two for _, two in pairs) / 1e3,
                "ceiling": statistics.median(2 * two / one for one, two in pairs),
            }
    return {
        "machine": machine,
        "cores_at_once": cores,
        "interference": interference,
        "validation": rows,
        "ceilings": ceilings,
    }


def table(found: dict[str, Any]) -> str:
    """The results as a Markdown table, then the interference and the ceilings."""
    lines = [
        "| workload | streams | figure | predicted | with interference | measured | "
        "predicted over measured | noise | within 10% |",
        "|---|--:|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in found["validation"]:
        for figure in ("throughput", "p50_ms", "p99_ms"):
            cell = row[figure]
            ratio = cell["predicted over measured"]
            verdict = "" if figure == "p99_ms" else "yes" if abs(ratio - 1) <= 0.1 else "NO"
            lines.append(
                f"| {row['workload']} | {row['streams']} | {figure} | {cell['predicted']:.3g} | "
                f"{cell['predicted with interference']:.3g} | {cell['measured']:.3g} | "
                f"{ratio:.3f} | {cell['noise']:.1%} | {verdict} |"
            )
    lines += [
        "",
        f"Interference that two instances of the first network showed: {found['interference']:.3f}",
        *(
            f"{name}: t1 {c['t1_ms']:.2f} ms, t2 {c['t2_ms']:.2f} ms; no concurrency can serve "
            f"more than 2 * t2 / t1 = {c['ceiling']:.2f} times what one instance on two threads "
            "serves"
            for name, c in found["ceilings"].items()
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_json(parser, "all results")
    add_rounds(parser, 7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a workload on one stream")
    parser.add_argument("--quick", action="store_true", help="one network, three short rounds")
    options = parser.parse_args()
    if options.quick:
        found = validate(NETWORKS[:1], 3, 0.3, quick=True)
    else:
        found = validate(NETWORKS, options.rounds, options.seconds)
    print(table(found))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
