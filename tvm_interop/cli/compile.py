"""The verb `tvm-interop compile`, which turns a model into an artifact."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..errors import ScheduleError
from . import options, shape_options
from .console import counted, json_text, measuring_bar, note_missing_libraries
from .flags import CompileFlags, ScheduleFlags, with_flags
from .formats import check_model_format, check_output_format
from .pass_flags import PassFlags
from .quick_import import import_tvm
from .speed_check_text import speed_check_line

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact
    from ..scheduling import Schedule


Output = Annotated[Path, typer.Option("-o", "--output", help="The artifact to write.")]
OutputFormat = Annotated[
    str, typer.Option("-f", "--output-format", help="Format of the artifact: only `tar` exists.")
]
ModelFormat = Annotated[
    str,
    typer.Option(
        "--model-format",
        help="Format of MODEL; only `onnx` is accepted, and .pt2 files need no format.",
        rich_help_panel="Model",
    ),
]
ScheduleFile = Annotated[
    Path | None,
    typer.Option(
        "--schedule",
        help="Use this schedule (see `tvm-interop schedule`) instead of a scheduler's.",
        rich_help_panel="Scheduling",
    ),
]
KeepSlower = Annotated[
    bool,
    typer.Option(
        "--keep-slower",
        help="Ship the schedule even if sequential execution is faster.",
        rich_help_panel="Scheduling",
    ),
]


@with_flags
def compile_model(
    model: options.Model,
    output: Output = Path("model.tar"),
    output_format: OutputFormat = "tar",
    input_shapes: shape_options.SeveralInputShapes = None,
    dims: shape_options.Dims = None,
    batch_sizes: shape_options.BatchSizes = None,
    shapes: shape_options.Ranges = None,
    most_sizes: shape_options.MostSizes = None,
    model_format: ModelFormat = "onnx",
    max_error: options.MaxError = None,
    inputs: options.ErrorInputs = None,
    scheduler: options.Scheduler = "auto",
    schedule: ScheduleFile = None,
    keep_slower: KeepSlower = False,
    *,
    flags: CompileFlags,
    scheduling: ScheduleFlags,
    passes: PassFlags,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Compile a model: schedule its operators by measured latencies and write one artifact.

    The schedule is measured against sequential execution. If the schedule is not faster, the
    artifact runs sequentially, and a line of the output says so.

    --time-budget limits the time of the whole compilation. When the time is over, the artifact gets
    the best schedule found so far. The output and the artifact's manifest list the steps that were
    left out.
    """
    import_tvm(str(model))
    from ..compiler.api import compile as compile_to_artifact
    from ..execution.cuda import runs_on_cuda
    from .input_files import read_inputs

    check_output_format(output_format)
    check_model_format(model_format)
    by_dims = shape_options.shapes_by_dims(model, dims)
    given = None if schedule is None else read_schedule(schedule)
    ranges = shape_options.parse_ranges(shapes)
    others = {"max_error": max_error, "shapes": ranges, "most_sizes": most_sizes}
    limit: dict[str, Any] = {name: value for name, value in others.items() if value is not None}
    with passes.context(), measuring_bar() as progress:
        artifact = compile_to_artifact(
            model,
            scheduler=scheduler,
            out=output,
            schedule=given,
            input_shapes=[
                {**by_dims, **(shape_options.parse_input_shapes(text) or {})}
                for text in input_shapes or [""]
            ],
            batch_sizes=shape_options.parse_batch_sizes(batch_sizes),
            latency=options.parse_latency(scheduling.latency),
            keep_slower=keep_slower,
            progress=progress,
            inputs=None if inputs is None else read_inputs(inputs),
            **limit,
            link=options.parse_link(scheduling.link_gb_s, scheduling.link_us),
            **flags.compile_options(),
            **scheduling.scheduler_options(),
        )
    if not as_json:
        note_missing_libraries(
            options.parse_names(flags.providers), "cuda" if runs_on_cuda(artifact.plan) else "cpu"
        )
    if as_json:
        typer.echo(json_text(_facts(artifact)))
        return
    if given is not None and schedule is not None:
        typer.echo(_given_line(artifact, given, schedule.name))
    typer.echo(_summary(artifact, None if schedule is None else schedule.name))


def read_schedule(path: Path) -> Schedule:
    """Read a schedule from a file, which a person may have edited.

    Raises
    ------
    ScheduleError
        The file is missing or holds no valid schedule; the message names the file.
    """
    from ..scheduling import Schedule

    try:
        return Schedule.from_json(path.read_text("utf-8"))
    except OSError as error:
        raise ScheduleError(f"cannot read schedule `{path}`: {error.strerror}") from error
    except (ScheduleError, UnicodeDecodeError) as error:
        raise ScheduleError(f"schedule `{path}`: {error}") from error


