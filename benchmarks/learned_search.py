"""Counts the stage measurements that the learned search saves, and measures its schedule.

    python -m benchmarks.learned_search [NETWORK ...] [--exhaustive | --only-learned]
                                        [--budget SECONDS] [--json] [--databases FOLDER]
                                        [--beside FOLDER]

IOS searches each network twice on the same kernels. The measured search uses bounds on latencies to
leave out stages that cannot improve the schedule, and measures all others. With `--exhaustive` it
measures every stage. The learned search predicts most stages. Each search starts from a database
with only the latencies measured for the choice of kernels. Then both schedules and sequential
execution run in interleaved rounds. At the end, if there are two networks or more, a latency model
that has learned from all other networks predicts the stages of each network.

`--databases` keeps the measurements in a folder. A later run with the same folder reuses the
results of the measured search, which may have taken an hour, and repeats the learned search. At the
end, the latencies of each network in the folder are predicted from the latencies of the other
networks.

`--only-learned` leaves out the measured search. Schedules are then compared with sequential
execution. `--beside` names a folder of schedules that some other program, such as an older release,
has found on the same kernels. These schedules run in the same rounds. Their files have the name
`NETWORK.NAME.json` and the format of `write_schedule`.

On a busy machine nothing is measured. With `--force` the searches run even then, and the output
says that the machine was busy.
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
from .options import add_force

DEFAULT = ("squeezenet", "inception_v3", "randwire", "nasnet_a")
MEASURED, LEARNED, SEQUENTIAL = "measured", "learned", "sequential"


@dataclass
class Searched:
    """The results of one search.

    Attributes
    ----------
    stages: number of stages that the search considered.
    stages_measured: number of stages of several operators that were measured in this search.
    minutes: duration of the whole search, including the measurement of single operators.
    predicted_us: latency of the schedule in microseconds, as the sum of its stages.
    rounds: for each round of the learned search, the number of stages measured, the best latency,
        and the error on stages held out from training. Empty for the measured search.
    """

    stages: int
    stages_measured: int
    minutes: float
    predicted_us: float
    rounds: list[dict[str, Any]]


@dataclass
class Found:
    """The results of one network. Ratios are of latencies measured in interleaved rounds.

    Attributes
    ----------
    searches: the results of each search, by its name.
    compared_with: the schedule in the denominator of all ratios: the measured search's schedule, or
        sequential execution if there was no such search.
    ratio, ratio_interval: time of the learned search's schedule over that of the schedule
        `compared_with`, and its 95% interval; below 1 is faster.
    sequential_ratio: time of sequential execution over that of the schedule `compared_with`.
    noise_ratio: ratio of two measurements of the schedule `compared_with`.
    beside: ratio and 95% interval of each schedule from the folder `--beside`, by name.
    times_fewer: stages measured by the measured search, over stages measured by the learned search;
        None if there was no measured search.
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
        print(
            f"**The machine was not quiet** ({machine.busy:.0%} busy), "
            "so these figures do not support a claim.\n"
        )
    print(table(found))
    for name, error in transfer.items():
        print(
            f"{name}, predicted from all other networks: error {error.mape:.1%}, rank correlation "
            f"{error.spearman:.3f}, {error.stages} stages"
        )
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=DEFAULT, help=", ".join(models.list()))
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--exhaustive", action="store_true", help="measure every stage")
    effort.add_argument("--only-learned", action="store_true", help="leave out the measured search")
    parser.add_argument(
        "--streams", type=int, help="number of streams; by default one for each core"
    )
    parser.add_argument(
        "--parts", type=int, help="1 divides no operator; by default as in `compile`"
    )
    parser.add_argument("--image-size", type=int, help="height and width of images in pixels")
    parser.add_argument("--max-group-ops", type=int, default=3)
    parser.add_argument("--max-groups", type=int, default=8)
    parser.add_argument(
        "--budget",
        type=float,
        default=60,
        help="seconds to run the schedules in interleaved rounds",
    )
    parser.add_argument("--databases", type=Path, help="folder in which to keep measurements")
    parser.add_argument(
        "--beside", type=Path, help="folder of schedules that run in the same rounds"
    )
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


@contextmanager
def kept_or_temporary(folder: Path | None) -> Iterator[Path]:
    """The folder, which is made if it is missing.

    For None, a temporary folder, which is deleted when the context ends.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def compare(network: str, arguments: argparse.Namespace, folder: Path) -> Found:
    """Run the searches of one network, then run their schedules against each other.

    Parameters
    ----------
    folder: where the databases and the results of the measured search are kept.

    Raises
    ------
    ValueError: the kept results of the measured search were made with other options.
    ScheduleError: a schedule from the folder `--beside` has other operators.
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
        # A schedule with other operators is refused here, before the long searches.
        artifacts = {name: measuring.artifact(schedule) for name, schedule in brought.items()}
        if not kernels.exists():
            kernels.write_text("\n".join(export_lines(LatencyStore(paths[MEASURED]))))
        # Both searches must run on the same kernels. So the second search gets the kernel latencies
        # of the first search, and chooses the same kernels.
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
    """The schedules `NETWORK.NAME.json` of a network in a folder, by NAME. Empty without a folder.

    Raises
    ------
    SystemExit: the folder has no schedule of the network, or a NAME is one of the names that this
        program uses itself.
    """
    if folder is None:
        return {}
    paths = sorted(folder.glob(f"{network}.*.json"))
    if not paths:
        raise SystemExit(f"put a schedule into {folder / network}.NAME.json, or leave out --beside")
    names = [path.name.removeprefix(f"{network}.").removesuffix(".json") for path in paths]
    for name in names:
        if name in (MEASURED, LEARNED, SEQUENTIAL):
            raise SystemExit(f"{folder}: `{name}` is reserved: give the schedule another name")
    return {n: Schedule.from_json(p.read_text()) for n, p in zip(names, paths, strict=True)}


def search_learned(compilation: Compilation, limits: dict[str, Any]) -> tuple[Schedule, Searched]:
    """Search for a schedule. The latencies of most stages are predicted, and few are measured."""
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
    """Search for a schedule. The latencies of all stages that the search needs are measured.

    Parameters
    ----------
    figures: file with the results of the measured search. If the file exists, the results that an
        earlier run wrote into it are returned. If not, the search runs and writes the file.

    Raises
    ------
    ValueError: the results in `figures` are of a search with other options.
    """
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
            raise ValueError(f"{figures} is of a search with other options: name another folder")
        return schedule, Searched(**kept["searched"])
    searched = Searched(
        schedule.stats["stages"], latency.measured - alone, minutes, schedule.makespan, []
    )
    figures.write_text(json.dumps({"limits": limits, "searched": asdict(searched)}))
    return schedule, searched


def held_out(network: str, stores: dict[str, LatencyStore]) -> PredictionError:
    """The error of a model that predicts the stages of `network`, and has learned only from other
    networks.

    Parameters
    ----------
    stores: the measured latencies of each network, by name.
    """
    own = stores[network]
    # The search measured stages of several operators, so its records have the most streams. Records
    # with one stream come from the choice of kernels.
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
    """The results as a Markdown table."""
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
