"""How many stages the learned search spares, and what its schedule is worth.

    python -m benchmarks.learned_search [NETWORK ...] [--exhaustive | --only-learned]
                                        [--budget SECONDS] [--json] [--databases FOLDER]
                                        [--beside FOLDER]

For each network IOS is run twice on the same kernels: with every stage measured that may matter
(with `--exhaustive` every stage there is), and with most predicted. Each starts from a database
that holds what choosing the kernels measured, and nothing else. Then both schedules and sequential
execution run against each other, interleaved. Last, with two networks or more, each is predicted by
a model that has learned from the others alone.

`--databases` keeps what was measured. A later run with the same folder takes over the first of the
two searches, which may have taken an hour, and makes the second anew; its last part is about all
networks in the folder.

`--only-learned` leaves out the search with every stage measured, and sequential execution is what
the others are compared with. `--beside` names a folder with schedules that something else has found
on the same kernels, such as an older release: `NETWORK.NAME.json`, as `write_schedule` writes them.
They run in the same rounds.

Refuses to measure on a busy machine unless `--force` is given, and then the output says so.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_interop import GraphModule, Schedule, models
from tvm_interop.cli.console import measuring_bar
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.latency.learned import (
    LearnedLatency,
    PredictionError,
    Samples,
    prediction_error,
    samples_of,
)
from tvm_interop.measure.exchange import export_lines, import_lines
from tvm_interop.measure.store import LatencyStore

from . import harness, machine_state
from .bench import random_feed

DEFAULT = ("squeezenet", "inception_v3", "randwire", "nasnet_a")
MEASURED, LEARNED, SEQUENTIAL = "measured", "learned", "sequential"


@dataclass
class Searched:
    """One search.

    Attributes
    ----------
    stages_measured: of several operators, run in this search.
    minutes: of the whole search, operators alone included.
    predicted_us: the schedule's latency by the sum of its stages.
    rounds: of the learned search: stages measured, best latency and held-out error of each.
    """

    stages: int
    stages_measured: int
    minutes: float
    predicted_us: float
    rounds: list[dict[str, Any]]


@dataclass
class Found:
    """One network's figures: ratios of latencies, interleaved, to those of one schedule.

    Attributes
    ----------
    compared_with: the schedule: the measured search's, or sequential execution without one.
    ratio: of the learned search's schedule; below 1 it is faster.
    sequential_ratio: of sequential execution.
    noise_ratio: of the schedule compared with, to itself.
    beside: by name of a schedule brought along: its ratio, and the interval of that.
    times_fewer: stages measured by the measured search over those by the learned one.
    """

    network: str
    searches: dict[str, Searched]
    compared_with: str
    ratio: float
    ratio_interval: tuple[float, float]
    sequential_ratio: float
    noise_ratio: float
    beside: dict[str, tuple[float, tuple[float, float]]]
    times_fewer: float | None


def main() -> int:
    arguments = parse_arguments()
    machine = machine_state.observe_quiet(arguments.force)
    if machine is None:
        return 2
    with kept_or_temporary(arguments.databases) as folder:
        found = [compare(name, arguments, folder) for name in arguments.networks]
        ended = f".{MEASURED}.db"
        stores = {
            path.name.removesuffix(ended): LatencyStore(path)
            for path in sorted(folder.glob(f"*{ended}"))
        }
        transfer = {}
        if len(stores) > 1 and not arguments.only_learned:
            transfer = {name: held_out(name, stores) for name in stores}
    if arguments.json:
        facts = {
            "machine": machine.as_dict(),
            "forced": not machine.is_quiet,
            "networks": [asdict(network) for network in found],
            "held_out": {name: asdict(error) for name, error in transfer.items()},
        }
        print(json.dumps(facts))
        return 0
    if not machine.is_quiet:
        print(f"**The machine was not quiet** ({machine.busy:.0%} busy): no basis for a claim.\n")
    print(table(found))
    for name, error in transfer.items():
        print(
            f"{name}, learned from the others alone: off by {error.mape:.1%}, rank correlation "
            f"{error.spearman:.3f}, {error.stages} stages"
        )
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=DEFAULT, help=", ".join(models.list()))
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--exhaustive", action="store_true", help="measure every stage there is")
    effort.add_argument("--only-learned", action="store_true", help="no search that measures all")
    parser.add_argument("--streams", type=int, help="by default as many as there are cores for")
    parser.add_argument("--parts", type=int, help="1 leaves operators whole; else as `compile`")
    parser.add_argument("--image-size", type=int, help="pixels, for a quick look")
    parser.add_argument("--max-group-ops", type=int, default=3)
    parser.add_argument("--max-groups", type=int, default=8)
    parser.add_argument("--budget", type=float, default=60, help="seconds of interleaved rounds")
    parser.add_argument("--databases", type=Path, help="folder to keep what is measured in")
    parser.add_argument("--beside", type=Path, help="folder of schedules to run beside")
    parser.add_argument("--force", action="store_true", help="measure on a busy machine too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


@contextmanager
def kept_or_temporary(folder: Path | None) -> Iterator[Path]:
    """The folder, made where it is missing; without one, one that is gone at the end."""
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def compare(network: str, arguments: argparse.Namespace, folder: Path) -> Found:
    """Search twice, each from scratch, and run what was found.

    Raises
    ------
    ValueError: what is kept of the measured search was made with other options.
    ScheduleError: a schedule brought along is of other operators.
    """
    brought = brought_along(network, arguments.beside)
    model = models.build(network, image_size=arguments.image_size)
    limits = {"max_group_ops": arguments.max_group_ops, "max_groups": arguments.max_groups}
    paths = {name: folder / f"{network}.{name}.db" for name in (MEASURED, LEARNED)}
    kernels = folder / f"{network}.kernels.jsonl"
    searches: dict[str, Searched] = {}
    schedules: dict[str, Schedule] = {}
    with measuring_bar() as progress:
        print(f"{network}: choosing kernels", file=sys.stderr, flush=True)
        options = CompileOptions(
            streams=arguments.streams,
            parts=arguments.parts,
            latency_db=paths[MEASURED],
            progress=progress,
        )
        measuring = Compilation(model, options)
        # Those of other operators are refused here, before the searches.
        artifacts = {name: measuring.artifact(schedule) for name, schedule in brought.items()}
        if not kernels.exists():
            kernels.write_text("\n".join(export_lines(LatencyStore(paths[MEASURED]))))
        # The same latencies of kernels give the same kernels.
        for old in folder.glob(f"{paths[LEARNED].name}*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        import_lines(LatencyStore(paths[LEARNED]), kernels.read_text().splitlines(), str(kernels))
        options.latency_db = paths[LEARNED]
        learning = Compilation(model, options)
        print(f"{network}: search with learned latencies", file=sys.stderr, flush=True)
        schedules[LEARNED], searches[LEARNED] = search_learned(learning, limits)
        if not arguments.only_learned:
            print(f"{network}: search with measured latencies", file=sys.stderr, flush=True)
            schedules[MEASURED], searches[MEASURED] = search_measured(
                measuring,
                {**limits, "bounds": not arguments.exhaustive},
                folder / f"{network}.{MEASURED}.json",
            )
    baseline = SEQUENTIAL if arguments.only_learned else MEASURED
    schedules[SEQUENTIAL] = measuring.sequential()
    feed = random_feed(model)
    artifacts |= {name: measuring.artifact(schedule) for name, schedule in schedules.items()}
    modules = {name: GraphModule(artifact) for name, artifact in artifacts.items()}
    runners = {name: (lambda module=module: module.run(**feed)) for name, module in modules.items()}
    rounds = harness.rounds_for(list(runners.values()), arguments.budget)
    summaries = harness.summarise(harness.measure(runners, baseline, rounds), baseline)
    fewer = None
    if not arguments.only_learned:
        most = searches[MEASURED].stages_measured
        fewer = most / max(searches[LEARNED].stages_measured, 1)
    return Found(
        network,
        searches,
        baseline,
        summaries[LEARNED].ratio,
        summaries[LEARNED].ratio_interval,
        summaries[SEQUENTIAL].ratio,
        summaries[baseline + harness.AGAIN].ratio,
        {name: (summaries[name].ratio, summaries[name].ratio_interval) for name in brought},
        fewer,
    )


def brought_along(network: str, folder: Path | None) -> dict[str, Schedule]:
    """The schedules of a network in a folder, by the name between the network's and `.json`."""
    if folder is None:
        return {}
    paths = sorted(folder.glob(f"{network}.*.json"))
    if not paths:
        raise SystemExit(f"there is no {folder / network}.NAME.json to run beside")
    names = [path.name.removeprefix(f"{network}.").removesuffix(".json") for path in paths]
    for name in names:
        if name in (MEASURED, LEARNED, SEQUENTIAL):
            raise SystemExit(f"{folder}: `{name}` is a name of ours; give the schedule another")
    return {n: Schedule.from_json(p.read_text()) for n, p in zip(names, paths, strict=True)}


