"""Compares time by operator with onnxruntime: `python -m benchmarks.operator_profile NETWORK`.

Both runtimes run under their own profilers, in turns: onnxruntime with its best number of threads,
ours with the schedule of `--scheduler`. Rows are medians over the runs, by kind of operator and by
group of operators (see `OperatorGroups`).

The rows tell how long each runtime worked on an operator. If several of our operators run at once,
the time is divided equally among them. So our rows and "between operators" add up to the time of
the run. The rows of onnxruntime add up to it too, because onnxruntime runs one operator at a time
on all its threads.

Some differences mean little:
- The profilers take time themselves, and onnxruntime's counts whole microseconds. So rows of a few
  microseconds say nothing. The last line of the first table has the run without profilers.
- Two of our operators that run side by side slow each other down. The rows of both operators
  contain this delay.
- We change layouts within kernels and write concatenations in place. onnxruntime has separate
  operators for both. So compare sums over neighbouring operators, not single rows.
- The medians of operators do not add up exactly to the median of the whole run.
- An operator may match an ONNX node in one runtime only, because the other runtime fused it with
  more operators or left it out. Such an operator appears only in the table by kind.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvm_interop import GraphModule
from tvm_interop.compiler.api import Compilation
from tvm_interop.models.source import read_onnx

from . import harness, machine_state
from .bench import random_feed
from .operator_groups import OperatorGroups, kind_of
from .options import add_force
from .peers import Feed, OnnxRuntime, read_in_place, setting_of, thread_choices

LOSSES = 10
BETWEEN = "between operators"


@dataclass(frozen=True)
class Span:
    """The time in which an operator ran, in microseconds.

    Attributes
    ----------
    kind: kind of the operator, which is used if `name` matches no ONNX node.
    """

    name: str
    kind: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Run:
    """The operators of one profiled run, and the microseconds of the whole run."""

    spans: list[Span]
    took_us: float


@dataclass(frozen=True)
class Row:
    """The microseconds of both runtimes for one row of a table."""

    name: str
    kind: str
    ours_us: float
    onnxruntime_us: float

    @property
    def loss_us(self) -> float:
        """Microseconds that we take longer than onnxruntime; negative if we are faster."""
        return self.ours_us - self.onnxruntime_us


@dataclass(frozen=True)
class Comparison:
    """The profile of a network.

    Attributes
    ----------
    kinds: a row for each kind of operator, with the longest first, then one for the time between
        operators.
    operators: a row for each group of operators that both runtimes have, with our largest loss
        first.
    profiled, plain: the whole run, under the profilers and without them.
    """

    kinds: list[Row]
    operators: list[Row]
    profiled: Row
    plain: Row | None = None


def main() -> int:
    arguments = _arguments()
    machine = machine_state.observe_quiet(arguments.force)
    if machine is None:
        return 2
    found, settings = profile(read_onnx(arguments.network), arguments.scheduler, arguments.runs)
    if arguments.json:
        told = {"network": arguments.network, "machine": machine.as_dict(), "settings": settings}
        print(json.dumps({**told, **asdict(found)}, indent=1))
    else:
        print(f"{arguments.network}; {'; '.join(f'{k}: {v}' for k, v in settings.items())}\n")
        print(tables(found))
    return 0


def profile(
    model: onnx.ModelProto, scheduler: str, runs: int, *, rest_s: float = harness.REST_S
) -> tuple[Comparison, dict[str, str]]:
    """Run both runtimes `runs` times, and compare them. Also return the setting of each runtime.

    Parameters
    ----------
    rest_s: seconds of rest before each run.
    """
    feed = random_feed(model)
    compilation = Compilation(model)
    schedule = compilation.schedule(scheduler)
    module = GraphModule(compilation.artifact(schedule))
    theirs = OnnxRuntime(parallel=False, threads=thread_choices())
    plain = {"ours": read_in_place(module, feed), "onnxruntime": theirs.prepare(model, feed)}
    times = harness.measure(plain, "onnxruntime", runs, rest_s=rest_s)
    with _OnnxRuntimeProfiler(theirs, model, feed) as profiler:
        ours = []
        for _ in range(runs):
            time.sleep(rest_s)
            module.run()
            ours.append(_our_run(module))
            time.sleep(rest_s)
            profiler.run()
    found = compare(OperatorGroups(model), ours, profiler.runs)
    whole = Row("run without profilers", "", *(float(np.median(times[side])) for side in plain))
    settings = {"ours": f"{scheduler}: {setting_of(schedule)}", "onnxruntime": theirs.setting}
    return Comparison(found.kinds, found.operators, found.profiled, whole), settings


def compare(groups: OperatorGroups, ours: Sequence[Run], theirs: Sequence[Run]) -> Comparison:
    """Compare the runs of both runtimes by their medians. The field `plain` is left empty."""

    def by_operator(span: Span) -> str | None:
        return groups.of(span.name)

    def by_kind(span: Span) -> str:
        group = groups.of(span.name)
        return span.kind if group is None else groups.kinds[group]

    named = [{by_operator(span) for run in runs for span in run.spans} for runs in (ours, theirs)]
    operators = [
        Row(name, groups.kinds[name], *both)
        for name, both in _medians(by_operator, ours, theirs).items()
        if all(name in names for names in named)
    ]
    kinds = [Row(name, name, *both) for name, both in _medians(by_kind, ours, theirs).items()]
    kinds.sort(key=lambda row: -max(row.ours_us, row.onnxruntime_us))
    between, whole = (
        [float(np.median([measure(run) for run in runs])) for runs in (ours, theirs)]
        for measure in (_between_us, lambda run: run.took_us)
    )
    return Comparison(
        kinds=[*kinds, Row(BETWEEN, BETWEEN, *between)],
        operators=sorted(operators, key=lambda row: -row.loss_us),
        profiled=Row("profiled run", "", *whole),
    )


def shares_us(spans: Sequence[Span]) -> list[float]:
    """Microseconds of each operator; operators that overlap share the overlapping time evenly."""
    shares = [0.0] * len(spans)
    for begin, end in pairwise(sorted({t for s in spans for t in (s.start_us, s.end_us)})):
        running = [i for i, s in enumerate(spans) if s.start_us <= begin and end <= s.end_us]
        for i in running:
            shares[i] += (end - begin) / len(running)
    return shares


def tables(found: Comparison) -> str:
    """Two Markdown tables: the times by kind of operator, and our largest losses by operator."""
    total = found.profiled
    lines = [
        "| | ours us | share | onnxruntime us | share | ratio |",
        "|---|--:|--:|--:|--:|--:|",
        *(
            f"| {row.name} | {row.ours_us:.0f} | {row.ours_us / total.ours_us:.0%} "
            f"| {row.onnxruntime_us:.0f} | {row.onnxruntime_us / total.onnxruntime_us:.0%} "
            f"| {_ratio(row)} |"
            for row in found.kinds
        ),
        *(
            f"| {row.name} | {row.ours_us:.0f} | | {row.onnxruntime_us:.0f} | | {_ratio(row)} |"
            for row in (found.profiled, found.plain)
            if row is not None
        ),
        "",
        "| our largest losses | kind | ours us | onnxruntime us | loss us | ratio |",
        "|---|---|--:|--:|--:|--:|",
        *(
            f"| {row.name} | {row.kind} | {row.ours_us:.0f} | {row.onnxruntime_us:.0f} "
            f"| {row.loss_us:.0f} | {_ratio(row)} |"
            for row in found.operators[:LOSSES]
            if row.loss_us > 0
        ),
    ]
    return "\n".join(lines)


def _ratio(row: Row) -> str:
    return f"{row.ours_us / row.onnxruntime_us:.2f}" if row.onnxruntime_us > 0 else ""


def _medians(
    key: Callable[[Span], str | None], ours: Sequence[Run], theirs: Sequence[Run]
) -> dict[str, tuple[float, float]]:
    """Median microseconds of both runtimes, for each value of `key`.

    Parameters
    ----------
    key: function that returns the row to which an operator belongs, or None to leave it out.
    """
    sides = [[_sums(key, run) for run in runs] for runs in (ours, theirs)]
    names = dict.fromkeys(name for side in sides for run in side for name in run)
    return {
        name: tuple(float(np.median([run.get(name, 0.0) for run in side])) for side in sides)
        for name in names
    }


def _sums(key: Callable[[Span], str | None], run: Run) -> Mapping[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for span, share in zip(run.spans, shares_us(run.spans), strict=True):
        name = key(span)
        if name is not None:
            sums[name] += share
    return sums


def _between_us(run: Run) -> float:
    return run.took_us - sum(shares_us(run.spans))


def _our_run(module: GraphModule) -> Run:
    operators = {op.name: op for op in module.plan.operators}
    spans = []
    for row in module.profile():
        description = operators[row.name].description
        kind = kind_of(description.op) if description is not None else "other"
        spans.append(Span(row.name, kind, row.start_us, row.end_us))
    return Run(spans, max(span.end_us for span in spans))


class _OnnxRuntimeProfiler:
    """Context in which onnxruntime runs under its own profiler.

    The attribute `runs` is filled when the context ends.
    """

    def __init__(self, peer: OnnxRuntime, model: onnx.ModelProto, feed: Feed) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._session = peer.session(model, peer.best_threads, f"{self._folder.name}/profile")
        self._feed = dict(feed)
        self.runs: list[Run] = []

    def __enter__(self) -> _OnnxRuntimeProfiler:
        return self

    def run(self) -> None:
        """Run the model twice. The first run only wakes the threads, and is left out of `runs`."""
        self._session.run(None, self._feed)
        self._session.run(None, self._feed)

    def __exit__(self, *_: object) -> None:
        events = json.loads(Path(self._session.end_profiling()).read_text())
        self._folder.cleanup()
        self.runs = _their_runs(events)[1::2]


def _their_runs(events: Iterable[dict[str, Any]]) -> list[Run]:
    """The runs in the events that onnxruntime's profiler wrote.

    All nodes of a run end before the run itself does. So events are processed in the order of their
    ends, and the end of a run closes the group of its nodes.
    """
    runs: list[Run] = []
    spans: list[Span] = []
    for event in sorted(events, key=lambda event: event["ts"] + event.get("dur", 0)):
        begin, took = float(event["ts"]), float(event.get("dur", 0))
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            name = event["name"].removesuffix("_kernel_time")
            spans.append(Span(name, kind_of(event["args"]["op_name"]), begin, begin + took))
        elif event["name"] == "model_run":
            runs.append(Run(spans, took))
            spans = []
    return runs


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "network", metavar="NETWORK", help="name of a network, such as light:resnet50, or a file"
    )
    parser.add_argument("--scheduler", default="auto", help="our scheduler (default: %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=30, help="runs of each runtime (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON with every operator")
    add_force(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
