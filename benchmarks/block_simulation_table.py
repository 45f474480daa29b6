"""Makes the section of `docs/benchmarks.md` with the results of `benchmarks.block_simulation`."""

from __future__ import annotations

from typing import Any

from .block_calibration import (
    FITTED_FORMS,
    FITTED_NETWORKS,
    GAP_US,
    JUDGED_NETWORKS,
    Parameters,
)
from .block_orders import GRAPH_LAUNCH_US, SEED, Orders, Overlap
from .markdown import table

_GPUS = {"a100": "A100", "rtx2080super": "RTX 2080 SUPER"}
_NETWORKS_OF_OPARA = ("googlenet", "inception_v3", "bert_base")
"""The simulated networks of the paper on Opara. Of its networks, T5 is not simulated."""


def section(report: dict[str, Any]) -> list[str]:
    """The paragraphs of the section on simulated thread blocks, as Markdown."""
    return [
        "## Thread blocks on a simulated GPU\n\nSimulated by `python -m "
        "benchmarks.block_simulation`. No GPU was at hand, and nothing in this section was "
        "measured by us. The simulator (`scheduling.block_simulation`) models the blocks of "
        "every kernel, how many of them a multiprocessor holds at once, and the order and the "
        "latency of launches. All running blocks share the memory bandwidth. Kernels start in "
        "the order of a queue, so a large kernel at its front delays the kernels behind it.",
        *_calibration(report),
        *_orders([Orders(**row) for row in report["orders"]]),
        *_fig_3([Overlap(**case) for case in report["fig_3"]]),
    ]


def _calibration(report: dict[str, Any]) -> list[str]:
    found, errors = Parameters(**report["parameters"]), report["errors"]
    ms = {(row["network"], row["form"]): row["simulated_ms"] for row in report["ios"]}
    rows = []
    for row in report["ios"]:
        name, form = row["network"], row["form"]
        paper_ms = {r["form"]: r["paper_ms"] for r in report["ios"] if r["network"] == name}
        rows.append(
            [
                f"{name}, {form}",
                f"{row['paper_ms']:.2f}",
                f"{row['simulated_ms']:.2f}",
                f"{100 * (row['simulated_ms'] / row['paper_ms'] - 1):+.1f}%",
                f"{paper_ms['sequential'] / row['paper_ms']:.2f}",
                f"{ms[name, 'sequential'] / row['simulated_ms']:.2f}",
                f"{report['tensorrt_ms'][name] / row['paper_ms']:.2f}",
                _use(name, form),
            ]
        )
    head = [
        "", "paper, ms", "simulated, ms", "difference", "over sequential, paper", "simulated",
        "over TensorRT, paper", "used for",
    ]  # fmt: skip
    return [
        "### The experiments of the IOS paper on a V100\n\nFive parameters are fitted to the "
        f"schedules {', '.join(FITTED_FORMS)} of {' and '.join(FITTED_NETWORKS)}. They are the "
        f"tile of a matrix product that a block computes ({found.tile} x {found.tile}), the share "
        f"of the data sheet's flops that a busy multiprocessor reaches ({found.efficiency:.2f}), "
        f"how fast a block of a depthwise convolution computes beside others "
        f"({found.depthwise:.4f}), the microseconds of a launch ({found.launch_us:.1f}), and those "
        f"of a wait between streams ({found.wait_us:.1f}). cuDNN's kernels are not known without a "
        "GPU, so their threads and registers are assumed (`benchmarks/paper_kernels.py`). A gap of "
        f"{GAP_US:.0f} us between two kernels of a stream is assumed too.",
        "The mean absolute percentage error on the six fitted times is "
        f"{_percent(errors['fitted'])}. On the ten times of {' and '.join(JUDGED_NETWORKS)}, which "
        f"the fit has not seen, it is **{_percent(errors['judged'])}**. On the four times of the "
        f"fitted networks whose schedules IOS searches for, it is {_percent(errors['searched'])}. "
        "One rule of the model was chosen with all twenty times in view: a depthwise convolution "
        "waits for most of its time, and leaves the arithmetic to other blocks. The start of the "
        "fit was chosen after earlier fits, too. So the ten times are not wholly unseen. The fit "
        "is a coordinate descent, and ends in a local optimum. The paper's times are those behind "
        "its Fig. 6, and TensorRT's those behind Fig. 7. These figures show relative throughputs "
        "only; of the times, the paper's text names 4.03 ms alone (Table 3).",
        table(head, rows),
        _claims(ms),
    ]


def _use(name: str, form: str) -> str:
    if name in JUDGED_NETWORKS:
        return "judging"
    return "fitting" if form in FITTED_FORMS else "nothing"


