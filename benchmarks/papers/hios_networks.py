"""HIOS: Inception-V3 and NASNet on two A40s that are simulated from their data sheet."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from tvm_interop.latency.base import LatencyModel, LatencyOver
from tvm_interop.latency.described import COPY_US, DEVICES
from tvm_interop.latency.transfers import Link
from tvm_interop.scheduling import schedule
from tvm_interop.scheduling.on_gpus import GpuPrices

from ..paper_device import paper_network
from .record import Chart, Check, Record, Table, above, below, within
from .registry import experiment

A40S = "two A40s, simulated from their data sheet"
SIZES = {"inception_v3": (299, 512, 1024, 2048), "nasnet_a": (331, 512, 1024)}
"""Height and width of the images. The paper says that they are powers of two above the network's
own size, but not which ones."""
FORMS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "sequential": ("sequential", {}),
    "IOS": ("ios", {}),
    "HIOS-MR": ("hios-mr", {"gpus": 2}),
    "HIOS-LP": ("hios-lp", {"gpus": 2}),
    "inter-GPU MR": ("hios-mr", {"gpus": 2, "intra": "none"}),
    "inter-GPU LP": ("hios-lp", {"gpus": 2, "intra": "none"}),
}
"""The schedules of the paper's section VI, as schedulers and options of ours."""
LINKS = (Link(56.25e3, COPY_US), Link(56.25e3, 50.0), Link(20e3, 20.0))
"""Connections of the two GPUs: the data sheet's connection, one whose copies start slowly, and
one with a low bandwidth."""
RUNS = 36
"""How many times the authors' program measures each latency."""


class Profiled(LatencyOver):
    """Adds up the time that a device would need to measure the latencies that a scheduler asks for.

    Each operator, stage and transfer counts once, even if its latency is asked for several times.
    """

    def __init__(self, base: LatencyModel) -> None:
        super().__init__(base)
        self.asked: dict[Any, float] = {}

    def op(self, op: int) -> float:
        return self._keep(("stage", (op,)), super().op(op))

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        return self._keep(_key(groups), super().stage(groups))

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[Any]:
        found = super().stages(stages)
        for groups, us in zip(stages, found, strict=True):
            self._keep(_key(groups), float(us))
        return found

    def transfer(self, u: int, v: int) -> float:
        return self._keep(("transfer", u, v), super().transfer(u, v))

    def _keep(self, key: Any, us: float) -> float:
        self.asked[key] = us
        return us


def _key(groups: Sequence[Sequence[int]]) -> tuple[Any, ...]:
    if len(groups) == 1 and len(groups[0]) == 1:
        return "stage", (groups[0][0],)
    return "stage", *(tuple(group) for group in groups)


@dataclass(frozen=True)
class Made:
    """A schedule of one network.

    Attributes
    ----------
    ms: its simulated latency.
    profiled_s: seconds in which a device would measure all latencies that the scheduler asked for,
        each `RUNS` times.
    asked: number of these latencies.
    search_s: seconds of the scheduler itself.
    paths: number of paths that HIOS-LP maps.
    operators: number of operators.
    """

    ms: float
    profiled_s: float
    asked: int
    search_s: float
    paths: int
    operators: int


@functools.cache
def schedules() -> dict[tuple[str, int], dict[str, Made]]:
    """Every schedule of `FORMS`, by network and image size."""
    return {
        (name, size): {form: _made(name, size, form) for form in FORMS}
        for name, sizes in SIZES.items()
        for size in sizes
    }


def _made(name: str, size: int, form: str) -> Made:
    subject = paper_network(name, DEVICES["a40"], size)
    latency = Profiled(subject.latency)
    scheduler, options = FORMS[form]
    began = time.process_time()
    found = schedule(subject.graph, scheduler, latency, **options)
    search_s = time.process_time() - began
    profiled_us = RUNS * sum(latency.asked.values())
    asked = len(latency.asked)
    paths = _paths(subject.graph, subject.latency) if scheduler == "hios-lp" else 0
    ms = found.simulate(subject.graph, subject.latency) / 1e3
    return Made(ms, profiled_us / 1e6, asked, search_s, paths, subject.graph.num_ops)


