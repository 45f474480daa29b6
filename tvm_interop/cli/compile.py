"""`tvm-interop compile`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from ..artifact import Artifact
from ..compiler import compile as compile_to_artifact
from ..errors import ScheduleError
from ..kernel_libraries import TVM
from ..scheduling import Schedule
from . import options
from .console import measuring_bar, note_missing_libraries


def compile_model(
    model: options.Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The artifact to write.")] = Path(
        "model.tar"
    ),
    target: options.Target = "llvm",
    input_shapes: options.InputShapes = None,
    scheduler: options.Scheduler = "ios",
    schedule: Annotated[
        Path | None,
        typer.Option(
            "--schedule",
            help="Use this schedule (see `tvm-interop schedule`) instead of a scheduler's.",
            rich_help_panel="Scheduling",
        ),
    ] = None,
    streams: options.Streams = None,
    threads: options.Threads = None,
    max_group_ops: options.MaxGroupOps = None,
    max_groups: options.MaxGroups = None,
    endings: options.Endings = None,
    keep_slower: Annotated[
        bool,
        typer.Option(
            "--keep-slower",
            help="Ship the schedule even where sequential execution is faster.",
            rich_help_panel="Scheduling",
        ),
    ] = False,
    latency_db: options.LatencyDb = None,
    providers: options.Providers = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Compile a model: schedule its operators by measured latencies and write one artifact.

    The schedule is run against sequential execution before it ships; where it is not faster, the
    artifact runs sequentially, and you are told.
    """
    with measuring_bar() as progress:
        artifact = compile_to_artifact(
            model,
            target=target,
            scheduler=scheduler,
            out=output,
            schedule=read_schedule(schedule) if schedule is not None else None,
            input_shapes=options.parse_input_shapes(input_shapes),
            streams=streams,
            threads=threads,
            latency_db=latency_db,
            keep_slower=keep_slower,
            progress=progress,
            providers=options.parse_providers(providers),
            **options.scheduler_options(
                max_group_ops=max_group_ops, max_groups=max_groups, endings=endings
            ),
        )
    if not as_json:
        note_missing_libraries(options.parse_providers(providers))
    typer.echo(json.dumps(_facts(artifact)) if as_json else _summary(artifact))


def read_schedule(path: Path) -> Schedule:
    """Read a schedule a person may have edited.

    Raises
    ------
    ScheduleError
        Not there, or no schedule; says which file.
    """
    try:
        return Schedule.from_json(path.read_text())
    except OSError as error:
        raise ScheduleError(f"cannot read schedule `{path}`: {error.strerror}") from error
    except (ScheduleError, UnicodeDecodeError) as error:
        raise ScheduleError(f"schedule `{path}`: {error}") from error


def _facts(artifact: Artifact) -> dict[str, object]:
    checked = artifact.manifest.speed_check
    return {
        "artifact": str(artifact.path),
        "scheduler": artifact.manifest.scheduler,
        "shipped": artifact.schedule.scheduler,
        "operators": len(artifact.plan.operators),
        "stages": len(artifact.schedule.stages) or None,
        "streams": len(artifact.plan.streams),
        "waits": sum(len(op.waits) for op in artifact.plan.operators),
        "arena_bytes": artifact.plan.arena_bytes,
        "kernels": dict(_kernels(artifact)),
        "ratio_to_sequential": checked.ratio if checked else None,
        "noise_ratio": checked.noise_ratio if checked else None,
    }


def _kernels(artifact: Artifact) -> list[tuple[str, int]]:
    return Counter(op.library or TVM for op in artifact.plan.operators).most_common()


def _summary(artifact: Artifact) -> str:
    facts = _facts(artifact)
    stages = f"{facts['stages']} stages on " if facts["stages"] else ""
    lines = [
        f"{facts['operators']} operators, {stages}{facts['streams']} streams, "
        f"{facts['waits']} waits, {artifact.plan.arena_bytes / 2**20:.1f} MiB of activations",
        "kernels: " + ", ".join(f"{number} of {name}" for name, number in _kernels(artifact)),
    ]
    checked = artifact.manifest.speed_check
    if checked is not None:
        lines.append(
            f"{checked.scheduled_us / 1e3:.3f} ms, "
            f"sequential {checked.sequential_us / 1e3:.3f} ms: ratio {checked.ratio:.3f} "
            f"(sequential against itself {checked.noise_ratio:.3f})"
        )
        if checked.shipped == "sequential":
            lines.append(
                f"`{facts['scheduler']}` is not faster here, so the artifact runs sequentially "
                "(--keep-slower ships the schedule all the same)"
            )
    return "\n".join([*lines, f"wrote {artifact.path}"])
