"""Writes every text that is made from `benchmarks/results`, so that text and data agree.

python -m benchmarks.figures            # write the texts
python -m benchmarks.figures --check    # fail if a text differs from what the results say
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import (
    learned_search_table,
    readme_figures,
    results_page,
    serving_load_table,
    serving_page,
    speed_check_table,
    zoo_tables,
)
from .busy_machine import BEFORE
from .hios_claims import Check, checks
from .markdown import geometric, interval, machine, table

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_AGAIN = " (again)"
_NETWORKS = ("squeezenet", "inception_v3", "randwire", "nasnet_a")


def page() -> str:
    """The whole of `docs/benchmarks.md`, as Markdown."""
    parts = [
        _INTRODUCTION,
        *_peers(),
        *zoo_tables.networks(_read("zoo")),
        *zoo_tables.where_it_pays(_read("zoo")),
        *zoo_tables.in_bf16(_read("zoo")),
        *zoo_tables.two_cores(_read("two_cores")),
        *zoo_tables.compile_time(json.loads((RESULTS / "compile_time.json").read_text())),
        *_whole_networks(),
        *_schedulers(),
        *learned_search_table.section(_read("learned_search"), _read("learned_search_large")),
        *_stages_priced(),
        *_large_blocks(),
        *_operators(),
        *_busy_machine(),
        *serving_load_table.section(_read("serving/load")),
        *_several_gpus(),
        _AGAIN_YOURSELF,
    ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
# Benchmarks

This page is written by `python -m benchmarks.figures` from the JSON files in `benchmarks/results`;
a test fails where the two differ.

How to read it:

- A **ratio** is the time of one contestant over the time of the baseline: below 1 is faster.
- Contestants run in **interleaved rounds**: in each round every contestant runs once, in an order
  drawn anew, so that what else the machine does falls on all alike.
- The **noise floor** is the baseline against itself. A ratio closer to 1 than that says nothing.
- Networks have random weights and run at batch 1 in float32."""

_AGAIN_YOURSELF = """\
## Measure it yourself

`make bench` runs the first table, `make bench-full` all networks. Each further table names its
program above. All of them wait for a quiet machine and say so where there is none."""


def _peers() -> list[str]:
    parts = [
        "## Against other runtimes\n\nBy `make bench`. The row `onnxruntime, parallel` is "
        "onnxruntime's parallel execution mode: since release 1.14 it puts all nodes of the CPU "
        "into one stream (onnxruntime's issue 16158), so it runs branches one after the "
        "other too."
    ]
    for network in ("squeezenet", "inception_v3"):
        parts.append(_contest(_read(network)))
    return parts


def _schedulers() -> list[str]:
    parts = ["## Schedulers against each other\n\nBy `python -m benchmarks.schedulers`."]
    parts += [_contest(_read(f"schedulers/{network}")) for network in _NETWORKS]
    parts.append(
        "### With operators merged\n\nMerged operators are other kernels. Here a plan of one "
        "stream "
        "(`sequential`, and `ios-merge`, which merges and puts nothing side by side) divides large "
        "operators over the cores. A plan of several streams (`ios`, `ios-both`) divides none, "
        "so each of its operators runs on one core."
    )
    parts += [_contest(_read(f"schedulers/{network}_merging")) for network in _NETWORKS]
    return parts


def _contest(report: dict[str, Any]) -> str:
    """The table of one network's contestants, as Markdown, with the fastest first."""
    contestants = dict(report["contestants"])
    noise = contestants.pop(report["baseline"] + _AGAIN)
    rows = [
        [
            each["name"],
            f"{each['median_us'] / 1e3:.2f}",
            f"{each['ratio']:.3f}",
            interval(each["ratio_interval"], 3),
            _verdict(each, report["baseline"]),
        ]
        for each in sorted(contestants.values(), key=lambda each: float(each["median_us"]))
    ]
    head = (
        f"**{report['network'].replace('_merging', '')}**, {machine(report)}, "
        f"{noise['rounds']} rounds. Baseline: {report['baseline']}; against itself "
        f"{noise['ratio']:.3f} ({interval(noise['ratio_interval'], 3)})."
    )
    return head + "\n\n" + table(["", "median ms", "ratio", "95%", "beyond the noise"], rows)


def _verdict(contestant: dict[str, Any], baseline: str) -> str:
    if contestant["name"] == baseline:
        return "baseline"
    if not contestant["differs"]:
        return "no"
    return "faster" if contestant["ratio"] < 1 else "slower"


