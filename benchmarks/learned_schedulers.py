"""Measures how many measurements learned latencies save, and how much worse the schedules are.

    python -m benchmarks.learned_schedulers --databases FOLDER --json FILE [--only PART]

There are three parts, all on small networks:
- *Schedulers*: each scheduler runs with all latencies measured and with few measured, from empty
  databases. Both schedules then run in interleaved rounds. `multi-gpu` also runs on two simulated
  A40s, where its schedules are compared by simulation.
- *Targets*: latencies that were measured for one CPU target predict the latencies of a second
  target, without and with a few measurements of the second target.
- *Choice*: the learned search of IOS chooses the stages to measure. Its choice is compared with an
  equal number of stages drawn at random. Both choices read latencies from a recorded device, a file
  with the latencies of all stages. The schedule from each choice is compared with the best
  schedule.

The folder keeps the recorded devices, and a later run reads them from there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from tvm_interop import OpGraph, Schedule, schedule
from tvm_interop.compiler.api import Compilation
from tvm_interop.errors import LatencyError
from tvm_interop.latency.base import LatencyOver
from tvm_interop.latency.described import DEVICES
from tvm_interop.latency.learned import Floats, LearnedLatency, Samples, samples_of
from tvm_interop.latency.learned_operators import LearnedOperators
from tvm_interop.latency.measurement import Record, Workload
from tvm_interop.measure.active import ActiveSearch, ExpectedLatency
from tvm_interop.measure.few_measured import FewMeasured
from tvm_interop.measure.few_search import search_with_few
from tvm_interop.measure.store import LatencyStore
from tvm_interop.scheduling.paired_rounds import paired_ratio

from . import machine_state
from .learned_devices import (
    LIMITS,
    STAGED,
    TARGETS,
    MeasuredOn,
    RecordedDevice,
    SimulatedDevice,
    compilation,
    database,
    record,
)
from .paper_device import network_work, paper_network

SCHEDULERS: dict[str, dict[str, Any]] = {
    "ios": LIMITS,
    "auto": {**LIMITS, "time_budget_s": 20.0},
    "multi-gpu": {"gpus": 1, "time_budget_s": 10.0},
    "greedy": {},
    "lios+": {},
}
"""The schedulers that run on this CPU, with their options."""
SIMULATED = {"squeezenet": 224, "inception_v3": 299}
"""The networks on two simulated GPUs, and the height and width of their images."""
SEEDS = 8
OWN = (0, 4, 8, 16)
"""The numbers of operators that are measured on the second target, one for each experiment."""
OWN_STAGES = (0, 24)
CHOSEN = "googlenet"
"""The network on which the choices of stages to measure are compared. It has many stages."""
BUDGETS = (24, 48, 96)
"""The numbers of stages that may be measured, one for each experiment."""
ROUNDS = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--databases", type=Path, required=True, help="folder of recorded devices")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--only", choices=[*PARTS], help="run one part, and keep the others")
    given = parser.parse_args()
    machine = machine_state.observe()
    for target in TARGETS:
        record(target, given.databases)
    found = json.loads(given.json.read_text()) if given.only else {"made": {}}
    found |= {"machine": machine.as_dict(), "seeds": SEEDS}
    for name in [given.only] if given.only else PARTS:
        found[name] = PARTS[name](given.databases)
        found["made"][name] = {"commit": machine.commit, "date": machine.date}
    given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


# The functions from here on measure the part *Schedulers* (see the top of this file).


def by_scheduler(folder: Path) -> list[dict[str, Any]]:
    """Run each scheduler on each network with all latencies measured, and with few."""
    return [_one_scheduler(network, name) for network in STAGED for name in SCHEDULERS]


def _one_scheduler(network: str, name: str) -> dict[str, Any]:
    print(f"{network}, {name}", file=sys.stderr, flush=True)
    target = next(iter(TARGETS))
    ways: dict[str, tuple[Compilation, Schedule, float]] = {}
    counts: dict[str, tuple[int, int]] = {}
    for way, latency in (("full", None), ("few", "learned")):
        with tempfile.TemporaryDirectory() as folder:
            made = compilation(network, target, Path(folder) / "latency.db")
            assert made.loaded_kernels, "compiled before the clock starts"
            began = time.perf_counter()
            found = made.schedule(name, latency, **SCHEDULERS[name])
            ways[way] = made, found, time.perf_counter() - began
            counts[way] = _measured(LatencyStore(Path(folder) / "latency.db"))
    home = ways["full"][0]
    running = [ways["full"][1], ways["few"][1], home.sequential()]
    times = np.array(list(islice(home.measure(running), ROUNDS)))
    full_us, few_us, sequential_us = times.T
    compared = paired_ratio(few_us, full_us)
    stats = ways["few"][1].stats
    return {
        "network": network,
        "scheduler": name,
        "operators": {way: ops for way, (ops, _) in counts.items()},
        "stages": {way: stages for way, (_, stages) in counts.items()},
        "seconds": {way: seconds for way, (_, _, seconds) in ways.items()},
        "ratio": compared.ratio,
        "ratio_interval": compared.interval,
        "sequential_ratio": paired_ratio(sequential_us, full_us).ratio,
        "mape": stats.get("mape"),
        "rounds": stats.get("rounds"),
    }


def _measured(store: LatencyStore) -> tuple[int, int]:
    """The numbers of different measured operators, and of measured stages of several operators."""
    sizes = [sum(map(len, record.groups)) for record in store.records() if record.groups]
    return sizes.count(1), sum(size > 1 for size in sizes)


def by_network(folder: Path) -> list[dict[str, Any]]:
    """The results of `on_two_gpus` for each network."""
    return [on_two_gpus(network) for network in SIMULATED]


def on_two_gpus(network: str) -> dict[str, Any]:
    """`multi-gpu` on two simulated A40s, with all latencies measured, and with few measured."""
    print(f"{network}, two GPUs", file=sys.stderr, flush=True)
    size = SIMULATED[network]
    subject = paper_network(network, DEVICES["a40"], size)
    _, work = network_work(network, size)
    graph = subject.graph
    options = {"gpus": 2, "time_budget_s": 30.0}
    full, few = (SimulatedDevice(subject.latency, work.tolist(), "a40") for _ in range(2))
    everything = schedule(graph, "multi-gpu", MeasuredOn(full, subject.latency), **options)
    link = DEVICES["a40"].link
    assert link is not None
    model = FewMeasured(few.workloads, few.setting, few, transfers=link.transfers(graph))
    found = search_with_few(lambda m: schedule(graph, "multi-gpu", m, **options), graph, model)
    us = [made.simulate(graph, subject.latency) for made in (everything, found)]
    alone = schedule(graph, "sequential", subject.latency).simulate(graph, subject.latency)
    return {
        "network": network,
        "stages": {"full": _several(full), "few": _several(few)},
        "ratio": us[1] / us[0],
        "sequential_ratio": alone / us[0],
        "rounds": found.stats["rounds"],
        "mape": found.stats["mape"],
    }


def _several(device: SimulatedDevice) -> int:
    """The number of different stages of several operators that were measured on a device."""
    return sum(key.count("'") > 2 for key in device.taken)


# The functions from here on measure the part *Targets* (see the top of this file).


def by_target(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The errors of predictions for each other target from the latencies of the first target."""
    first, *others = (_samples(folder, target) for target in TARGETS)
    rows: dict[str, list[dict[str, Any]]] = {"operators": [], "stages": []}
    for name, other in zip(list(TARGETS)[1:], others, strict=True):
        rows["operators"] += [_operators(name, first, other, own) for own in OWN]
        rows["stages"] += [_stages(name, first, other, own) for own in OWN_STAGES]
    return rows