def _paths(graph: Any, latency: LatencyModel) -> int:
    from tvm_interop._native import passes as native

    return len(native.longest_paths(*GpuPrices(graph, latency).costs(2)))


@experiment("hios", "Figure 12", "latency of two networks by image size", seconds=45)
def figure_12() -> Record:
    """Computes the latency of every schedule from the data sheet."""
    found = schedules()
    checks = [
        *_saved("inception_v3", "sequential", 0.061, 0.197),
        *_saved("nasnet_a", "sequential", None, 0.145),
        *_saved("inception_v3", "IOS", 0.033, 0.165),
        *_saved("nasnet_a", "IOS", None, 0.111),
        *_saved("inception_v3", "HIOS-MR", 0.109, 0.168),
        *_saved("nasnet_a", "HIOS-MR", 0.088, 0.162),
    ]
    rows = [
        [name, str(size), *(f"{forms[form].ms:.3f}" for form in FORMS)]
        for (name, size), forms in found.items()
    ]
    return Record(
        "HIOS-LP takes 6.1% to 19.7% (Inception-V3) and up to 14.5% (NASNet) off the latency of "
        "sequential execution, 3.3% to 16.5% and up to 11.1% off that of IOS, and 10.9% to 16.8% "
        "and 8.8% to 16.2% off that of HIOS-MR.",
        A40S,
        checks,
        why="A transfer takes 10 us here, and then is as fast as the data sheet of the bridge "
        "says. HIOS-MR looks at one operator at a time. With such fast transfers it loses "
        "little by its many transfers, and on large images of Inception-V3 it is the faster "
        "of the two. If transfers are slower, as "
        "they may be through MPI, HIOS-MR falls behind: see the last table. By the data sheet IOS "
        "also gains more on one GPU than the paper measured, because operators that run side by "
        "side share cores and bandwidth, and lose nothing else.",
        remarks="The paper's sizes between the network's own and the largest are not known. A40s "
        "have not run these schedules yet.",
        tables=[
            Table("Milliseconds, simulated", ["", "image size", *FORMS], rows),
            _slower_links(),
        ],
        charts=[*(_by_size(name) for name in SIZES), _beside_the_paper(checks)],
    )


def _slower_links() -> Table:
    """HIOS-LP's savings over sequential execution and over HIOS-MR if transfers are slower."""
    name = "inception_v3"
    rows = []
    for link in LINKS:
        sheet = replace(DEVICES["a40"], link=link)
        row = [f"{link.bytes_a_us / 1e3:g} GB/s, {link.fixed_us:g} us"]
        for size in SIZES[name]:
            subject = paper_network(name, sheet, size)
            graph, latency = subject.graph, subject.latency
            ms = {
                form: schedule(graph, scheduler, latency, **options).simulate(graph, latency)
                for form, (scheduler, options) in FORMS.items()
                if form in ("sequential", "HIOS-MR", "HIOS-LP")
            }
            savings = (1 - ms["HIOS-LP"] / ms[over] for over in ("sequential", "HIOS-MR"))
            row.append(", ".join(f"{saving:.1%}" for saving in savings))
        rows.append(row)
    sizes = [f"image {size}" for size in SIZES[name]]
    return Table(
        f"{name}: the saving of HIOS-LP over sequential execution and over HIOS-MR, by the speed "
        "of transfers (the first line is the data sheet)", ["", *sizes], rows,
    )  # fmt: skip


def _saved(name: str, over: str, least: float | None, most: float) -> list[Check]:
    """HIOS-LP's savings over another schedule, as shares, over all image sizes."""
    found = schedules()
    savings = [
        1 - found[name, size]["HIOS-LP"].ms / found[name, size][over].ms for size in SIZES[name]
    ]
    what = f"{name}: share of latency that HIOS-LP saves over {over}"
    checks = [within(f"{what}, most of all sizes", max(savings), most / 2, 2 * most, most)]
    if least is not None:
        checks.insert(0, Check(f"{what}, least of all sizes", least, min(savings), least=0.0))
    return checks


