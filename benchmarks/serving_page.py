"""Makes `docs/serving_results.md` from the files in `benchmarks/results/serving`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import serving_figures, top_report, top_whole_table
from .markdown import geometric, machine, table

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "serving_results.md"


def page() -> str:
    """The whole page, as Markdown."""
    parts = [
        _INTRODUCTION,
        *_auto(_read("serving/comparison")),
        *top_whole_table.section(top_report.done(RESULTS / "serving" / "top_whole")),
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

This page is written by `python -m benchmarks.figures` from files in `benchmarks/results`. A test
fails if the page differs from the files. All results are simulated on data sheets, unless a section
says that they were measured. [Many models on one device](serving.rst) explains the terms.

This page uses two measures of throughput. **Requests a second** counts every request that was
served; the TOP paper uses this measure. **Requests of the mix a second** counts only requests that
make up whole mixes. For example, let a mix be one request of a first model, two requests of a
second model and four of a third. A policy that serves many requests of the third model and none of
the first has then served no mix at all. The two measures can rank policies in opposite orders, so
the page gives both."""

_CLAIMS = """\
## The TOP paper's figures that need no learning

Simulated by `python -m benchmarks.serving --figures`, on the data sheet of an A100 unless a row
says otherwise. The authors of the paper are Lin, Chen, Zhang and Liu (TPDS 36(2), 2025).

The column before the last has our verdict on the claim. *Depends* means that the verdict depends on
the condition in the last column. *Ours* marks a comparison that the paper does not make."""

_LEARNED = """\
## The TOP paper's figures that need learning or search

Simulated by `python -m benchmarks.top`. Most rows about trained agents say from how many seeds the
result comes. *As printed* is MADDPG as the paper describes it. *Mended* is our corrected
learner."""


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
        "## `auto` beside the other policies\n\nSimulated by `python -m benchmarks.serving` in "
        f"{summary['cells']} cells. The cells differ in device, interference, load, mix and "
        "pattern of arrival. In each cell, `auto` is compared with the policy in the row. "
        "*Throughput* is the geometric mean of the ratios of their throughputs (`auto` over the "
        "policy). *At most* is the largest of these ratios. *99th percentile* is the geometric "
        "mean of the ratios of their 99th percentiles of latency.",
        table(["over", "throughput", "at most", "99th percentile"], rows),
        f"In {summary['cells'] - summary['cells below 0.99']} of the {summary['cells']} cells, "
        "the throughput of `auto` was at least 0.99 of the highest among the other policies. In "
        f"{summary['cells'] - summary['cells above 1.1']} cells, the 99th percentile of latency "
        "of `auto` was at most 1.1 times the lowest among policies that serve as much. The next "
        "table has the other cells, with the throughput and the 99th percentile of `auto` as "
        "ratios to those of the best policy.",
        table(["cell", "throughput", "99th percentile"], worst),
        f"In {other['cells']} further cells, `auto` was told an interference of 0.03, but the "
        "interference was 0 or 0.1. The devices of these cells also differ from their data "
        "sheets. In these cells the throughput of `auto` was at least "
        f"{other['least throughput over the best']:.3f} of the highest. Its 99th percentile was "
        f"at most {other['most p99 over the best']:.2f} times the lowest.",
    ]


def _ceiling(report: dict[str, Any]) -> list[str]:
    ceilings = sorted(1 / row["efficiency"]["ours"] for row in report["rows"])
    return [
        "## What two instances can gain on two cores, measured\n\nTwo instances with a core each "
        "serve at most `2 * t2 / t1` times as much as one instance on both cores. Here `t1` and "
        "`t2` are the times of a run on one core and on two. `python -m benchmarks.two_cores` "
        f"measured these times on {machine(report)}. The bound is {ceilings[0]:.2f} to "
        f"{ceilings[-1]:.2f} for {len(ceilings)} networks (geometric mean "
        f"{geometric(ceilings):.2f})."
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
        "## TOP's blocks with real kernels, measured\n\nMeasured by `python -m "
        f"benchmarks.top_measured` in {report['rounds']} rounds on {machine(report)}. The "
        f"networks are {names}, each compiled for one core. The mix is "
        f"{':'.join(f'{share:.0f}' for share in report['mix'])}. For policies whose blocks wait "
        "for each other, the simulator predicts too much throughput. One reason is that its "
        "search assumes queues that never become empty. In the server, a new request comes only "
        "when an earlier one has been answered.",
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
        "## The simulator beside a CPU, measured\n\nMeasured by `python -m "
        f"benchmarks.serving_reality` on {machine(report)}. The instances are compiled for one "
        "core. The simulator gets the times of single operators. In the third column, it also gets "
        f"an interference of {report['interference']:.2f}.",
        table(head, rows),
    ]


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())