def _whole_networks() -> list[str]:
    report = _read("kernels")
    rows = [
        [
            row["network"],
            f"{row['median_us'][row['best']] / 1e3:.1f}",
            f"{row['median_us']['ours, sequential'] / 1e3:.1f}",
            f"{row['median_us']['onnxruntime, sequential'] / 1e3:.1f}",
            f"{row['to_onnxruntime']:.2f}",
            interval(row["to_onnxruntime_interval"], 2),
            f"{row['to_pytorch']:.2f}",
            f"{row['roof_us'] / row['median_us'][row['best']]:.0%}",
        ]
        for row in report["rows"]
    ]
    head = [
        "", "our best ms", "our sequential ms", "onnxruntime ms", "over onnxruntime", "95%",
        "over PyTorch", "of the roof",
    ]  # fmt: skip
    return [
        "## Whole networks\n\nBy `python -m benchmarks.kernels`. The roof is the time that the "
        "network's floating-point operations take at the best rate of one convolution, "
        f"{report['peak_gflops']:.0f} GFLOP/s with all cores. {machine(report)}. "
        f"Geometric mean over onnxruntime: {report['geometric_mean_to_onnxruntime']:.2f}; over "
        f"PyTorch: {report['geometric_mean_to_pytorch']:.2f}. *Our best* is the fastest of "
        "sequential, greedy, LIOS and LIOS+ in these rounds. The fastest of four is in part the "
        "luckiest, so these ratios favour us; the zoo above has what ships.",
        table(head, rows),
    ]


def _stages_priced() -> list[str]:
    rows = [
        [row["network"], row["device"], f"{row['full']:,}", f"{row['bounded']:,}",
         f"{1 - row['bounded'] / row['full']:.0%}"]
        for row in _read("stages_priced")["rows"]
    ]  # fmt: skip
    return [
        "## Stages that IOS asks the price of\n\nBy `python -m benchmarks.stages_priced`, on "
        "simulated devices. Bounds decide the others, and the schedule is the same.",
        table(["", "device", "without bounds", "with bounds", "spared"], rows),
    ]


_HALVED = {
    "nasnet_a": "1.03", "layered_200": "1.32 to 1.68", "grid_12x12": "1.65",
    "towers_8x40": "2.65", "towers_2x1000": "1.56",
}  # fmt: skip
"""By graph family, the makespan of IOS before it had beam search, over the makespan of greedy's
stages, on the device `table`. IOS then halved large blocks by operator number. The ratios come from
the issue that asked for beam search."""


def _large_blocks() -> list[str]:
    report = _read("whole_networks")
    makespans = {
        (row["graph"], row["device"], row["contestant"]): row["makespan_us"]
        for row in report["rows"]
    }
    bounds: dict[tuple[str, str], float] = {}
    for row in report["rows"]:
        at = row["graph"], row["device"]
        bounds[at] = max(bounds.get(at, 0.0), row["stats"].get("lower_bound_us", 0.0))
    makespans |= {(*at, "lower bound"): us for at, us in bounds.items()}
    columns = {
        "cut by start": "ios, cut by start", "default": "ios", "1 s": "ios 1 s",
        "5 s": "ios 5 s", "30 s": "ios 30 s", "LIOS": "lios", "lower bound": "lower bound",
    }  # fmt: skip
    # Some contestants ran on fewer graphs. Each mean is over the graphs that its contestant ran on.
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for (graph, device, contestant), us in makespans.items():
        at = graph.split()[0], device, contestant
        ratios.setdefault(at, []).append(us / makespans[graph, device, "greedy"])
    rows = []
    for family, device in dict.fromkeys(at[:2] for at in ratios):
        found = [ratios.get((family, device, contestant), []) for contestant in columns.values()]
        halved = _HALVED.get(family, "") if device == "table" else ""
        cells = [f"{geometric(each):.3f}" if each else "" for each in found]
        rows.append([family, device, str(max(map(len, found))), halved, *cells])
    own = [(at, each) for at, each in ratios.items() if _has_beams(at[2])]
    worst, (family, device, contestant) = max((max(each), at) for at, each in own)
    seconds = [row["seconds"] for row in report["rows"] if row["contestant"] == "ios"]
    return [
        "## IOS on blocks too large to search through\n\nBy `python -m benchmarks.whole_networks`, "
        "whose first lines give the commands: makespans over that of greedy's stages, geometric "
        "means, of random operators of 5 to 50 us. `table`: operators never slow each other down; "
        "`gpu`: they share a simulated one. `halved` is the search of old, `cut by start` is "
        "without beams, between early and late operators; then IOS with its defaults and "
        "`time_budget_s`, LIOS simulated on 8 streams, and IOS's lower bound, which streams may "
        "undercut. Names that end in `kernels` are the kernels that TVM makes of the network, "
        "others the operators of the IOS paper. Seconds are of one core; the defaults took "
        f"{sorted(seconds)[len(seconds) // 2]:.1f} in the median, {max(seconds):.1f} at most. The "
        f"worst of IOS's is {worst:.3f} of greedy, {contestant} on {family}, {device}.",
        table(["", "device", "graphs", "halved", *columns], rows),
    ]


