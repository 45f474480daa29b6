"""The verb `tvm-interop show`, which draws the schedules of artifacts and how artifacts ran."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..atomic_file import check_place, replacing
from ..errors import InputError
from ..machine.cpu_name import cpu_model
from . import options, shape_options
from .console import counted, json_text, measuring_bar

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact
    from ..explaining.api import Explanation
    from ..viz.record import Record


class Format(str, enum.Enum):
    """The kinds of files that `show` writes."""

    html = "html"
    svg = "svg"
    png = "png"
    dot = "dot"


def show(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL.TAR...", help="Artifacts that `compile` wrote.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File to write; by default schedule.FORMAT."),
    ] = None,
    output_format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="html: a page of everything; svg, png: the timelines; dot: the graph. By default "
            "the suffix of --output decides; without a suffix, html.",
        ),
    ] = None,
    runs: Annotated[
        int, typer.Option("--runs", min=1, help="Number of runs; the fastest run is drawn.")
    ] = 9,
    no_run: Annotated[
        bool,
        typer.Option(
            "--no-run",
            help="Draw the plan alone; no code of the artifact is loaded or run.",
        ),
    ] = False,
    with_verdicts: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Add to the page what `explain` says: which independent operators gain by running "
            "side by side, and why other operators do not. Missing latencies are measured, "
            "unless --no-run is given.",
        ),
    ] = False,
    dims: shape_options.RequestDims = None,
    trusted_key: options.TrustedKeys = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Draw the schedules of one or more artifacts, and when each operator really ran.

    Each artifact runs several times, with zeros for inputs. The drawing shows the fastest run,
    because other programs have delayed slower runs.

    An artifact holds machine code, which runs with all your rights. Use --no-run for an artifact
    whose origin you do not know.
    """
    from ..artifact.artifact import load

    chosen = output_format or _format_of(output)
    path = output or Path(f"schedule.{chosen.value}")
    if chosen is Format.dot and len(models) > 1:
        raise InputError("--format dot draws one graph; give one artifact")
    if with_verdicts and chosen is not Format.html:
        raise InputError("--explain adds to the html page; give --format html")
    check_place(path)
    titles = _titles(models)
    artifacts = [load(m, kernels=not no_run, trusted_keys=trusted_key) for m in models]
    request = shape_options.parse_dims(dims) if dims is not None else None
    records = [
        _recorded(artifact, title, 0 if no_run else runs, request)
        for artifact, title in zip(artifacts, titles, strict=True)
    ]
    explanations = _explained(artifacts, not no_run, request) if with_verdicts else []
    with replacing(path) as temporary:
        Path(temporary).write_bytes(_drawn(records, chosen, explanations))
    if as_json:
        typer.echo(json_text({"output": str(path), "records": [_facts(r) for r in records]}))
        return
    _tell(records)
    typer.echo(f"wrote {path}")


def _tell(records: list[Record]) -> None:
    for shown in records:
        where = f" of {', '.join(shown.lanes())}" if shown.on_several else ""
        typer.echo(
            f"{shown.title}: {shown.scheduler}, {len(shown.operators)} operators on "
            f"{counted(len(shown.threads), 'stream')}{where}, {shown.time_said}"
        )
        for check in (shown.merge_check, shown.program_check):
            if check is not None:
                typer.echo(f"  {check}")
        for line in _range_lines(shown):
            typer.echo(f"  {line}")


def _recorded(
    artifact: Artifact, title: str, runs: int, request: Mapping[str, int] | None
) -> Record:
    """Record the data to draw: the plan that runs `request`, and when the plan's operators ran.

    Without a request the first plan is recorded. If `runs` is 0, nothing runs, and the record has
    no times.
    """
    from ..viz.record import planned, record

    def recorded(one: Artifact) -> Record:
        return record(one, title, runs) if runs else planned(one, title)

    if request is None:
        return recorded(artifact)
    cost = artifact.cost_of(request)
    return replace(
        recorded(artifact.of_shape(cost.shape)),
        program_check=artifact.manifest.program_check,
        ranges=artifact.ranges,
        request=cost,
    )


def _range_lines(shown: Record) -> list[str]:
    if shown.ranges is None:
        return []
    if shown.request is None:
        return [*shown.ranges.lines(), f"drawn: {shown.ranges.compiled[0]}"]
    return [*shown.ranges.lines(), f"request, whose plan is drawn: {shown.request}"]


def _facts(record: Record) -> dict[str, Any]:
    """A record as plain data for JSON."""
    facts = asdict(record)
    for op, fields in zip(record.operators, facts["operators"], strict=True):
        fields["gpu"] = op.gpu.as_dict() if op.gpu else None
    facts["merge_check"] = msgspec.to_builtins(record.merge_check)
    facts["program_check"] = msgspec.to_builtins(record.program_check)
    return facts


def _format_of(output: Path | None) -> Format:
    suffix = output.suffix.removeprefix(".") if output else ""
    if suffix and suffix not in Format.__members__:
        known = ", ".join(f".{each}" for each in Format.__members__)
        raise InputError(
            f"-o `{output}` ends in none of {known}: give another name, or choose a format with "
            "--format"
        )
    return Format(suffix) if suffix else Format.html


def _titles(models: list[Path]) -> list[str]:
    """A title for each artifact: the name of its file, without the suffix.

    If two files have the same name, the titles are whole paths. If one file is given twice, the
    titles also have numbers.
    """
    names = [path.stem for path in models]
    if len(set(names)) < len(names):
        names = [str(path) for path in models]
    if len(set(names)) < len(names):
        names = [f"{name} ({i + 1})" for i, name in enumerate(names)]
    return names


def _explained(
    models: list[Artifact], measure: bool, request: Mapping[str, int] | None
) -> list[Explanation]:
    from ..compiler.options import CompileOptions
    from ..explaining.api import explain

    with measuring_bar() as progress:
        each = CompileOptions(progress=progress)
        return [explain(model, measure=measure, options=each, request=request) for model in models]


def _drawn(records: list[Record], chosen: Format, explanations: list[Explanation]) -> bytes:
    from ..viz.dot import to_dot
    from ..viz.drawing import to_png, to_svg
    from ..viz.page import to_page

    if chosen is Format.png:
        return to_png(records)
    if chosen is Format.svg:
        return to_svg(records).encode()
    if chosen is Format.dot:
        return to_dot(records[0]).encode()
    return to_page(records, cpu_model().partition(" [")[0], explanations).encode()
