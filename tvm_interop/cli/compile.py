"""`tvm-interop compile`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..errors import ScheduleError
from . import options
from .console import measuring_bar, note_missing_libraries
from .formats import check_model_format, check_output_format
from .quick_import import import_tvm

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact
    from ..artifact.manifest import SpeedCheck
    from ..scheduling import Schedule

_PASSES = "TVM's passes"


def compile_model(
    model: options.Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The artifact to write.")] = Path(
        "model.tar"
    ),
    output_format: Annotated[
        str, typer.Option("-f", "--output-format", help="What to write: there is `tar`.")
    ] = "tar",
    target: options.Target = "llvm",
    arch: options.Archs = None,
    input_shapes: options.SeveralInputShapes = None,
    batch_sizes: options.BatchSizes = None,
    model_format: Annotated[
        str, typer.Option("--model-format", help="What MODEL is.", rich_help_panel="Model")
    ] = "onnx",
    scheduler: options.Scheduler = "auto",
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
    stream_priorities: options.StreamPriorities = False,
    allow_tf32: options.AllowTf32 = False,
    precision: options.Precision = "f32",
    keep_f32: options.KeepF32 = None,
    max_error: options.MaxError = None,
    inputs: options.ErrorInputs = None,
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
    keep_slower: Annotated[
        bool,
        typer.Option(
            "--keep-slower",
            help="Ship the schedule even where sequential execution is faster.",
            rich_help_panel="Scheduling",
        ),
    ] = False,
    latency_db: options.LatencyDb = None,
    fresh: options.Fresh = False,
    providers: options.Providers = None,
    tuning_records: options.TuningRecords = None,
    opt_level: Annotated[
        int | None,
        typer.Option(
            "-O",
            "--opt-level",
            min=0,
            max=3,
            help="Which of TVM's passes run; by default TVM's own level, 2.",
            rich_help_panel=_PASSES,
        ),
    ] = None,
    pass_config: Annotated[
        list[str] | None,
        typer.Option(
            "--pass-config",
            metavar="NAME=VALUE",
            help="An entry of TVM's pass configuration; may be given more than once.",
            rich_help_panel=_PASSES,
        ),
    ] = None,
    disabled_pass: Annotated[
        str | None,
        typer.Option(
            "--disabled-pass",
            metavar="NAME,...",
            help="Passes to leave out.",
            rich_help_panel=_PASSES,
        ),
    ] = None,
    print_pass_times: Annotated[
        bool,
        typer.Option(
            "--print-pass-times",
            help="Print how long each pass took.",
            rich_help_panel=_PASSES,
        ),
    ] = False,
    print_ir_before: Annotated[
        str | None,
        typer.Option(
            "--print-ir-before",
            metavar="NAME,...",
            help="Print the program before these passes.",
            rich_help_panel=_PASSES,
        ),
    ] = None,
    print_ir_after: Annotated[
        str | None,
        typer.Option(
            "--print-ir-after",
            metavar="NAME,...",
            help="Print the program after these passes.",
            rich_help_panel=_PASSES,
        ),
    ] = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Compile a model: schedule its operators by measured latencies and write one artifact.

    The schedule is run against sequential execution before it ships; where it is not faster, the
    artifact runs sequentially, and you are told.
    """
    import_tvm(str(model))
    from ..compiler.api import compile as compile_to_artifact
    from ..execution.cuda import runs_on_cuda
    from .pass_context import pass_context
    from .run import read_inputs

    check_output_format(output_format)
    check_model_format(model_format)
    passes = pass_context(
        opt_level,
        pass_config or (),
        disabled_pass,
        print_pass_times,
        print_ir_before,
        print_ir_after,
    )
    with passes, measuring_bar() as progress:
        artifact = compile_to_artifact(
            model,
            target=target,
            scheduler=scheduler,
            out=output,
            schedule=read_schedule(schedule) if schedule is not None else None,
            input_shapes=[options.parse_input_shapes(text) or {} for text in input_shapes or [""]],
            batch_sizes=options.parse_batch_sizes(batch_sizes),
            streams=streams,
            threads=threads,
            latency=options.parse_latency(latency),
            latency_db=latency_db,
            fresh=fresh,
            keep_slower=keep_slower,
            progress=progress,
            providers=options.parse_names(providers),
            archs=options.parse_names(arch),
            tuning_records=tuning_records,
            stream_priorities=stream_priorities,
            allow_tf32=allow_tf32,
            precision=precision,  # type: ignore[arg-type]  # Checked there.
            keep_f32=options.parse_names(keep_f32) or (),
            inputs=None if inputs is None else read_inputs(inputs),
            **({} if max_error is None else {"max_error": max_error}),
            link=options.parse_link(link_gb_s, link_us),
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
    if not as_json:
        note_missing_libraries(
            options.parse_names(providers), "cuda" if runs_on_cuda(artifact.plan) else "cpu"
        )
    typer.echo(json.dumps(_facts(artifact)) if as_json else _summary(artifact))


def read_schedule(path: Path) -> Schedule:
    """Read a schedule a person may have edited.

    Raises
    ------
    ScheduleError
        Not there, or no schedule; says which file.
    """
    from ..scheduling import Schedule

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
        "devices": list(artifact.plan.devices),
        "copies": sum(op.is_copy for op in artifact.plan.operators),
        "predicted_us": artifact.schedule.makespan,
        "prices": artifact.schedule.stats.get("prices"),
        "input_shapes": artifact.input_shapes,
        "precision": _precision(artifact),
        "precision_choice": artifact.precision_choice,
        "quantised": msgspec.to_builtins(artifact.manifest.quantised),
        "batch_sizes": list(artifact.manifest.batch_sizes) or None,
        "kernels": dict(_kernels(artifact)),
        "ratio_to_sequential": checked.ratio if checked else None,
        "noise_ratio": checked.noise_ratio if checked else None,
    }


