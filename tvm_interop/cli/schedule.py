"""The verb `tvm-interop schedule`, which makes a schedule for a model but not an artifact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..atomic_file import check_place, replacing
from . import options, shape_options
from .console import json_text, measuring_bar
from .flags import KernelFlags, ScheduleFlags, SearchTimeFlags, with_flags

if TYPE_CHECKING:
    from ..scheduling import Schedule


@with_flags
def schedule_model(
    model: options.Model,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File to write; by default the schedule is printed."),
    ] = None,
    input_shapes: shape_options.InputShapes = None,
    dims: shape_options.Dims = None,
    scheduler: options.Scheduler = "auto",
    *,
    flags: KernelFlags,
    scheduling: ScheduleFlags,
    limit: SearchTimeFlags,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Schedule a model and write the schedule as JSON, for reading, editing and compiling.

    `tvm-interop compile MODEL --schedule schedule.json` compiles with a schedule. Without
    `--output` the schedule is printed. With `--json` the command prints an object with the schedule
    and some numbers about it, such as the number of stages.
    """
    from ..compiler.api import new_compilation
    from ..compiler.options import CompileOptions

    if output is not None:
        check_place(output)
    with measuring_bar() as progress:
        compile_options = CompileOptions(
            **flags.compile_options(),
            progress=progress,
            link=options.parse_link(scheduling.link_gb_s, scheduling.link_us),
        )
        shapes = shape_options.shapes_of(model, input_shapes, dims)
        compilation = new_compilation(model, compile_options, shapes)
        schedule = compilation.schedule(
            scheduler,
            options.parse_latency(scheduling.latency),
            **scheduling.scheduler_options(),
            **limit.scheduler_options(),
        )
    if output is not None:
        with replacing(output) as temporary:
            Path(temporary).write_text(schedule.to_json() + "\n", "utf-8")
    if as_json:
        typer.echo(json_text(_facts(schedule, output)))
    elif output is None:
        typer.echo(schedule.to_json())
    else:
        typer.echo(f"wrote {output}", err=True)


def _facts(schedule: Schedule, output: Path | None) -> dict[str, Any]:
    facts = {
        "scheduler": schedule.scheduler,
        "operators": len(schedule.op_names),
        "stages": len(schedule.stages) or None,
        "streams": schedule.num_streams,
        "predicted_us": schedule.makespan,
        "search_us": schedule.stats.get("search_us"),
        "prices": schedule.stats.get("prices"),
    }
    if output is not None:
        return {"output": str(output), **facts}
    return {**facts, "schedule": json.loads(schedule.to_json())}