def _claims(ms: dict[tuple[str, str], float]) -> str:
    """A paragraph that says which statements of the IOS paper's section 6.1 hold in the
    simulation."""
    networks = list(dict.fromkeys(name for name, _ in ms))
    best = [n for n in networks if ms[n, "ios-both"] <= min(ms[k] for k in ms if k[0] == n)]
    slower = [n for n in networks if ms[n, "greedy"] > ms[n, "sequential"]]
    unmerged = [n for n in ("randwire", "nasnet_a") if ms[n, "ios-both"] == ms[n, "ios-parallel"]]
    return (
        "Section 6.1 of the paper makes three statements on these schedules. IOS-Both is the "
        f"fastest: in the simulation this holds on {_listed(best)}. Greedy is slower than "
        f"sequential on SqueezeNet: here it is slower on {_listed(slower)}. Merging changes "
        "nothing on RandWire and NASNet-A, where IOS-Both equals IOS-Parallel: here it is equal "
        f"on {_listed(unmerged)}."
    )


def _orders(found: list[Orders]) -> list[str]:
    rows = [
        [
            f"{row.network}, {_GPUS[row.gpu]}, {row.made_by}",
            f"{row.paper_us:.0f}",
            f"{row.sequential_us / row.paper_us:.2f}",
            f"{row.nimble_us / row.paper_us:.3f}",
            f"{row.ids_us / row.paper_us:.3f}",
            f"{row.best_us / row.paper_us:.3f}",
            f"{row.median_us / row.paper_us:.3f}",
            f"{row.worst_us / row.paper_us:.3f}",
            str(row.orders),
            f"{row.least_us / row.paper_us:.2f}",
            _percent(row.queued),
        ]
        for row in found
    ]
    head = [
        "", "Opara, us", "sequential", "Nimble", "by ids", "best random", "median", "worst",
        "orders", "no less than", "found no room",
    ]  # fmt: skip
    return [
        "### Opara's launch order\n\nEach network is one CUDA graph, in which kernels are "
        f"launched {GRAPH_LAUNCH_US:.0f} us apart, which is our own assumption. `TVM` stands for "
        "the kernels and demands of the section above. `assumed` stands for the schedule units "
        "of the IOS paper with the kernels that cuDNN is assumed to run. The efficiency is the "
        "one that was fitted on the V100. *Opara* is the time with the paper's launch order. "
        "The other columns are ratios to it: above 1, Opara is faster. *By ids* has Opara's "
        "streams, launched in the order of the ids. *Random* orders are topological, drawn with "
        f"the seed {SEED}, and their streams are Opara's. *No less than* is a lower bound: the "
        "longest path, all arithmetic or all traffic, whichever takes longest. *Found no room* "
        "is the share of operators that were ready to start, but had to wait until blocks of "
        "other kernels ended. Kernels for the RTX 2080 SUPER are assumed to take the registers "
        "of sm_80.",
        table(head, rows),
        _does_it_matter(found),
        *_beside_the_paper(found),
    ]


def _beside_the_paper(found: list[Orders]) -> list[str]:
    rows = {(row.network, row.gpu, row.made_by): row for row in found}
    cells = []
    for what, network, gpu, column, paper, least, most in (
        ("over a sequential graph, Fig. 8", "inception_v3", "rtx2080super", "sequential_us",
         "1.41", 1.41, 1.41),
        ("over a sequential graph, Fig. 5", "bert_base", "a100", "sequential_us", "1.08", 1.08,
         1.08),
        ("over Nimble, batches of 1 to 8, Fig. 9", "inception_v3", "a100", "nimble_us",
         "1.08 to 1.15", 1.08, 1.15),
        ("over another launch order, Fig. 2", "googlenet", "rtx2080super", "ids_us",
         "up to 1.41", 1.41, 1.41),
        ("over another launch order, section 2.3", "googlenet", "a100", "ids_us", "1.11", 1.11,
         1.11),
    ):  # fmt: skip
        cell = [f"{network}, {_GPUS[gpu]}, {what}", paper]
        for made_by in ("TVM", "assumed"):
            row = rows.get((network, gpu, made_by))
            ratio = getattr(row, column) / row.paper_us if row is not None else None
            cell += ["", ""] if ratio is None else [f"{ratio:.2f}", _off(ratio, least, most)]
        cells.append(cell)
    best = [
        max(
            getattr(row, column) / row.paper_us
            for row in found
            if row.network in _NETWORKS_OF_OPARA
        )
        for column in ("sequential_us", "nimble_us")
    ]
    return [
        "How far are these gains of Opara from the paper's? The next table has how many times "
        "faster Opara is, in the paper and here. A launch order that saves 29% of the time is "
        "1.41 times faster, and one that saves 10.3% is 1.11 times faster. The paper compares "
        "its launch order with an order that is depth first. Here the order of the ids takes "
        "its place: the ids of GoogLeNet go branch by branch too.",
        table(["", "paper", "TVM", "off by", "assumed", "off by"], cells),
        "On all its networks, the paper's Opara is up to 1.68 times faster than a sequential "
        f"graph, and up to 1.29 times faster than Nimble. On {', '.join(_NETWORKS_OF_OPARA)} it "
        f"is here up to {best[0]:.2f} times faster than a sequential graph, and up to "
        f"{best[1]:.2f} times faster than Nimble. So running side by side saves more here than "
        "in the paper, and the launch order saves less. Likely reasons are these. PyTorch runs "
        "several kernels where TVM runs one, so more of its kernels are ready at once and "
        "compete for multiprocessors. The simulator has no caches, in which kernels disturb "
        "each other. The time of its blocks never varies.",
    ]


