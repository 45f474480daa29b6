"""Simulates the five figures of the HIOS paper, and two networks by image size. Needs no GPU.

    python -m benchmarks.hios_curves [--instances N] [--only WHAT ...] [--without-ours]
                                     [--out FOLDER] [--jobs N]

Every point of a figure is the mean over random models (30 by default; see `hios_instances`), under
two evaluators:
- `exact` is the constraint that the paper states. This package uses it too to predict latencies. A
  stage waits for the stage before it on its GPU and for its inputs.
- `clock` is the evaluator behind the published curves (see `hios_clock`). It makes operators wait
  for work that they do not depend on. This makes HIOS-LP look better than HIOS-MR, although under
  `exact` HIOS-MR is as good.

The output has the claims of the HIOS paper beside our figures.

The networks have the operators of the IOS paper (schedule units). They run on two simulated A40
GPUs, with latencies computed from the GPU's data sheet. Nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tvm_interop.latency.described import DEVICES
from tvm_interop.scheduling import schedule

from .hios_clock import longest_paths_by_clock, recurrence_by_clock, windows_by_clock
from .hios_instances import Instance, instance, lower_bound_us
from .paper_device import paper_network

_NETWORKS = {"inception_v3": (299, 512, 1024, 2048), "nasnet_a": (331, 512, 1024)}
_IOS = {"max_group_ops": 3, "max_groups": 2, "endings": "paper"}
_IOS_PART = 10
"""The authors' program runs IOS on this many operators with consecutive ids at a time."""
OURS = "multi-gpu"
_NETWORK_ROWS = "networks"
_EDGES_AN_OP = 2


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Attributes
    ----------
    number, title: its number in the paper, and the label of the x axis.
    setting: what varies along the x axis: a parameter of `instance`, or `gpus`.
    values: values of the setting, one for each point.
    claims: claims in the text of the paper about the figure.
    """

    number: int
    title: str
    setting: str
    values: tuple[float, ...]
    claims: tuple[str, ...]


FIGURES = (
    Figure(
        7, "GPUs", "gpus", (2, 4, 6, 8, 10, 12),
        ("LP over sequential 1.4 to 3.8, over IOS 1.3 to 3.5",
         "MR over sequential at most 1.5, over IOS at most 1.4"),
    ),
    Figure(
        8, "operators", "num_ops", (100, 150, 200, 250, 300, 350, 400),
        ("LP over sequential 2.01 to 2.12, over IOS 1.81 to 1.91, over MR 1.51 to 1.54",
         "windows shorten inter-GPU LP by 5.7 to 7.7% and inter-GPU MR by 13.3 to 14.6%"),
    ),
    Figure(
        9, "edges", "num_edges", (400, 450, 500, 550, 600),
        ("LP over sequential 2.06 down to 1.64, over IOS 1.86 to 1.48",
         "MR over sequential 1.35 down to 1.19, over IOS 1.22 to 1.08"),
    ),
    Figure(
        10, "layers", "num_layers", (6, 10, 14, 18, 22),
        ("sequential, IOS, MR about 411, 371, 305 ms throughout",
         "LP 174 ms at 6 layers up to 233 at 22"),
    ),
    Figure(
        11, "transfer share p", "transfer_share", (0.4, 0.6, 0.8, 1.0, 1.2),
        ("LP over sequential 2.23 down to 1.78, over IOS 2.01 to 1.60",
         "MR over sequential 1.52 down to 1.10, over IOS 1.37 to 0.99"),
    ),
)  # fmt: skip


def main() -> int:
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "curves.json"
    found: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
    for figure in FIGURES:
        if str(figure.number) not in arguments.only:
            continue
        points = measure(figure, arguments.instances, arguments.jobs, not arguments.without_ours)
        found[f"figure {figure.number}"] = {
            "figure": asdict(figure), "instances": arguments.instances, "points": points
        }  # fmt: skip
        print(table(figure, points), flush=True)
        draw(figure, points, arguments.out)
        path.write_text(json.dumps(found, indent=1) + "\n")
    if _NETWORK_ROWS in arguments.only:
        found[_NETWORK_ROWS] = networks()
        print(networks_table(found[_NETWORK_ROWS]))  # type: ignore[arg-type]
        path.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=30)
    parts = [*(str(figure.number) for figure in FIGURES), _NETWORK_ROWS]
    parser.add_argument(
        "--only", nargs="*", choices=parts, default=parts,
        help="figures to make; results of other figures stay unchanged",
    )  # fmt: skip
    parser.add_argument(
        "--without-ours", action="store_true", help=f"leave out {OURS}: a second or two a model"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/hios"))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


Row = dict[str, float]
"""Milliseconds of one model, by scheduler and evaluator, such as `hios-lp, clock`. The entry
`search, CPU s` has the seconds of a search."""


def measure(
    figure: Figure, instances: int, jobs: int, ours: bool = True
) -> dict[str, dict[str, list[float]]]:
    """Mean and standard deviation over the models, for each point of the figure and each curve.

    Parameters
    ----------
    instances: number of random models for each point.
    jobs: number of processes.
    ours: whether `multi-gpu` takes part.
    """
    tasks = [
        (figure.setting, value, seed, ours) for value in figure.values for seed in range(instances)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        rows = list(pool.map(_priced, tasks))
    points: dict[str, dict[str, list[float]]] = {}
    for value in figure.values:
        here = [row for (_, v, *_), row in zip(tasks, rows, strict=True) if v == value]
        points[f"{value:g}"] = {
            name: [
                statistics.fmean(row[name] for row in here),
                statistics.stdev(row[name] for row in here) if len(here) > 1 else 0.0,
            ]
            for name in here[0]
        }
    return points


def _priced(task: tuple[str, float, int, bool]) -> Row:
    setting, value, seed, ours = task
    if setting == "gpus":
        return price(instance(seed=seed), int(value), ours)
    options: dict[str, float] = {setting: value if setting == "transfer_share" else int(value)}
    if setting == "num_ops":
        options["num_edges"] = _EDGES_AN_OP * int(value)
    return price(instance(**options, seed=seed), 4, ours)  # type: ignore[arg-type]


def price(subject: Instance, gpus: int, ours: bool) -> Row:
    """Simulate the schedules of every scheduler for one model.

    Parameters
    ----------
    ours: whether `multi-gpu` takes part.
    """
    graph, latency = subject.graph, subject.latency
    row = {"sequential": sum(map(latency.op, range(graph.num_ops)))}
    row["ios"] = ios_in_parts_us(subject)
    for name in ("hios-lp", "hios-mr", "heft"):
        for intra, suffix in (("none", ", inter-GPU"), ("windows", "")):
            made = schedule(graph, name, latency, gpus=gpus, intra=intra)
            row[f"{name}{suffix}, exact"] = made.simulate(graph, latency)
    search: Row = {}
    if ours:
        started = time.process_time()
        made = schedule(graph, OURS, latency, gpus=gpus)
        row[f"{OURS}, exact"] = made.simulate(graph, latency)
        search = {"search, CPU s": time.process_time() - started}
    row["lower bound"] = lower_bound_us(subject, gpus)
    for name, mapped in (
        ("hios-lp", longest_paths_by_clock(subject, gpus)),
        ("hios-mr", recurrence_by_clock(subject, gpus)),
    ):
        row[f"{name}, inter-GPU, clock"] = mapped[1]
        row[f"{name}, clock"] = windows_by_clock(subject, gpus, *mapped)
    return {**{name: us / 1e3 for name, us in row.items()}, **search}


def ios_in_parts_us(subject: Instance) -> float:
    """Microseconds of IOS as the authors' program runs it, on ten operators at a time."""
    from tvm_interop.program.graph import OpGraph

    graph, total_us = subject.graph, 0.0
    for first in range(0, graph.num_ops, _IOS_PART):
        ids = range(first, min(first + _IOS_PART, graph.num_ops))
        edges = [(u - first, v - first) for u, v in graph.edges if u in ids and v in ids]
        part = OpGraph.from_edges(len(ids), edges)
        made = schedule(part, "ios", subject.latency.of(ids), **_IOS)
        total_us += made.makespan or 0.0
    return total_us