def _has_beams(contestant: str) -> bool:
    return contestant.startswith("ios") and not contestant.endswith("cut by start")


def _operators() -> list[str]:
    rows = _read("operators")["rows"]
    by_cores = sorted({row["cores"] for row in rows})
    means = [
        [str(cores), _number(geometric([r["ratio"] for r in rows if r["cores"] == cores]))]
        for cores in by_cores
    ]
    return [
        "## Single convolutions\n\nBy `python -m benchmarks.operators`: geometric mean of "
        f"{len(rows) // len(by_cores)} convolutions over onnxruntime.",
        table(["cores", "over onnxruntime"], means),
    ]


def _busy_machine() -> list[str]:
    report = _read("busy_machine")
    parts = [
        "## Beside other programs\n\nBy `python -m benchmarks.busy_machine`: the schedule "
        "that ships over onnxruntime, medians, with 0, 1 and 2 other programs that compute on the "
        "cores; each model rested before a run, or back to back; "
        f"{report['runs']} runs each.",
        _busy_table(report, "onnxruntime"),
    ]
    if any(row["contestant"] == _BEFORE for row in report["rows"]):
        parts += [
            f"The same runs over an earlier release of ours ({report['before']}):",
            _busy_table(report, _BEFORE),
        ]
    return parts


_BEFORE = f"{BEFORE}scheduled"


def _busy_table(report: dict[str, Any], baseline: str) -> str:
    """The table of our median times over the baseline's, with geometric means.

    Has a row for each network and a column for each load and rhythm.
    """
    medians = {
        (row["network"], row["busy"], row["rhythm"], row["contestant"]): row["median_ms"]
        for row in report["rows"]
    }
    columns = sorted({(row["busy"], row["rhythm"]) for row in report["rows"]}, key=_busy_order)
    networks = list(dict.fromkeys(row["network"] for row in report["rows"]))
    ratios = [
        [medians[(n, *c, "scheduled")] / medians[(n, *c, baseline)] for c in columns]
        for n in networks
    ]
    means = [geometric(list(column)) for column in zip(*ratios, strict=True)]
    rows = [
        [name, *map(_number, row)]
        for name, row in zip([*networks, "**geometric mean**"], [*ratios, means], strict=True)
    ]
    return table(["", *(f"{busy}, {rhythm}" for busy, rhythm in columns)], rows)


def _busy_order(column: tuple[int, str]) -> tuple[int, bool]:
    return column[0], column[1] != "rested"


