"""Schedules a real network, runs it, and compares the schedulers. `make demo`.

The network is one of the architectures that the onnx package ships, with seeded random weights.
Every figure is measured in this run. The schedulers run in interleaved rounds. Sequential execution
takes part twice, which shows the noise. The outputs are compared with onnxruntime's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

import tvm_interop
from tvm_interop.cli.console import measuring_bar
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.compiler.new_processes import check_twice
from tvm_interop.machine.cpu_name import cpu_model
from tvm_interop.models import light
from tvm_interop.scheduling import Schedule

SCHEDULERS = ("sequential", "greedy", "lios", "ios")
MEASURING_S = 30.0
"""About how long the final comparison takes, in seconds."""


@dataclass
class Row:
    """The results of one scheduler, which are one row of the table.

    Attributes
    ----------
    stages, streams, waits: numbers of stages, streams, and waits across streams in the plan.
    search_s, measuring_s: seconds of the search alone, and of its measurements.
    stages_measured: number of stages that were measured for this scheduler. A stage that an earlier
        scheduler needed too is not measured again.
    median_us: median microseconds of a run.
    bit_equal: whether the output bits are those of sequential execution.
    """

    scheduler: str
    stages: int
    streams: int
    waits: int
    search_s: float
    stages_measured: int
    measuring_s: float
    median_us: float = 0.0
    ratio_to_sequential: float = 0.0
    bit_equal: bool = False


def main() -> int:
    arguments = parse_arguments()
    console = Console(stderr=arguments.json)
    if not console.is_terminal:
        console.width = 120  # Rich assumes 80 columns for a file, too few for the table.
    console.print(f"[bold]{arguments.model}[/bold], random weights, on {cpu_model()}")
    model = light.build(arguments.model)
    with measuring_bar() as progress:
        compilation = Compilation(
            model, CompileOptions(latency_db=arguments.latency_db, progress=progress)
        )
        console.print(
            f"{compilation.graph.num_ops} operators, {compilation.graph.num_edges} edges, "
            f"width {compilation.graph.width}; {compilation.streams} streams of "
            f"{compilation.threads} thread(s)"
        )
        rows, schedules = run_schedulers(compilation)
    modules = {
        name: tvm_interop.GraphModule(compilation.artifact(s)) for name, s in schedules.items()
    }
    modules["sequential again"] = tvm_interop.GraphModule(
        compilation.artifact(schedules["sequential"])
    )
    max_abs_diff, bit_equal = check_outputs(model, modules)
    noise_ratio = measure(modules, rows)
    for row in rows:
        row.bit_equal = bit_equal[row.scheduler]
    artifact = write_best(compilation, rows, schedules, arguments.out / f"{arguments.model}.tar")
    result = {
        "model": arguments.model,
        "rows": [vars(row) for row in rows],
        "noise_ratio": noise_ratio,
        "max_abs_diff": max_abs_diff,
        "bit_equal": all(bit_equal.values()),
        "artifact": str(artifact.path),
        "shipped": artifact.schedule.scheduler,
        "machine": cpu_model(),
    }
    console.print(table(rows))
    console.print(
        f"sequential against itself: {noise_ratio:.3f}; largest difference to onnxruntime: "
        f"{max_abs_diff:.2e}; bit-equal to sequential: {'all' if result['bit_equal'] else 'NO'}"
    )
    console.print(f"shipped `{result['shipped']}`: {result['artifact']}", soft_wrap=True)
    if arguments.json:
        print(json.dumps(result))
    return 0 if result["bit_equal"] else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="inception_v1", choices=light.names())
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--latency-db", default=None, help="file of measured latencies")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder to write to")
    return parser.parse_args()


def run_schedulers(compilation: Compilation) -> tuple[list[Row], dict[str, Schedule]]:
    """Run every scheduler, and return the rows of the table and the schedules by name.

    The seconds of a measurement count towards the first scheduler that asks for it, although later
    schedulers use the result too.
    """
    rows, schedules = [], {}
    for name in SCHEDULERS:
        measured_before = compilation.measured_latency.measured
        began = time.perf_counter()
        schedule = compilation.schedule(name)
        took = time.perf_counter() - began
        search_s = schedule.stats["search_us"] / 1e6
        rows.append(
            Row(
                scheduler=name,
                stages=len(schedule.stages),
                streams=schedule.num_streams,
                waits=sum(len(op.waits) for op in compilation.plan(schedule).operators),
                search_s=search_s,
                stages_measured=compilation.measured_latency.measured - measured_before,
                measuring_s=took - search_s,
            )
        )
        schedules[name] = schedule
    return rows, schedules


def check_outputs(
    model: object, modules: dict[str, tvm_interop.GraphModule]
) -> tuple[float, dict[str, bool]]:
    """Compare the outputs of one run of each module.

    Returns
    -------
    The largest absolute difference between the outputs of sequential execution and of onnxruntime.
    For each module, whether it gives the output bits of sequential execution.
    """
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    shapes, dtypes = modules["sequential"].get_input_info()
    rng = np.random.default_rng(0)
    feed = {n: rng.standard_normal(s).astype(dtypes[n]) for n, s in shapes.items()}
    expected = session.run(None, feed)
    results = {}
    for name, module in modules.items():
        module.run(**feed)
        results[name] = [module.get_output(i).numpy() for i in range(module.get_num_outputs())]
    difference = max(
        float(np.abs(got - want).max())
        for got, want in zip(results["sequential"], expected, strict=True)
    )
    bit_equal = {
        name: all(map(np.array_equal, got, results["sequential"])) for name, got in results.items()
    }
    return difference, bit_equal


def measure(modules: dict[str, tvm_interop.GraphModule], rows: list[Row]) -> float:
    """Fill in the medians and ratios of `rows`.

    Returns
    -------
    The noise: the median time of a second copy of sequential execution, divided by the median time
        of the first copy.
    """
    trial = tvm_interop.measure_interleaved(modules, repeats=1, warmup=1)
    round_s = sum(times[0] for times in trial.values()) / 1e6
    rounds = int(np.clip(MEASURING_S / round_s, 11, 201))
    timed = tvm_interop.measure_interleaved(modules, repeats=rounds, warmup=0)
    median = {name: float(np.median(times)) for name, times in timed.items()}
    for row in rows:
        row.median_us = median[row.scheduler]
        row.ratio_to_sequential = median[row.scheduler] / median["sequential"]
    return median["sequential again"] / median["sequential"]


def write_best(
    compilation: Compilation, rows: list[Row], schedules: dict[str, Schedule], path: Path
) -> tvm_interop.Artifact:
    """Write the artifact of the fastest schedule.

    A schedule other than the sequential one is first timed against sequential execution. If it is
    not faster, the artifact runs sequentially.
    """
    best = min(rows, key=lambda row: row.median_us).scheduler
    checked = None
    if best != "sequential":
        checked = check_twice(compilation, schedules[best])
    artifact = compilation.artifact(schedules[best], checked)
    path.parent.mkdir(parents=True, exist_ok=True)
    artifact.save(path)
    return artifact


def table(rows: list[Row]) -> Table:
    drawn = Table(box=None, pad_edge=False)
    drawn.add_column("scheduler")
    columns = (
        "stages", "streams", "waits", "search s", "measured", "measuring s", "median ms", "ratio",
    )  # fmt: skip
    for column in columns:
        drawn.add_column(column, justify="right")
    for row in rows:
        drawn.add_row(
            row.scheduler,
            str(row.stages) if row.stages else "-",
            str(row.streams),
            str(row.waits),
            f"{row.search_s:.4f}",
            str(row.stages_measured),
            f"{row.measuring_s:.1f}",
            f"{row.median_us / 1e3:.2f}",
            f"{row.ratio_to_sequential:.3f}",
        )
    return drawn


if __name__ == "__main__":
    sys.exit(main())