def table(figure: Figure, points: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """The figure's means in milliseconds, as Markdown."""
    names = list(next(iter(points.values())))
    lines = [
        f"## Figure {figure.number}: by {figure.title}, ms (mean)",
        *(f"- paper: {claim}" for claim in figure.claims),
        *(f"- ours, clock: {said}" for said in summary(points, "clock")),
        *(f"- ours, exact: {said}" for said in summary(points, "exact")),
        "",
        f"| | {' | '.join(points)} |",
        f"|---|{'--:|' * len(points)}",
    ]
    for name in names:
        cells = " | ".join(f"{point[name][0]:.1f}" for point in points.values())
        lines.append(f"| {name} | {cells} |")
    return "\n".join([*lines, ""])


def summary(points: Mapping[str, Mapping[str, Sequence[float]]], evaluator: str) -> list[str]:
    """The claims of the paper about ratios of latencies, with our ratios at each point."""

    def ratios(over: str, of: str) -> str:
        each = (point[over][0] / point[of][0] for point in points.values())
        return " ".join(f"{ratio:.2f}" for ratio in each)

    said = []
    for name in ("hios-lp", "hios-mr"):
        label, row = name.removeprefix("hios-").upper(), f"{name}, {evaluator}"
        said.append(f"{label} over sequential {ratios('sequential', row)}")
        said.append(f"{label} over IOS {ratios('ios', row)}")
    return said


def draw(figure: Figure, points: Mapping[str, Mapping[str, Sequence[float]]], folder: Path) -> None:
    """Draw a chart for each evaluator, side by side, into an SVG and a PNG file in `folder`.

    Error bars show the standard deviation.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panes, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    shown: dict[str, Callable[[str], bool]] = {
        "clock": lambda name: name.endswith("clock") or name in ("sequential", "ios"),
        "exact": lambda name: (
            name.endswith("exact") or name in ("sequential", "ios", "lower bound")
        ),
    }
    for pane, (evaluator, belongs) in zip(axes, shown.items(), strict=True):
        for name in next(iter(points.values())):
            if not belongs(name):
                continue
            means, deviations = zip(*(point[name] for point in points.values()), strict=True)
            label = name.removesuffix(f", {evaluator}")
            pane.errorbar(list(points), means, yerr=deviations, label=label, capsize=2, lw=1.2)
        pane.set_title(f"`{evaluator}`")
        pane.set_xlabel(figure.title)
        pane.set_ylim(bottom=0)
        pane.legend(fontsize=7)
    axes[0].set_ylabel("latency, ms (simulated)")
    panes.suptitle(f"HIOS, Figure {figure.number}")
    panes.tight_layout()
    for suffix in ("svg", "png"):
        panes.savefig(folder / f"figure_{figure.number}.{suffix}", dpi=110)
    plt.close(panes)


def networks() -> list[dict[str, object]]:
    """Milliseconds of each network on two simulated A40s: a row for each image size."""
    rows: list[dict[str, object]] = []
    for name, sizes in _NETWORKS.items():
        for size in sizes:
            subject = paper_network(name, DEVICES["a40"], size)
            graph, latency = subject.graph, subject.latency
            row: dict[str, object] = {"network": name, "image size": size}
            for scheduler, options in (
                ("sequential", {}),
                ("ios", {}),
                ("hios-mr", {"gpus": 2}),
                ("hios-lp", {"gpus": 2}),
                ("heft", {"gpus": 2}),
                (OURS, {"gpus": 2}),
            ):
                made = schedule(graph, scheduler, latency, **options)
                row[scheduler] = made.simulate(graph, latency) / 1e3
            inter = schedule(graph, "hios-lp", latency, gpus=2, intra="none")
            row["hios-lp, inter-GPU"] = inter.simulate(graph, latency) / 1e3
            row["GPUs of ours"] = max(len(set(made.devices)), 1)
            rows.append(row)
    return rows


def networks_table(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows of `networks` as a Markdown table."""
    names = list(rows[0])
    lines = [
        "## Two A40s by their data sheet, ms (simulated)",
        f"| {' | '.join(names)} |",
        f"|{'---|' * len(names)}",
    ]
    for row in rows:
        cells = (f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values())
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    raise SystemExit(main())
