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
    block_simulation_table,
    gpu_table,
    kernel_demands_table,
    learned_search_table,
    readme_figures,
    results_page,
    serving_load_table,
    serving_page,
    speed_check_table,
    start_up_table,
    two_releases_table,
    zoo_tables,
)
from .busy_machine import BEFORE
from .hios_claims import Check, checks
from .markdown import geometric, interval, machine, table
from .papers import pages as papers_pages
from .results_page import dated

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_AGAIN = " (again)"
_PEERS = ("squeezenet", "inception_v3")
_NETWORKS = ("squeezenet", "inception_v3", "randwire", "nasnet_a")
_SCHEDULERS = [f"schedulers/{network}{kind}" for network in _NETWORKS for kind in ("", "_merging")]


def page() -> str:
    """The whole of `docs/benchmarks.md`, as Markdown."""
    learned = "learned_search", "learned_search_large"
    starts = "start_up", "start_up_large"
    parts = [
        _INTRODUCTION,
        *dated(_peers(), *_PEERS),
        *dated(zoo_tables.networks(_read("zoo")), "zoo"),
        *dated(zoo_tables.other_kinds(_read("zoo_kinds")), "zoo_kinds"),
        *dated(zoo_tables.drawn(_read("zoo_drawn")), "zoo_drawn"),
        *dated(zoo_tables.where_it_pays(_read("shipped_schedules")), "shipped_schedules"),
        *dated(zoo_tables.in_bf16(_read("zoo"), "In bf16"), "zoo"),
        *dated(zoo_tables.in_bf16(_read("zoo_kinds"), "Other kinds in bf16"), "zoo_kinds"),
        *dated(zoo_tables.two_cores(_read("two_cores")), "two_cores"),
        *dated(zoo_tables.compile_time(_read("compile_time")), "compile_time"),
        *dated(_whole_networks(), "kernels"),
        *dated(_schedulers(), *_SCHEDULERS),
        *dated(zoo_tables.all_cores(_read("all_cores")), "all_cores"),
        *dated(learned_search_table.section(*map(_read, learned)), *learned),
        *dated(_stages_priced(), "stages_priced"),
        *dated(_large_blocks(), "whole_networks"),
        *dated(_operators(), "operators"),
        *dated(_busy_machine(), "busy_machine"),
        *dated(start_up_table.section(*map(_read, starts)), *starts),
        *dated(two_releases_table.section(_read("two_releases")), "two_releases"),
        *dated(serving_load_table.section(_read("serving/load")), "serving/load"),
        *dated(gpu_table.section(_read("h200")), "h200"),
        *dated(_several_gpus(), "hios/curves"),
        *dated(kernel_demands_table.section(_read("kernel_demands")), "kernel_demands"),
        *dated(block_simulation_table.section(_read("block_simulation")), "block_simulation"),
        _AGAIN_YOURSELF,
    ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
# Benchmarks

This page is written by `python -m benchmarks.figures` from the JSON files in `benchmarks/results`.
A test fails if the page differs from the files.

How to read the page:

- A **ratio** is the time of one contestant over the time of the baseline. Below 1 is faster.
- Contestants run in **interleaved rounds**. In each round every contestant runs once, in a new
  random order. So other work of the machine affects all contestants alike.
- The **noise floor** is the ratio of the baseline to a second measurement of itself. A ratio closer
  to 1 than the noise floor says nothing.
- Networks have random weights and run at batch 1 in float32, unless a section says otherwise.
- The line below a heading names the section's result files, and the day on which each was made.
  [Results](results.md) has their commits and commands."""

_AGAIN_YOURSELF = """\
## Measure it yourself

`make bench` measures the first two tables, and `make bench-full` measures all networks. Every other
section names its program. Most programs that measure refuse a busy machine, and say so."""


def _peers() -> list[str]:
    parts = [
        "## Against other runtimes\n\nMeasured by `make bench`. The row `onnxruntime, parallel` "
        "is onnxruntime's parallel execution mode. Since release 1.14 this mode puts all nodes "
        "of the CPU into one stream (onnxruntime's issue 16158). So even this mode runs the "
        "branches of a network one after the other. Its fastest setting here was "
        f"{_parallel_setting()}."
    ]
    for network in _PEERS:
        parts.append(_contest(_read(network)))
    return parts


def _parallel_setting() -> str:
    """The settings with which onnxruntime's parallel mode was fastest, such as "1 thread(s)"."""
    rows = [_read(network)["contestants"]["onnxruntime, parallel"] for network in _PEERS]
    return " or ".join(sorted({row["setting"] for row in rows}))


def _schedulers() -> list[str]:
    parts = ["## Schedulers against each other\n\nMeasured by `python -m benchmarks.schedulers`."]
    parts += [_contest(_read(f"schedulers/{network}")) for network in _NETWORKS]
    parts.append(
        "### With operators merged\n\nA merged operator has another kernel than the operators "
        "that it replaces. `ios-merge` merges operators and runs nothing side by side. These "
        "tables were made when schedulers that merge did not divide operators yet. In these "
        "tables, a plan with one stream (`sequential`, `ios-merge`) divides large operators over "
        "the cores. A plan with several streams (`ios`, `ios-both`) divides no operator, so each "
        "of its operators runs on one core. Today `ios-both` divides operators too, and the "
        "section "
        '"All cores for each operator" says what that gains.'
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
        f"{noise['rounds']} rounds. The baseline is *{report['baseline']}*; a second "
        f"measurement of it took {noise['ratio']:.3f} times as long "
        f"({interval(noise['ratio_interval'], 3)})."
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
        f"## Whole networks\n\nMeasured by `python -m benchmarks.kernels` on {machine(report)}. "
        "*Our best* is the fastest of sequential, greedy, LIOS and LIOS+ in these rounds. The "
        "fastest of four schedules is in part the luckiest, so these ratios favour us. The section "
        '"Networks as users bring them" has the schedules of `compile`. The geometric mean over '
        f"onnxruntime is {report['geometric_mean_to_onnxruntime']:.2f}, and over PyTorch "
        f"{report['geometric_mean_to_pytorch']:.2f}. The last column is the roof over our best "
        "time. The roof is the time that the network's floating-point operations take at the best "
        f"rate of one convolution, {report['peak_gflops']:.0f} GFLOP/s with all cores.",
        table(head, rows),
    ]


def _stages_priced() -> list[str]:
    rows = [
        [row["network"], row["device"], f"{row['full']:,}", f"{row['bounded']:,}",
         f"{1 - row['bounded'] / row['full']:.0%}"]
        for row in _read("stages_priced")["rows"]
    ]  # fmt: skip
    return [
        "## Stages whose latency IOS asks for\n\nCounted by `python -m "
        "benchmarks.stages_priced` on simulated devices. IOS can bound the latencies of stages, "
        "and so rule out stages without asking for their latency. The table has the number of "
        "stages whose latency IOS asks for, without bounds and with them. IOS finds the same "
        "schedule in both cases.",
        table(["", "device", "without bounds", "with bounds", "spared"], rows),
    ]


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
    # Some contestants did not run on all graphs. Each mean is over the graphs with a result.
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for (graph, device, contestant), us in makespans.items():
        at = graph.split()[0], device, contestant
        ratios.setdefault(at, []).append(us / makespans[graph, device, "greedy"])
    rows = []
    for family, device in dict.fromkeys(at[:2] for at in ratios):
        found = [ratios.get((family, device, contestant), []) for contestant in columns.values()]
        cells = [f"{geometric(each):.3f}" if each else "" for each in found]
        rows.append([family, device, str(max(map(len, found))), *cells])
    own = [(at, each) for at, each in ratios.items() if _has_beams(at[2])]
    worst, (family, device, contestant) = max((max(each), at) for at, each in own)
    seconds = [row["seconds"] for row in report["rows"] if row["contestant"] == "ios"]
    return [
        "## IOS on blocks too large to search through\n\nSimulated by `python -m "
        "benchmarks.whole_networks`. The program's first lines give the commands. Each entry is "
        "a makespan over the makespan of greedy's stages, as the geometric mean over the "
        "graphs. Operators take random latencies of 5 to 50 us. On the device `table`, "
        "operators never slow each other down. On `gpu`, they share a simulated GPU.\n\nThese "
        "are the columns:\n\n- `cut by start`: IOS without beams; it cuts a large block between "
        "early and late operators.\n- `default`: IOS with its default options.\n"
        "- `1 s`, `5 s`, `30 s`: IOS with this `time_budget_s`.\n"
        "- `LIOS`: LIOS, simulated on 8 streams.\n"
        "- `lower bound`: IOS's lower bound for schedules of stages; a schedule of streams may "
        "take less time.\n\n"
        "If a network's name ends in `kernels`, its operators are the kernels that "
        "TVM makes. The other networks have the operators of the IOS paper. All times of searches "
        "are processor time of one core. IOS with its default options took "
        f"{sorted(seconds)[len(seconds) // 2]:.1f} s in the median and {max(seconds):.1f} s at "
        "most. The largest makespan of IOS with beams, relative to greedy's, is "
        f"{worst:.3f}: of `{contestant}` on `{family}`, on the device `{device}`.",
        table(["", "device", "graphs", *columns], rows),
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
        "## Single convolutions\n\nMeasured by `python -m benchmarks.operators`. Each entry is our "
        "time over onnxruntime's time, as the geometric mean over "
        f"{len(rows) // len(by_cores)} convolutions.",
        table(["cores", "over onnxruntime"], means),
    ]


def _busy_machine() -> list[str]:
    report = _read("busy_machine")
    parts = [
        "## Beside other programs\n\nMeasured by `python -m benchmarks.busy_machine`. Each "
        "entry is the median time of the schedule of `compile` over onnxruntime's median time, "
        f"from {report['runs']} runs each. While the model runs, 0, 1 or 2 other programs "
        "compute on the cores. The model rests before each run, or its runs follow back to back.",
        _busy_table(report, "onnxruntime"),
    ]
    if any(row["contestant"] == _BEFORE for row in report["rows"]):
        parts += [
            "The next table compares the same runs of this release with runs of an earlier "
            f"release, {report['before']}:",
            _busy_table(report, _BEFORE),
        ]
    return parts


_BEFORE = f"{BEFORE}scheduled"


def _busy_table(report: dict[str, Any], baseline: str) -> str:
    """The table of our median times divided by the baseline's, with geometric means.

    The table has a row for each network. It has a column for each pair of a load (the number of
    other programs) and a rhythm ("rested" or "back to back").
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
        "## Several GPUs, simulated\n\nSimulated by `python -m benchmarks.hios_curves`. Nothing "
        "here ran on a GPU. The models are random, by the rules of HIOS's authors, with 200 "
        f"operators. Each time is the mean over {figure['instances']} models, in milliseconds. "
        "Columns with `clock` use the evaluator from which the published curves almost "
        "certainly come. All other columns obey the constraint that the paper states. The last "
        "two columns say how far `multi-gpu` is above the lower bound, and how many seconds of "
        "one core its search took. `multi-gpu` took part in this figure alone. All five "
        "figures, with standard deviations, are in `benchmarks/results/hios`.",
        table(["GPUs", *columns, "over the bound", "search s"], rows),
        "### What changes along the paper's figures\n\nEach entry gives the speedup over "
        "sequential execution, at the figure's first point and at its last point. The "
        "paper's entries for layers are computed from its milliseconds. In the paper, this speedup "
        "falls as edges are added and as transfers take longer. It hardly falls once operators "
        "wait only for the operators that they depend on (`exact`).",
        _slopes(found),
        "### Networks on two GPUs\n\nThe networks are Inception-V3 and NASNet-A, divided into "
        "schedule units, at several image sizes. Times are simulated milliseconds on two A40s, by "
        "their data sheet. The last column is the number of GPUs that `multi-gpu` uses.",
        _on_two(found["networks"]),
        "### Beside the paper and a prototype\n\nCompared by `python -m benchmarks.hios_claims`. "
        f"Under the evaluator `clock`, we meet {_held(made, 'paper')} numbers of the paper. We "
        f"agree with {_held(made, 'prototype')} numbers of an earlier prototype of ours, and meet "
        f"{_held(made, 'aim')} of our own aims. The table has the numbers that we miss. The last "
        "column has the accepted range of *ours over theirs*.",
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
        **papers_pages.documents(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    check = parser.parse_args().check
    stale = [
        path for path, text in documents().items() if not path.exists() or path.read_text() != text
    ]
    if check:
        for path in stale:
            print(f"{path} is not what the results say: run `python -m benchmarks.figures`")
        return 1 if stale else 0
    for path, text in documents().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