def _precision(artifact: Artifact) -> dict[str, object]:
    found = artifact.manifest.precision
    if found is None:
        return {"name": "f32"}
    return {
        "name": found.name,
        "error": found.error,
        "largest_difference": found.largest_difference,
        "inputs": found.inputs,
        "keep_f32": list(found.keep_f32),
        "products": dict(_products(artifact)),
    }


def _products(artifact: Artifact) -> list[tuple[str, int]]:
    """How many convolutions and matrix products multiply what, parts of one counted as one."""
    wholes: dict[str, str] = {
        op.name.partition("[")[0]: op.description.dtype
        for op in artifact.plan.operators
        if op.description is not None
        and op.description.multiplies
        and not op.description.is_quantised
    }
    return Counter(wholes.values()).most_common()


def _kernels(artifact: Artifact) -> list[tuple[str, int]]:
    from ..machine.kernel_libraries import TVM

    return Counter(op.library or TVM for op in artifact.plan.operators).most_common()


def _summary(artifact: Artifact) -> str:
    facts = _facts(artifact)
    stages = f"{facts['stages']} stages on " if facts["stages"] else ""
    lines = [
        f"{facts['operators']} operators, {stages}{facts['streams']} streams, "
        f"{facts['waits']} waits, {artifact.plan.arena_bytes / 2**20:.1f} MiB of activations",
        "kernels: " + ", ".join(f"{number} of {name}" for name, number in _kernels(artifact)),
    ]
    if artifact.precision_choice is not None:
        lines.append(f"precision {artifact.precision_choice}")
    if artifact.manifest.quantised is not None:
        lines.append(f"quantised: {artifact.manifest.quantised}")
    in_bf16 = artifact.manifest.precision
    if in_bf16 is not None:
        products = ", ".join(f"{number} of {dtype}" for dtype, number in _products(artifact))
        lines.append(
            f"bf16: products: {products}; error to f32 on {in_bf16.inputs} inputs "
            f"{in_bf16.error:.2g}, largest difference {in_bf16.largest_difference:.2g} of the "
            "largest number"
        )
    if len(artifact.plan.devices) > 1:
        lines.append(
            f"on {', '.join(artifact.plan.devices)}, with {facts['copies']} copies between them"
        )
    checked = artifact.manifest.speed_check
    if facts["prices"] is not None:
        unchecked = "" if checked else ", not checked against sequential execution"
        predicted_ms = (artifact.schedule.makespan or 0.0) / 1e3
        lines.append(f"latencies: {facts['prices']}; predicted {predicted_ms:.3f} ms{unchecked}")
    if checked is not None:
        lines.append(
            f"{checked.scheduled_us / 1e3:.3f} ms, "
            f"sequential {checked.sequential_us / 1e3:.3f} ms: ratio {checked.ratio:.3f}"
            f"{_interval(checked)} (sequential against itself {checked.noise_ratio:.3f})"
        )
        if checked.shipped == "sequential":
            lines.append(f"{_not_faster(artifact)}, so the artifact runs sequentially")
    if artifact.others:
        shapes = "; ".join(str(shapes) for shapes in artifact.input_shapes)
        lines.append(f"{1 + len(artifact.others)} shapes (figures of the first): {shapes}")
    return "\n".join([*lines, f"wrote {artifact.path}"])


def _interval(checked: SpeedCheck) -> str:
    if checked.interval is None:
        return ""
    return " ({:.3f} to {:.3f}".format(*checked.interval) + f" by {checked.rounds} rounds)"


def _not_faster(artifact: Artifact) -> str:
    if artifact.manifest.scheduler == "auto":
        return "the fastest schedule found is not faster beyond doubt"
    return (
        f"`{artifact.manifest.scheduler}` is not faster beyond doubt (--keep-slower ships it all "
        "the same)"
    )