def _beside_the_paper(checks: Sequence[Check]) -> Chart:
    """Draw the latency of HIOS-LP divided by the latency of each other schedule.

    The checks have the shares of latency that HIOS-LP saves.
    """
    shown = {check.what.partition(", ")[0]: check for check in checks if "most of" in check.what}
    points = [
        what.replace(": share of latency that HIOS-LP saves over ", ", over ") for what in shown
    ]
    most = "at best, of all sizes"
    return Chart(
        "HIOS, Figure 12: HIOS-LP's latency over another's", "bars", points,
        {f"{most}, ours": [1 - check.ours for check in shown.values()],
         f"{most}, paper": [1 - (check.paper or 0.0) for check in shown.values()]},
        "latency over the other's",
    )  # fmt: skip


def _by_size(name: str) -> Chart:
    found = schedules()
    base = [found[name, size]["sequential"].ms for size in SIZES[name]]
    series = {
        form: [found[name, size][form].ms / ms for size, ms in zip(SIZES[name], base, strict=True)]
        for form in ("sequential", "IOS", "HIOS-MR", "HIOS-LP")
    }
    sizes = [str(size) for size in SIZES[name]]
    return Chart(f"HIOS, Figure 12: {name}", "lines", sizes, series, "latency over sequential")


@experiment("hios", "Figure 13", "where HIOS-LP's gain comes from", seconds=1)
def figure_13() -> Record:
    """Compares latencies of the schedules of Figure 12, at the smallest and the largest images.

    If these schedules are not made yet, this function makes them first, and takes as long as Figure
    12.
    """
    gains = {
        ("inception_v3", "largest"): (9.9, 0.982),
        ("inception_v3", "smallest"): (4.5, 0.816),
        ("nasnet_a", "largest"): (3.8, 1.0),
        ("nasnet_a", "smallest"): (None, 1.0),
    }
    checks, rows = [], []
    for (name, which), (over_ios, inter) in gains.items():
        forms = schedules()[name, (max if which == "largest" else min)(SIZES[name])]
        saved = {form: forms["sequential"].ms - found.ms for form, found in forms.items()}
        what = f"{name}, {which} image"
        if over_ios is not None:
            ratio = saved["HIOS-LP"] / saved["IOS"]
            checks.append(
                within(f"{what}: reduction by HIOS-LP over reduction by IOS", ratio,
                       over_ios / 2, 2 * over_ios, over_ios)
            )  # fmt: skip
        share = saved["inter-GPU LP"] / saved["HIOS-LP"]
        checks.append(
            within(f"{what}: share of HIOS-LP's reduction that its inter-GPU part makes", share,
                   inter - 0.1, inter + 0.1, inter)
        )  # fmt: skip
        rows.append([what, *(f"{found.ms:.3f}" for found in forms.values())])
    small = schedules()["nasnet_a", min(SIZES["nasnet_a"])]
    checks.append(
        above("nasnet_a, smallest image: HIOS-LP over IOS, latency",
              small["HIOS-LP"].ms / small["IOS"].ms, 1.0, 1.054)
    )  # fmt: skip
    ratios = {
        check.what.partition(": ")[0]: check for check in checks if "by HIOS-LP over" in check.what
    }
    return Record(
        "Against sequential execution, HIOS-LP's reduction of latency is 9.9 and 4.5 times that of "
        "IOS on Inception-V3 with large and small images, and 3.8 times on NASNet with large ones. "
        "On NASNet with small images HIOS-LP is 5.4% slower than IOS. The inter-GPU part makes "
        "98.2%, 81.6% and almost 100% of HIOS-LP's reduction.",
        A40S,
        checks,
        why="By the data sheet, IOS gains much more on one GPU than the paper measured: operators "
        "that run side by side lose nothing to each other but shared cores and bandwidth. On "
        "NASNet with small images the second GPU pays here, since no launch waits for a transfer.",
        tables=[Table("Milliseconds, simulated", ["", *FORMS], rows)],
        charts=[
            Chart("HIOS, Figure 13", "bars", [row[0] for row in rows],
                  {form: [float(row[i + 1]) for row in rows] for i, form in enumerate(FORMS)},
                  "latency, ms (simulated)"),
            Chart("HIOS, Figure 13: HIOS-LP's reduction over IOS's", "bars", list(ratios),
                  {"ours": [check.ours for check in ratios.values()],
                   "paper": [check.paper for check in ratios.values()]}, "times"),
        ],
    )  # fmt: skip