def _off(ratio: float, least: float, most: float) -> str:
    """How far a ratio lies outside a range, in percent of the nearer end of the range."""
    nearest = min(max(ratio, least), most)
    return f"{100 * (ratio / nearest - 1):+.1f}%"


def _does_it_matter(found: list[Orders]) -> str:
    gains = sorted(found, key=lambda row: row.ids_us / row.paper_us)
    spread = sorted(found, key=lambda row: row.worst_us / row.best_us)
    small = [row for row in found if row.worst_us / row.best_us < 1.01]
    room = sum(row.queued for row in small) / len(small) if small else 0.0
    large = [row for row in found if row not in small]
    alike = sum(abs(row.nimble_us / row.ids_us - 1) < 1e-6 for row in found)
    full = sum(row.queued for row in large) / len(large) if large else 0.0
    path = sorted(
        row.least_us / row.paper_us
        for row in found
        if row.network in _NETWORKS_OF_OPARA and row.gpu == "a100"
    )
    return (
        "Does the order matter? Against the order of the ids, the paper's order saves most on "
        f"{_named(gains[-1])}, {_saved(gains[-1])} of the time. It saves least on "
        f"{_named(gains[0])}, {_saved(gains[0])}. The worst random order takes "
        f"{_gap(spread[-1])} longer than the best on {_named(spread[-1])}, and {_gap(spread[0])} "
        f"on {_named(spread[0])}. On {len(small)} of {len(found)} rows the best and the worst "
        "random order are within 1%. On these rows, on average, "
        f"{_percent(room)} of the operators found no room when they were ready, against "
        f"{_percent(full)} on the other rows. An order matters only where kernels wait for "
        "room, or where launches take longer than the kernels, as in mixture_of_experts. At batch "
        "1, most kernels of these networks fill a part of an A100, and few are ready at the same "
        f"time. The column *no less than* is {path[0]:.2f} to {path[-1]:.2f} there for "
        f"{', '.join(_NETWORKS_OF_OPARA)}, so no order could save much. On "
        f"{alike} of {len(found)} rows Nimble takes as long as Opara's streams along the ids: both "
        "keep all parallelism, and a wait between streams of a CUDA graph is assumed to take no "
        "longer than one on a stream."
    )


def _fig_3(cases: list[Overlap]) -> list[str]:
    rows = [
        [
            f"{case.case}, {_GPUS[case.gpu]}",
            f"{case.ids_us:.1f}",
            f"{case.paper_us:.1f}",
            f"{case.best_us:.1f}",
            _percent(1 - case.paper_us / case.ids_us),
            _percent(case.published) if case.gpu == "a100" else "",
        ]
        for case in cases
    ]
    head = [
        "", "in this order, us", "Opara's order", "best order", "Opara saves", "in the paper",
    ]  # fmt: skip
    return [
        "### Fig. 3 of the paper on Opara\n\nFigure 3 shows that a kernel bound by arithmetic "
        "runs better beside a kernel bound by memory than beside another kernel bound by "
        "arithmetic. The paper does not say which graphs and tensors the figure has. Here "
        "three independent operators stand for each case: a convolution of GoogLeNet, and a ReLU "
        "or an addition on its output.",
        table(head, rows),
        _of_fig_3(cases),
    ]


def _of_fig_3(cases: list[Overlap]) -> str:
    parts = []
    for case in cases:
        saved = 1 - case.paper_us / case.ids_us
        faster = "saves time, as in the paper" if saved > 0 else "takes longer, unlike in the paper"
        parts.append(f"`{case.case}` on the {_GPUS[case.gpu]} {faster}")
    return (
        f"In Opara's order, {'; '.join(parts)}. Opara launches operators bound by memory first. "
        "In the cases that take longer, the addition comes first, and its blocks of 1,024 threads "
        "fill the multiprocessors. The convolutions' blocks then crowd the multiprocessors where "
        "the addition's blocks end first."
    )


def _named(row: Orders) -> str:
    return f"{row.network} ({_GPUS[row.gpu]}, {row.made_by})"


def _saved(row: Orders) -> str:
    return _percent(1 - row.paper_us / row.ids_us)


def _gap(row: Orders) -> str:
    return f"{100 * (row.worst_us / row.best_us - 1):.1f}%"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "no network"