def _several_gpus() -> list[str]:
    found = _read("hios/curves")
    figure = found["figure 7"]
    columns = {
        "sequential": "sequential", "IOS": "ios",
        "LP, clock": "hios-lp, clock", "MR, clock": "hios-mr, clock",
        "LP": "hios-lp, exact", "MR": "hios-mr, exact", "HEFT": "heft, exact",
        "multi-gpu": "multi-gpu, exact", "lower bound": "lower bound",
    }  # fmt: skip
    rows = []
    for gpus, point in figure["points"].items():
        over_bound = point["multi-gpu, exact"][0] / point["lower bound"][0] - 1
        rows.append(
            [gpus, *(f"{point[row][0]:.1f}" for row in columns.values()), f"{over_bound:.0%}",
             f"{point['search, CPU s'][0]:.1f}"]
        )  # fmt: skip
    made = checks(found)
    missed = [
        [
            check.what,
            f"{check.theirs:.4g}",
            f"{check.ours:.4g}",
            f"{check.ratio:.3f}",
            "" if check.error is None else f"{check.error:.1%}",
            f"{check.within[0]:.3g} to {check.within[1]:.3g}",
        ]
        for check in made
        if not check.holds
    ]
    head = ["", "theirs", "ours", "ours over theirs", "our standard error", "accepted"]
    return [
        "## Several GPUs, simulated\n\nBy `python -m benchmarks.hios_curves`: random models by the "
        f"rules of HIOS's authors, 200 operators, {figure['instances']} models a point, mean "
        "milliseconds by GPUs. Nothing here ran on a GPU. `clock` is the evaluator that the "
        "published curves all but certainly come from, the others are by the constraint that the "
        "paper states. The last columns say how far `multi-gpu` is above the lower bound, and the "
        "seconds of one core that it took; it took part in this figure alone. All five "
        "figures, with deviations, are in `benchmarks/results/hios`.",
        table(["GPUs", *columns, "over the bound", "search s"], rows),
        "### What changes along the paper's figures\n\nHow many times shorter than sequential "
        "execution, from the figure's first point to its last; the paper's of layers are from its "
        "milliseconds. What the paper shows falling with edges and with what transfers take hardly "
        "falls once operators wait only for what they depend on.",
        _slopes(found),
        "### Networks on two GPUs\n\nInception-V3 and NASNet-A as schedule units, by image size, "
        "on two A40s by their data sheet: milliseconds, simulated. The last column is how many "
        "GPUs `multi-gpu` uses.",
        _on_two(found["networks"]),
        "### Beside the paper and a prototype\n\nBy `python -m benchmarks.hios_claims`: "
        f"{_held(made, 'paper')} figures of the paper's are met. Of others, "
        f"{_held(made, 'prototype')} agree with a prototype of ours that was written before, and "
        f"{_held(made, 'aim')} aims of ours are met. Not met are:",
        table(head, missed),
    ]


def _held(made: Sequence[Check], whose: str) -> str:
    of = [check.holds for check in made if check.whose == whose]
    return f"{sum(of)} of {len(of)}"


def _on_two(networks: list[dict[str, Any]]) -> str:
    columns = ["sequential", "ios", "hios-mr", "hios-lp", "heft", "multi-gpu"]
    rows = [
        [row["network"], str(row["image size"]), *(f"{row[name]:.2f}" for name in columns),
         str(row["GPUs of ours"])]
        for row in networks
    ]  # fmt: skip
    return table(["", "image", *columns, "GPUs"], rows)


def _slopes(found: dict[str, Any]) -> str:
    rows = []
    for number, what, of_paper in (
        (9, "400 to 600 edges", {"hios-lp": (2.06, 1.64), "hios-mr": (1.35, 1.19)}),
        (10, "6 to 22 layers", {"hios-lp": (2.36, 1.76), "hios-mr": (1.35, 1.35)}),
        (11, "transfers of 0.4 to 1.2", {"hios-lp": (2.23, 1.78), "hios-mr": (1.52, 1.10)}),
    ):
        points = list(found[f"figure {number}"]["points"].values())
        for name, paper in of_paper.items():
            cells = [f"{paper[0]:.2f} to {paper[1]:.2f}"]
            for evaluator in ("clock", "exact"):
                ends = [
                    point["sequential"][0] / point[f"{name}, {evaluator}"][0]
                    for point in (points[0], points[-1])
                ]
                cells.append(f"{ends[0]:.2f} to {ends[1]:.2f}")
            rows.append([f"{name}, {what}", *cells])
    return table(["", "paper", "clock", "exact"], rows)


def _read(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return loaded


def _number(number: float) -> str:
    return f"{number:.2f}"


def documents() -> dict[Path, str]:
    """Every text that is made from results, by the path of its file."""
    return {
        PAGE: page(),
        readme_figures.PAGE: readme_figures.page(),
        serving_page.PAGE: serving_page.page(),
        results_page.PAGE: results_page.page(),
        speed_check_table.PAGE: speed_check_table.table(),
        RESULTS / "serving" / "claims.md": serving_page.claims(),
        RESULTS / "serving" / "top_claims.md": serving_page.top_claims(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    check = parser.parse_args().check
    stale = [path for path, text in documents().items() if path.read_text() != text]
    if check:
        for path in stale:
            print(f"{path} is not what the results say: run `python -m benchmarks.figures`")
        return 1 if stale else 0
    for path, text in documents().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
