"""Compares all schedulers on this machine, and tells whether `auto` is as fast as the best.

    python -m benchmarks.schedulers [NETWORK ...] [--budget SECONDS] [--out FOLDER] [--force]
                                    [--without SCHEDULER ...] [--only same-kernels | merging]

There are two comparisons. In the first (`same-kernels`), all schedules of a network run the same
kernels in interleaved rounds. The schedules come from one compilation and must give the same output
bits.

The second comparison (`merging`) is for schedulers that merge operators. Merged operators need
kernels of their own. These schedulers run against sequential execution and `ios`, and their outputs
may differ in the last bits.

Each table is printed, and its files are written, as soon as it is complete. On a busy machine
nothing is measured. With `--force` the schedulers run even then, and every output says that the
machine was busy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

import tvm_interop
from tvm_interop import models
from tvm_interop.cli.console import measuring_bar
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.compiler.options import MERGING

from . import harness, machine_state
from .bench import add_measuring_options, random_feed
from .peers import Ours
from .report import Report

DEFAULT = ("inception_v3", "squeezenet", "nasnet_a", "randwire")
BASELINE = "ours, sequential"
AUTO = "ours, auto"
LEFT_OUT = {"ours, ios-parallel": "it is another name of `ios`"}


@dataclass(frozen=True)
class Verdict:
    """A comparison of `auto` with the best of the other schedulers.

    Every second round is a choosing round. The times of all choosing rounds together decide which
    of the other schedulers is the best. All other rounds are judging rounds, which compare this
    best scheduler with `auto`. The choosing rounds must not judge it, because it may have been
    chosen for times that were low by chance.

    Attributes
    ----------
    best: the best of the other schedulers in the choosing rounds.
    ratio, ratio_interval: time of `auto` over the time of `best` in the judging rounds, and the 95%
        interval of this ratio.
    noise: how much two measurements of the baseline may differ in the judging rounds, as a ratio
        above 1.
    is_slower: whether `auto` is slower than `best`, beyond chance and beyond the noise.
    """

    best: str
    ratio: float
    ratio_interval: tuple[float, float]
    noise: float
    is_slower: bool

    def __str__(self) -> str:
        low, high = self.ratio_interval
        found = "slower than" if self.is_slower else "no slower than"
        return (
            f"`auto` is {found} the best of the others ({self.best}), beyond noise: "
            f"{self.ratio:.3f} ({low:.3f} to {high:.3f}) in the rounds that did not choose it. "
            f"Differences up to {self.noise - 1:.1%} are noise here."
        )


def main() -> int:
    arguments = parse_arguments()
    machine = machine_state.observe_quiet(arguments.force)
    if machine is None:
        return 2
    for compare in [COMPARISONS[arguments.only]] if arguments.only else COMPARISONS.values():
        for network in arguments.networks or DEFAULT:
            model = models.build(network, image_size=arguments.image_size)
            with measuring_bar() as progress:
                options = CompileOptions(progress=progress)
                report, verdict = compare(
                    network, model, options, arguments.budget, machine, arguments.without
                )
            print(report.table(), end="\n\n")
            if verdict is not None:
                print(verdict, end="\n\n")
            sys.stdout.flush()
            for path in report.write(arguments.out):
                print(f"wrote {path}", file=sys.stderr)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_measuring_options(parser, budget_s=120, out=Path("benchmarks/results/schedulers"))
    parser.add_argument("--image-size", type=int, help="height and width of images in pixels")
    parser.add_argument(
        "--without", nargs="*", default=[], metavar="SCHEDULER",
        help="leave these out, such as `ios`, which measures many thousand stages of a large "
        "network; `auto` tries it all the same, as long as its budget lasts",
    )  # fmt: skip
    parser.add_argument("--only", choices=COMPARISONS, help="leave out the other comparison")
    return parser.parse_args()


def compare_same_kernels(
    network: str,
    model: onnx.ModelProto,
    options: CompileOptions,
    budget_s: float,
    machine: machine_state.MachineState,
    without: Sequence[str] = (),
) -> tuple[Report, Verdict | None]:
    """Compare all schedulers that do not merge operators, on one compilation.

    Parameters
    ----------
    budget_s: seconds to measure.
    without: names of schedulers to leave out.

    Raises
    ------
    AssertionError: a schedule gives other output bits than sequential execution.
    """
    names = [name for name in tvm_interop.schedulers() if name not in MERGING]
    contestants = [f"ours, {name}" for name in names]
    report = Report(network, BASELINE, machine, not machine.is_quiet, {})
    report.skipped = {name: why for name, why in LEFT_OUT.items() if name in contestants}
    report.skipped |= {f"ours, {name}": "it merges operators; see below" for name in MERGING}
    compilation = Compilation(model, options)
    report.skipped |= {f"ours, {name}": "it was left out by request" for name in without}
    kept = [name for name in names if f"ours, {name}" not in report.skipped]
    times = _measure(report, model, compilation, kept, budget_s)
    differ = [name for name, difference in report.differences.items() if difference != 0]
    assert not differ, f"{network}: output bits unlike those of sequential: {', '.join(differ)}"
    return report, judge(times)


def compare_merging(
    network: str,
    model: onnx.ModelProto,
    options: CompileOptions,
    budget_s: float,
    machine: machine_state.MachineState,
    without: Sequence[str] = (),
) -> tuple[Report, None]:
    """Compare the schedulers that merge operators with sequential execution and `ios`.

    The parameters are as in `compare_same_kernels`.
    """
    report = Report(f"{network}_merging", BASELINE, machine, not machine.is_quiet, {})
    compilation = Compilation(model, options)
    report.skipped = {f"ours, {name}": "it was left out by request" for name in without}
    names = [name for name in ("sequential", "ios", *MERGING) if name not in without]
    _measure(report, model, compilation, names, budget_s)
    return report, None


COMPARISONS = {"same-kernels": compare_same_kernels, "merging": compare_merging}


def judge(times: Mapping[str, npt.NDArray[np.float64]]) -> Verdict:
    """Compare `auto` with the best of the other schedulers.

    Parameters
    ----------
    times: (rounds,) microseconds of each contestant, as `harness.measure` returns them.
    """
    choosing = {name: found[::2] for name, found in times.items()}
    judging = {name: found[1::2] for name, found in times.items()}
    others = [name for name in times if name not in (AUTO, BASELINE + harness.AGAIN)]
    best = min(others, key=lambda name: float(np.median(choosing[name])))
    noise = harness.summarise(judging, BASELINE)[BASELINE + harness.AGAIN]
    auto = harness.summarise(judging, best)[AUTO]
    off = float(np.exp(max(abs(np.log(r)) for r in (noise.ratio, *noise.ratio_interval))))
    is_slower = auto.ratio > 1 and auto.differs(noise)
    return Verdict(best, auto.ratio, auto.ratio_interval, off, is_slower)


def _measure(
    report: Report,
    model: onnx.ModelProto,
    compilation: Compilation,
    schedulers: Sequence[str],
    budget_s: float,
) -> dict[str, npt.NDArray[np.float64]]:
    """Make the schedules, run them against each other, and fill in `report`.

    Returns
    -------
    (rounds,) microseconds of each contestant, by name.
    """
    feed = random_feed(model)
    runners, outputs = {}, {}
    for scheduler in sorted(schedulers, key=lambda name: name != "sequential"):
        ours = Ours(compilation, scheduler)
        runners[ours.name] = ours.prepare(model, feed)
        outputs[ours.name] = [y.copy() for y in runners[ours.name]()]
        report.settings[ours.name] = ours.setting
        searched = f"{ours.name}: {ours.setting}; searched for {ours.search_s:.3f} s"
        print(f"{report.network}: {searched}", file=sys.stderr, flush=True)
    for name, found in outputs.items():
        pairs = zip(found, outputs[BASELINE], strict=True)
        report.differences[name] = max(float(np.abs(y - want).max()) for y, want in pairs)
    rounds = harness.rounds_for(list(runners.values()), budget_s)
    times = harness.measure(runners, BASELINE, rounds)
    report.summaries = harness.summarise(times, BASELINE)
    return times


if __name__ == "__main__":
    sys.exit(main())