@experiment("hios", "Figure 14", "how long the schedulers take, with their measurements", seconds=1)
def figure_14() -> Record:
    """Adds up the measuring time of each scheduler on a device, and the scheduler's own time.

    It uses the schedules of Figure 12. If they are not made yet, it makes them first, which takes
    as long as that figure.
    """
    minutes = {
        (name, size, form): _minutes(forms[form], form)
        for (name, size), forms in schedules().items()
        for form in ("IOS", "HIOS-MR", "HIOS-LP")
    }
    checks = [
        below("inception_v3: minutes of HIOS-LP, most of all sizes",
              max(m for (n, _, f), m in minutes.items() if (n, f) == ("inception_v3", "HIOS-LP")),
              20.0, 20.0)
    ]  # fmt: skip
    for name, sizes in SIZES.items():
        added = {
            form: minutes[name, max(sizes), form] - minutes[name, min(sizes), form]
            for form in ("IOS", "HIOS-MR", "HIOS-LP")
        }
        for form in ("HIOS-LP", "HIOS-MR"):
            checks.append(
                below(f"{name}: minutes that the largest image adds for {form}, over those that it "
                      "adds for IOS", added[form] / added["IOS"], 1.0)
            )  # fmt: skip
    large = max(SIZES["nasnet_a"])
    saved = 1 - minutes["nasnet_a", large, "HIOS-LP"] / minutes["nasnet_a", large, "IOS"]
    checks.append(
        within("nasnet_a, largest image: share of IOS's time that HIOS-LP saves", saved, 0.25, 1.0,
               0.558)
    )  # fmt: skip
    rows = [
        [name, str(size), *(f"{minutes[name, size, form]:.2f} ({forms[form].asked})"
                            for form in ("IOS", "HIOS-MR", "HIOS-LP"))]
        for (name, size), forms in schedules().items()
    ]  # fmt: skip
    return Record(
        "The time of HIOS-LP and HIOS-MR, with all measurements, grows with the image much slower "
        "than that of IOS. HIOS-LP takes less than 20 minutes for Inception-V3, and up to 55.8% "
        "less time than IOS for NASNet with large images.",
        f"{A40S}; the schedulers' own seconds on this machine's CPU",
        checks,
        timed=True,
        why="On Inception-V3, HIOS-LP spends most of its time on measurements of whole "
        "sub-models. These grow with the image as much as the latency of the network does. "
        "IOS measures only single stages.",
        remarks=f"Each latency counts {RUNS} runs, as in the authors' program. For HIOS-LP and "
        "HIOS-MR each attempt of a window, and for HIOS-LP each path on each GPU, adds a "
        "measurement of the sub-model; it counts as long as the whole schedule. Starting and "
        "compiling programs is not counted.",
        tables=[Table("Minutes (latencies asked for)",
                      ["", "image size", "IOS", "HIOS-MR", "HIOS-LP"], rows)],
        charts=[
            Chart(f"HIOS, Figure 14: {name}", "lines", [str(size) for size in sizes],
                  {form: [minutes[name, size, form] for size in sizes]
                   for form in ("IOS", "HIOS-MR", "HIOS-LP")}, "minutes (simulated)")
            for name, sizes in SIZES.items()
        ],
    )  # fmt: skip


def _minutes(found: Made, form: str) -> float:
    """Minutes that a scheduler takes, including the measurements that it asks for."""
    sub_models = 0
    if form != "IOS":
        sub_models = 2 * found.paths + found.operators
    measured_s = found.profiled_s + RUNS * sub_models * found.ms / 1e3
    return (measured_s + found.search_s) / 60