def search_learned(compilation: Compilation, limits: dict[str, Any]) -> tuple[Schedule, Searched]:
    """With most stages predicted."""
    began = time.perf_counter()
    search = compilation.search(**limits)
    schedule = search.run()
    minutes = (time.perf_counter() - began) / 60
    rounds = [
        {
            "stages_measured": done.measured,
            "best_us": done.best_us,
            "mape": done.error.mape if done.error.stages else None,
            "spearman": done.error.spearman if done.error.stages > 1 else None,
        }
        for done in search.rounds
    ]
    stats = schedule.stats
    assert schedule.makespan is not None
    return schedule, Searched(
        stats["stages"], stats["stages_measured"], minutes, schedule.makespan, rounds
    )


def search_measured(
    compilation: Compilation, limits: dict[str, Any], figures: Path
) -> tuple[Schedule, Searched]:
    """With all stages measured that may matter; where `figures` are kept, this was done before."""
    began = time.perf_counter()
    latency = compilation.measured_latency
    compilation.schedule("ios", max_group_ops=1, max_groups=1, bounds=False)
    alone = latency.measured
    schedule = compilation.schedule("ios", **limits)
    minutes = (time.perf_counter() - began) / 60
    assert schedule.makespan is not None
    if figures.exists():
        kept = json.loads(figures.read_text())
        if kept["limits"] != limits or latency.measured:
            raise ValueError(f"{figures} is of another search: name another folder")
        return schedule, Searched(**kept["searched"])
    searched = Searched(
        schedule.stats["stages"], latency.measured - alone, minutes, schedule.makespan, []
    )
    figures.write_text(json.dumps({"limits": limits, "searched": asdict(searched)}))
    return schedule, searched


