"""`tvm-interop schedule`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..atomic_file import replacing
from . import options
from .console import measuring_bar

if TYPE_CHECKING:
    from ..scheduling import Schedule


def schedule_model(
    model: options.Model,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File to write; by default the schedule is printed."),
    ] = None,
    target: options.Target = "llvm",
    arch: options.Archs = None,
    input_shapes: options.InputShapes = None,
    scheduler: options.Scheduler = "auto",
    streams: options.Streams = None,
    threads: options.Threads = None,
    max_group_ops: options.MaxGroupOps = None,
    max_groups: options.MaxGroups = None,
    endings: options.Endings = None,
    latency: options.Latency = "measured",
    gpus: options.Gpus = None,
    window: options.Window = None,
    intra: options.Intra = None,
    link_gb_s: options.LinkGbS = None,
    link_us: options.LinkUs = None,
    max_measurements: options.MaxMeasurements = None,
    time_budget: options.TimeBudget = None,
    latency_db: options.LatencyDb = None,
    providers: options.Providers = None,
    tuning_records: options.TuningRecords = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Schedule a model and write the schedule as JSON: read it, edit it, compile with it.

    `tvm-interop compile MODEL --schedule schedule.json` takes it back. Without `--output` it is
    printed; with `--json` too, its figures come with it.
    """
    from ..compiler.api import new_compilation
    from ..compiler.options import CompileOptions, parts_for

    with measuring_bar() as progress:
        compile_options = CompileOptions(
            target=target,
            streams=streams,
            threads=threads,
            latency_db=latency_db,
            progress=progress,
            providers=options.parse_names(providers),
            parts=parts_for(scheduler),
            archs=options.parse_names(arch),
            tuning_records=tuning_records,
            link=options.parse_link(link_gb_s, link_us),
        )
        shapes = options.parse_input_shapes(input_shapes)
        compilation = new_compilation(model, compile_options, shapes)
        schedule = compilation.schedule(
            scheduler,
            options.parse_latency(latency),
            **options.scheduler_options(
                gpus=gpus,
                window=window,
                intra=intra,
                max_group_ops=max_group_ops,
                max_groups=max_groups,
                endings=endings,
                max_measurements=max_measurements,
                time_budget_s=time_budget,
            ),
        )
    if output is not None:
        with replacing(output) as temporary:
            Path(temporary).write_text(schedule.to_json() + "\n")
    if as_json:
        typer.echo(json.dumps(_facts(schedule, output)))
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