Recorded = tuple[Samples, dict[str, Workload], list[Record]]


def _samples(folder: Path, target: str) -> Recorded:
    store = LatencyStore(database(folder, target))
    records = store.records()
    if not records:
        raise SystemExit(f"{database(folder, target)} is empty: delete the folder and run again")
    here = next(record.setting for record in records if record.setting is not None)
    found = max(samples_of(records, store.workloads(), here), key=lambda s: len(s.batch))
    return found, store.workloads(), records


def _operators(name: str, first: Recorded, other: Recorded, own: int) -> dict[str, Any]:
    """Predict the latencies of single operators on the target `other`, with several seeds.

    The result has the errors and rank correlations of two predictions. One has learned from all
    operators of the target `first` and from `own` operators of `other`. The other has learned only
    from these `own` operators, and is left out if `own` is 0.
    """
    (source, source_work, _), (samples, work, _) = first, other
    workloads = [work[hash_] for hash_ in samples.hashes]
    us = samples.table.latency_us
    errors: dict[str, list[Error]] = {"from both": [], "from its own": []}
    for seed in range(SEEDS if own else 1):
        order = np.random.default_rng(seed).permutation(len(us))
        known, rest = order[:own], order[own:]
        for way in errors:
            model = LearnedOperators(samples.setting, seed)
            if way == "from both":
                model.observe_elsewhere(
                    [samples.setting] * len(source.hashes),
                    [source_work[hash_] for hash_ in source.hashes],
                    source.table.latency_us,
                )
            model.observe([workloads[int(i)] for i in known], us[known])
            try:
                predicted = model.predict([workloads[int(i)] for i in rest]).us
            except LatencyError:
                continue  # Without any measurements there is nothing to learn from.
            errors[way].append(_error(predicted, us[rest]))
    return {"target": name, "own": own, "of": len(us), **_means(errors)}