def held_out(network: str, stores: dict[str, LatencyStore]) -> PredictionError:
    """Predict what was measured of `network` by a model that has learned from the others."""
    own = stores[network]
    # One stream's records are of choosing the kernels; stages of several operators need two.
    samples = max(_all_samples(own), key=lambda s: s.setting.streams)
    learned = LearnedLatency(samples.table, samples.setting)
    seen = {record.key for record in own.records()}
    for other, store in stores.items():
        if other != network:
            records = [record for record in store.records() if record.key not in seen]
            learned.observe_records(records, store.workloads())
    several = [i for i, stage in enumerate(samples.batch) if sum(map(len, stage)) > 1]
    predicted_us = learned.stages([samples.batch[i] for i in several])
    return prediction_error(predicted_us, samples.latency_us[several])


def _all_samples(store: LatencyStore) -> list[Samples]:
    records = store.records()
    here = next(record.setting for record in records if record.setting is not None)
    return samples_of(records, store.workloads(), here)


def table(found: list[Found]) -> str:
    """Markdown."""
    lines = [
        "| network | stages | measured: stages, minutes | learned: stages, minutes | fewer "
        "| held-out error, last round | compared with | learned (95%) | sequential | beside it "
        "| noise |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for network in found:
        learned = network.searches[LEARNED]
        every = network.searches.get(MEASURED)
        errors = [r["mape"] for r in learned.rounds if r["mape"] is not None]
        low, high = network.ratio_interval
        beside = ", ".join(f"{name} {ratio:.3f}" for name, (ratio, _) in network.beside.items())
        lines.append(
            f"| {network.network} | {learned.stages} "
            f"| {f'{every.stages_measured}, {every.minutes:.1f}' if every else ''} "
            f"| {learned.stages_measured}, {learned.minutes:.1f} "
            f"| {f'{network.times_fewer:.1f} x' if network.times_fewer else ''} "
            f"| {errors[-1] if errors else np.nan:.1%} | {network.compared_with} "
            f"| {network.ratio:.3f} ({low:.3f} to {high:.3f}) | {network.sequential_ratio:.3f} "
            f"| {beside} | {network.noise_ratio:.3f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
