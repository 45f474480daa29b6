"""Makes `docs/serving_results.md` from the files in `benchmarks/results/serving`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import serving_figures, top_report
from .markdown import geometric, machine, table

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "serving_results.md"


def page() -> str:
    """The whole page, as Markdown."""
    parts = [
        _INTRODUCTION,
        *_auto(_read("serving/comparison")),
        *_ceiling(_read("two_cores")),
        *_measured(_read("serving/top_measured")),
        *_simulator(_read("serving/reality")),
        _CLAIMS + "\n\n" + claims().rstrip(),
        _LEARNED + "\n\n" + top_claims().rstrip(),
    ]
    return "\n\n".join(parts) + "\n"


def claims() -> str:
    """The table of the TOP paper's claims that need no learning, as Markdown."""
    return serving_figures.claims_of(_read("serving/figures")["figures"])


def top_claims() -> str:
    """The table of the TOP paper's claims that need learning or search, as Markdown."""
    return top_report.claims_of(top_report.done(RESULTS / "serving" / "top"))


_INTRODUCTION = """\
# Many models on one device: results

This page is written by `python -m benchmarks.figures` from files in `benchmarks/results`; a test
fails where the two differ. All of it is simulated on data sheets, unless a section says that it was
measured. The words are explained in [Many models on one device](serving.rst).

Two ways of counting are used. **Requests a second** counts every request that was served; the TOP
paper uses it. **Requests of the mix a second** counts whole mixes: where a mix is one request of a
first model, two of a second and four of a third, a policy that serves many requests of the third
and none of the first has served no mix at all. The two can rank policies in opposite orders, so
both are given."""

_CLAIMS = """\
## The TOP paper's figures that need no learning

By `python -m benchmarks.serving --figures`, on the data sheet of an A100 unless a row says
otherwise. (Lin, Chen, Zhang, Liu; TPDS 36(2), 2025.)"""

_LEARNED = """\
## The TOP paper's figures that need learning or search

By `python -m benchmarks.top`. Each row says how many seeds it rests on."""


def _auto(report: dict[str, Any]) -> list[str]:
    summary = report["summary"]
    rows = [
        [
            name,
            f"{gain['throughput, geometric mean']:.2f}",
            f"{gain['throughput, most']:.1f}",
            f"{gain['p99, geometric mean']:.2f}",
        ]
        for name, gain in summary["gains"].items()
    ]
    worst = [
        [
            f"{cell['device']}, load {cell['load']}, interference {cell['interference']}, "
            f"{cell['arrivals']}",
            f"{cell['throughput']:.3f}",
            f"{cell['p99']:.2f}",
        ]
        for cell in report["auto"]
        if cell["throughput"] < 0.99 or cell["p99"] > 1.1
    ]
    other = report["told_otherwise_summary"]
    return [
        "## `auto` beside the other policies\n\nBy `python -m benchmarks.serving`: "
        f"{summary['cells']} "
        "cells of devices, interferences, loads, mixes and patterns of arrival. The table has what "
        "`auto` served over what each served (geometric mean, and the most), and its 99th "
        "percentile "
        "of latency over theirs.",
        table(["over", "throughput", "at most", "99th percentile"], rows),
        f"In {summary['cells'] - summary['cells below 0.99']} of these cells `auto` served at "
        "least "
        "0.99 of what the best other policy served. In "
        f"{summary['cells'] - summary['cells above 1.1']} "
        "its 99th percentile was at most 1.1 times the best among policies that serve as much. The "
        "other cells, with its throughput and 99th percentile over the best:",
        table(["cell", "throughput", "99th percentile"], worst),
        f"On {other['cells']} cells it was told an interference of 0.03 where it was 0 or 0.1, on "
        "devices that differ from their data sheets. It served at least "
        f"{other['least throughput over the best']:.3f} of the best there, with a 99th "
        "percentile of "
        f"at most {other['most p99 over the best']:.2f} of the best.",
    ]


def _ceiling(report: dict[str, Any]) -> list[str]:
    ceilings = sorted(1 / row["efficiency"]["ours"] for row in report["rows"])
    return [
        "## What two instances can gain on two cores, measured\n\nTwo instances with a core each "
        "serve "
        "at most `2 * t2 / t1` times what one instance on both cores serves, where `t1` and `t2` "
        "are "
        "the times of a run on one core and on two. By `python -m benchmarks.two_cores`, on "
        f"{machine(report)}, this is {ceilings[0]:.2f} to {ceilings[-1]:.2f} for {len(ceilings)} "
        f"networks (geometric mean {geometric(ceilings):.2f})."
    ]


def _measured(report: dict[str, Any]) -> list[str]:
    names = ", ".join(
        f"{name}{f' at {size} pixels' if size else ''}" for name, size in report["networks"]
    )
    rows = [
        [
            row["policy"],
            f"{row['requests a second']:.0f}",
            f"{row['in mix']:.0f}",
            f"{row['over sequential']:.2f}",
            f"{row['predicted over sequential']:.2f}",
        ]
        for row in report["rows"]
        if row["policy"] != "sequential again"
    ]
    head = ["policy", "requests /s", "of the mix /s", "mix over sequential", "simulated"]
    return [
        "## TOP's blocks with real kernels, measured\n\nBy `python -m benchmarks.top_measured`: "
        f"{names}, "
        f"each compiled for one core, at {':'.join(f'{share:.0f}' for share in report['mix'])}, "
        f"{report['rounds']} rounds on {machine(report)}. The simulator promises too much where "
        "blocks "
        "wait for each other: its search assumes queues that never end, and in the server a new "
        "request comes when one has been answered.",
        table(head, rows),
    ]


def _simulator(report: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"{row['workload']}, {row['streams']} at once",
            f"{row['throughput']['measured']:.0f}",
            f"{row['throughput']['predicted with interference']:.0f}",
            f"{row['throughput']['predicted over measured']:.2f}",
            f"{row['throughput']['noise']:.2f}",
        ]
        for row in report["validation"]
    ]
    head = ["", "measured /s", "simulated /s", "simulated over measured, no interference", "noise"]
    return [
        "## The simulator beside a CPU, measured\n\nBy `python -m benchmarks.serving_reality`, on "
        f"{machine(report)}: instances compiled for one core. The simulator is told the times of "
        "single "
        f"operators and, in the third column, an interference of {report['interference']:.2f}.",
        table(head, rows),
    ]


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())