def _given_line(artifact: Artifact, given: Schedule, name: str) -> str:
    """A line that describes the schedule given with `--schedule`, and says whether the artifact
    runs it.
    """
    stages = f"{len(given.stages)} stages on " if given.stages else ""
    checked = artifact.manifest.speed_check
    if checked is not None and checked.shipped == "sequential":
        ships = "it was not found faster, so the artifact runs sequentially:"
    elif artifact.schedule.scheduler == "sequential" and artifact.manifest.not_tried:
        ships = "its speed was not checked in time, so the artifact runs sequentially:"
    else:
        ships = "the artifact runs it:"
    return f"`{name}` has {stages}{given.num_streams} streams; {ships}"


def _facts(artifact: Artifact) -> dict[str, object]:
    checked, filled = artifact.manifest.speed_check, artifact.manifest.row_sizes
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
        "merge_check": msgspec.to_builtins(artifact.manifest.merge_check),
        "program_check": msgspec.to_builtins(artifact.manifest.program_check),
        "batch_sizes": list(artifact.manifest.batch_sizes) or None,
        "row_sizes": msgspec.to_builtins(artifact.manifest.row_sizes),
        "mean_filling": filled and filled.mean_filling,
        "kernels": dict(_kernels(artifact)),
        "not_tried": _not_tried(artifact),
        "ratio_to_sequential": checked.ratio if checked else None,
        "noise_ratio": checked.noise_ratio if checked else None,
    }


def _not_tried(artifact: Artifact) -> list[str]:
    """The steps that the compilation left out because its time budget was used up."""
    each = (told for one in (artifact, *artifact.others) for told in one.manifest.not_tried)
    return list(dict.fromkeys(each))


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
    """The numbers of convolutions and matrix products, by the type of the numbers that they
    multiply.

    The most frequent type of numbers comes first in the list. The parts of a divided operator count
    as one operator.
    """
    wholes: dict[str, str] = {
        op.whole: op.description.dtype
        for op in artifact.plan.operators
        if op.description is not None
        and op.description.multiplies
        and not op.description.is_quantised
    }
    return Counter(wholes.values()).most_common()


def _kernels(artifact: Artifact) -> list[tuple[str, int]]:
    from ..machine.kernel_libraries import TVM

    return Counter(op.library or TVM for op in artifact.plan.operators).most_common()


def _summary(artifact: Artifact, given: str | None) -> str:
    facts = _facts(artifact)
    stages = f"{facts['stages']} stages on " if facts["stages"] else ""
    lines = [
        f"{facts['operators']} operators, {stages}{counted(len(artifact.plan.streams), 'stream')}, "
        f"{facts['waits']} waits, {artifact.plan.arena_bytes / 2**20:.1f} MiB of activations",
        "kernels: " + ", ".join(f"{number} of {name}" for name, number in _kernels(artifact)),
    ]
    if artifact.manifest.row_sizes is not None:
        filling = artifact.manifest.row_sizes.mean_filling
        lines.append(
            f"shapes: {artifact.manifest.row_sizes}; in the mean over all sizes, a run computes "
            f"{filling:.3g} times the rows that it is given"
        )
    if artifact.precision_choice is not None:
        lines.append(f"precision {artifact.precision_choice}")
    if artifact.manifest.quantised is not None:
        lines.append(f"quantised: {artifact.manifest.quantised}")
    for check in (artifact.manifest.merge_check, artifact.manifest.program_check):
        if check is not None:
            lines.append(str(check))
    in_bf16 = artifact.manifest.precision
    if in_bf16 is not None:
        products = ", ".join(f"{number} of {dtype}" for dtype, number in _products(artifact))
        lines.append(
            f"bf16: convolutions and matrix products: {products}; error against f32 on "
            f"{in_bf16.inputs} inputs: {in_bf16.error:.2g}; largest difference: "
            f"{in_bf16.largest_difference:.2g} times the largest output"
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
    speed_check = speed_check_line(artifact, given)
    if speed_check is not None:
        lines.append(speed_check)
    not_tried = _not_tried(artifact)
    if not_tried:
        lines.append(f"not tried within --time-budget: {'; '.join(not_tried)}")
    if artifact.others:
        shapes = "; ".join(str(shapes) for shapes in artifact.input_shapes)
        lines.append(
            f"{1 + len(artifact.others)} shapes (the figures above are of the first): {shapes}"
        )
    return "\n".join([*lines, f"wrote {artifact.path}"])
