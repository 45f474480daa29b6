"""`tvm-interop schedule`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..atomic_file import replacing
from ..compiler import Compilation, CompileOptions
from . import options
from .console import measuring_bar


def schedule_model(
    model: options.Model,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File to write; by default the schedule is printed."),
    ] = None,
    target: options.Target = "llvm",
    input_shapes: options.InputShapes = None,
    scheduler: options.Scheduler = "ios",
    streams: options.Streams = None,
    threads: options.Threads = None,
    max_group_ops: options.MaxGroupOps = None,
    max_groups: options.MaxGroups = None,
    endings: options.Endings = None,
    latency_db: options.LatencyDb = None,
    providers: options.Providers = None,
    verbose: options.Verbose = False,
) -> None:
    """Schedule a model and write the schedule as JSON: read it, edit it, compile with it.

    `tvm-interop compile MODEL --schedule schedule.json` takes it back.
    """
    with measuring_bar() as progress:
        compile_options = CompileOptions(
            target, streams, threads, latency_db, progress, options.parse_providers(providers)
        )
        compilation = Compilation(model, compile_options, options.parse_input_shapes(input_shapes))
        schedule = compilation.schedule(
            scheduler,
            **options.scheduler_options(
                max_group_ops=max_group_ops, max_groups=max_groups, endings=endings
            ),
        )
    if output is None:
        typer.echo(schedule.to_json())
        return
    with replacing(output) as temporary:
        Path(temporary).write_text(schedule.to_json() + "\n")
    typer.echo(f"wrote {output}", err=True)