def _stages(name: str, first: Recorded, other: Recorded, own: int) -> dict[str, Any]:
    """Predict the latencies of stages of several operators on the target `other`.

    The predictions and the result are as in `_operators`, with stages in place of operators. The
    latencies of all single operators are measured on `other` itself.
    """
    (source, source_work, stored), samples = first, other[0]
    # A latency model usually learns only from its own device. Here it must also learn from the
    # target `first`.
    here = samples.setting
    records = [
        structs.replace(r, setting=structs.replace(source.setting, device=here.device))
        for r in stored
        if r.setting == source.setting
    ]
    several = [i for i, groups in enumerate(samples.batch) if sum(map(len, groups)) > 1]
    errors: dict[str, list[Error]] = {"from both": [], "from its own": []}
    for seed in range(SEEDS if own else 1):
        order = np.random.default_rng(seed).permutation(several)
        known, rest = order[:own].tolist(), order[own:].tolist()
        stages = [samples.batch[i] for i in rest]
        for way in errors:
            model = LearnedLatency(samples.table, samples.setting, seed)
            if way == "from both":
                model.observe_records(records, source_work)
            model.observe([samples.batch[i] for i in known], samples.latency_us[known])
            if model.num_samples:
                errors[way].append(_error(model.stages(stages), samples.latency_us[rest]))
    return {"target": name, "own": own, "of": len(several), **_means(errors)}


# The functions from here on measure the part *Choice* (see the top of this file).


def by_choice(folder: Path) -> list[dict[str, Any]]:
    """The choice of stages by the learned search, against a random choice, on a recorded device."""
    target = next(iter(TARGETS))
    made = compilation(CHOSEN, target, database(folder, target))
    latency, graph = made.measured_latency, made.graph
    everything = schedule(graph, "ios", AsRecorded(latency), bounds=False, streams=2, **LIMITS)
    best_us = everything.simulate(graph, latency)
    rows = []
    for budget in BUDGETS:
        print(f"choice of {budget} stages", file=sys.stderr, flush=True)
        off: dict[str, list[float]] = {"active": [], "random": []}
        for seed in range(SEEDS):
            for way, expected in (
                ("active", _actively(graph, RecordedDevice(latency, graph.num_ops), budget, seed)),
                ("random", _at_random(graph, RecordedDevice(latency, graph.num_ops), budget, seed)),
            ):
                chosen = schedule(graph, "ios", expected, streams=2, **LIMITS)
                off[way].append(chosen.simulate(graph, latency) / best_us - 1)
        rows.append(
            {
                "network": CHOSEN,
                "stages": everything.stats["stages"],
                "measured": budget,
                **{way: mean_interval(values) for way, values in off.items()},
            }
        )
    return rows


class AsRecorded(LatencyOver):
    """Latencies from a recorded device, which are never measured a second time.

    A second measurement of a latency could differ from the recorded one. Then another schedule
    could be the best, and the comparison with the best schedule would be wrong.
    """

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        return 0


def _actively(graph: OpGraph, device: RecordedDevice, budget: int, seed: int) -> ExpectedLatency:
    """Measure the stages that the learned search chooses."""
    learned = LearnedLatency(device.table, device.setting, seed)
    search = ActiveSearch(
        graph, device, learned, streams=2, max_measurements=budget, seed=seed, **LIMITS
    )
    search.run()
    return ExpectedLatency(search)


def _at_random(graph: OpGraph, device: RecordedDevice, budget: int, seed: int) -> ExpectedLatency:
    """Measure `budget` stages, which are drawn at random from all that IOS considers."""
    learned = LearnedLatency(device.table, device.setting, seed)
    search = ActiveSearch(
        graph, device, learned, streams=2, max_measurements=0, seed=seed, **LIMITS
    )
    stages = [search.candidates[int(i)] for i in range(len(search.candidates))]
    several = [groups for groups in stages if sum(map(len, groups)) > 1]
    draw = np.random.default_rng(seed).permutation(len(several))[:budget]
    drawn = [several[int(i)] for i in draw]
    learned.observe(drawn, device.stages(drawn))
    return ExpectedLatency(search)


# The functions from here on compute statistics for all parts.

Error = tuple[float, float]
"""The names of two results: the median relative error, and the rank correlation."""


def _error(predicted_us: Floats, measured_us: Floats) -> Error:
    from scipy.stats import spearmanr

    off = np.median(np.abs(predicted_us - measured_us) / measured_us)
    return float(off), float(spearmanr(predicted_us, measured_us).statistic)


def _means(errors: dict[str, list[Error]]) -> dict[str, Any]:
    """For each way to predict, the mean error and the mean rank correlation, with intervals."""
    return {
        way: {
            "error": mean_interval([off for off, _ in found]),
            "rank_correlation": mean_interval([rank for _, rank in found]),
        }
        for way, found in errors.items()
        if found
    }


def mean_interval(values: Sequence[float]) -> dict[str, float]:
    """The mean over seeds, and the ends of its 95% interval by Student's distribution."""
    from scipy.stats import t

    mean = float(np.mean(values))
    if len(values) < 2:
        return {"mean": mean, "low": mean, "high": mean}
    half = float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return {"mean": mean, "low": mean - half, "high": mean + half}


PARTS = {
    "schedulers": by_scheduler,
    "two_gpus": by_network,
    "targets": by_target,
    "choice": by_choice,
}
"""The parts by name. Each takes the folder of recorded devices."""


if __name__ == "__main__":
    sys.exit(main())
