"""The verb `tvm-interop bench`, which compares schedulers on one model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from ..errors import InputError
from . import options, shape_options
from .console import json_text, measuring_bar, table
from .flags import DeviceFlags, with_flags
from .names import SCHEDULERS

if TYPE_CHECKING:
    from ..compiler.api import Compilation

SEQUENTIAL = "sequential"
_AGAIN = "sequential again"
_HEADINGS = ("scheduler", "stages", "streams", "waits", "arena", "search", "median", "ratio")


@dataclass(frozen=True)
class Row:
    """The results of one scheduler.

    Attributes
    ----------
    stages: the number of stages; 0 if the schedule has none.
    streams: the number of streams.
    waits: the number of waits of one operator for another.
    arena_bytes: the size of the memory for intermediate tensors, in bytes.
    search_us: the time that the scheduler took, in microseconds.
    median_us: the median latency, in microseconds.
    ratio: the median latency of the scheduler's schedule divided by the median latency of
        sequential execution. Below 1, the schedule is faster.
    """

    scheduler: str
    stages: int
    streams: int
    waits: int
    arena_bytes: int
    search_us: float
    median_us: float
    ratio: float


@with_flags
def compare(
    model: options.Model,
    names: Annotated[
        str,
        typer.Option(
            "--schedulers", metavar="NAME,...", help=f"One or more of {', '.join(SCHEDULERS)}."
        ),
    ] = "greedy,lios,ios",
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="How many times each schedule runs.")
    ] = 30,
    input_shapes: shape_options.InputShapes = None,
    dims: shape_options.Dims = None,
    *,
    flags: DeviceFlags,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Compare the schedules of several schedulers on one model, in interleaved rounds.

    Each round runs each schedule once, in a new random order, and sequential execution twice. The
    difference between the two medians of sequential execution is the noise. If two schedules differ
    by less than the noise, neither counts as faster.
    """
    from ..compiler.api import Compilation, CompileOptions

    chosen = _chosen(names)
    with measuring_bar() as progress:
        compilation = Compilation(
            model,
            CompileOptions(**flags.compile_options(), progress=progress),
            shape_options.shapes_of(model, input_shapes, dims),
        )
        rows, noise_ratio = _measure(compilation, chosen, rounds)
    if as_json:
        facts = {"rows": [asdict(row) for row in rows], "noise_ratio": noise_ratio}
        typer.echo(json_text({"model": str(model), "rounds": rounds, **facts}))
        return
    typer.echo(table([_HEADINGS, *map(_cells, rows)]))
    typer.echo(
        f"sequential execution against itself (the noise): {noise_ratio:.3f}; {rounds} rounds"
    )


def _chosen(text: str) -> list[str]:
    """The schedulers that `text` names, without repetitions, with sequential execution first.

    Raises
    ------
    InputError
        The text does not name a scheduler, or it names one that does not exist.
    """
    from ..scheduling import schedulers

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(
            f"--schedulers does not name a scheduler; the schedulers are {', '.join(schedulers())}"
        )
    for name in names:
        if name not in schedulers():
            raise InputError(
                f"--schedulers: there is no scheduler `{name}`; there are {', '.join(schedulers())}"
            )
    return list(dict.fromkeys([SEQUENTIAL, *names]))


def _measure(compilation: Compilation, names: list[str], rounds: int) -> tuple[list[Row], float]:
    from ..execution.graph_module import GraphModule
    from ..execution.interleaved import measure_interleaved

    schedules = {name: compilation.schedule(name) for name in names}
    artifacts = {name: compilation.artifact(schedule) for name, schedule in schedules.items()}
    modules = {name: GraphModule(artifact) for name, artifact in artifacts.items()}
    modules[_AGAIN] = GraphModule(artifacts[SEQUENTIAL])
    medians = {
        name: float(np.median(times_us))
        for name, times_us in measure_interleaved(modules, rounds).items()
    }
    rows = [
        Row(
            scheduler=name,
            stages=len(schedules[name].stages),
            streams=len(artifacts[name].plan.streams),
            waits=sum(len(op.waits) for op in artifacts[name].plan.operators),
            arena_bytes=artifacts[name].plan.arena_bytes,
            search_us=schedules[name].stats["search_us"],
            median_us=medians[name],
            ratio=medians[name] / medians[SEQUENTIAL],
        )
        for name in names
    ]
    return rows, medians[_AGAIN] / medians[SEQUENTIAL]


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.scheduler,
        str(row.stages or ""),
        str(row.streams),
        str(row.waits),
        f"{row.arena_bytes / 2**20:.1f} MiB",
        f"{row.search_us / 1e3:.1f} ms",
        f"{row.median_us / 1e3:.3f} ms",
        f"{row.ratio:.3f}",
    )
