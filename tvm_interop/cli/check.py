"""The verb `tvm-interop check`, which proves a program of several streams safe."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..atomic_file import check_place, replacing
from ..errors import InputError
from . import options
from .console import json_text

if TYPE_CHECKING:
    from ..checking.stream_program import StreamProgram

UNSAFE = 1
"""Exit code for a program that is not safe."""


def check_program(
    program: Annotated[
        Path,
        typer.Argument(
            metavar="PROGRAM.JSON",
            help="A program of streams as JSON, or an artifact that `compile` wrote.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="SVG file to draw the first fault into."),
    ] = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Prove that no two operators on different streams can race, or show two that can.

    Two operators race if they touch the same bytes, one of them writes, and neither a stream nor a
    wait orders them. The report names the two operators, the bytes, and the missing wait. The
    module `tvm_interop.checking.stream_program` describes the JSON form: operators with the ranges
    that they read and write, streams, waits. The exit code is 0 for a safe program, 1 for an unsafe
    program, and 2 if the input is not a valid program.
    """
    from ..checking.api import check
    from ..viz.fault_svg import to_svg

    if output is not None and output.suffix != ".svg":
        raise InputError(f"`--output {output}` is not an .svg file; give a name that ends in .svg")
    if output is not None:
        check_place(output)
    report = check(_of_artifact(program) if program.suffix == ".tar" else program)
    if output is not None:
        with replacing(output) as temporary:
            Path(temporary).write_text(to_svg(report), "utf-8")
    if as_json:
        faults = [asdict(fault) for fault in report.faults]
        typer.echo(json_text({"safe": report.is_safe, "faults": faults}))
    else:
        typer.echo(report.text)
    if not report.is_safe:
        raise typer.Exit(UNSAFE)


def _of_artifact(path: Path) -> StreamProgram:
    from ..artifact.artifact import load
    from ..plan.stream_form import stream_program

    return stream_program(load(path, kernels=False).plan)
