"""The verb `tvm-interop explain`, which says whether operators gain by running side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from . import options, shape_options
from .console import json_text, measuring_bar
from .flags import DeviceFlags, with_flags


@with_flags
def explain_model(
    model: options.ModelOrArtifact,
    pair: Annotated[
        tuple[str, str] | None,
        typer.Option("--pair", metavar="A B", help="Explain only these two operators."),
    ] = None,
    operator: Annotated[
        str | None,
        typer.Option(
            "--operator",
            metavar="NAME",
            help="Say which kernels run this operator, and why providers refuse it; also on GPUs.",
        ),
    ] = None,
    no_measure: Annotated[
        bool,
        typer.Option(
            "--no-measure",
            help="Use only latencies of the database. No code of an artifact runs; a model's "
            "kernels are still chosen by measurement.",
        ),
    ] = False,
    try_number: Annotated[
        int | None,
        typer.Option(
            "--try",
            metavar="K",
            min=1,
            help="Make change K of the list, and time the changed model against the unchanged "
            "model, both run sequentially.",
        ),
    ] = None,
    input_shapes: shape_options.InputShapes = None,
    dims: shape_options.Dims = None,
    *,
    flags: DeviceFlags,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Say whether it pays to run independent operators side by side, and if not, why.

    Operators at the same depth of the graph form a set; --pair selects two operators instead. Each
    set is measured in two ways. In turn, the operators run one after the other, each divided over
    all cores. Side by side, they run at once, each on one core. Side by side pays if it saves 3% or
    more of the time. If not, the output gives one of these reasons: waits cost more than they save;
    one operator fills the device (its speed-up on all cores is at least 80% of the number of
    cores); the set is memory-bound (it takes at least 1.05 times as long as without contention);
    there is little to gain; a measurement chose sequential execution. The output ends with a
    ceiling (the critical path over the time of sequential execution) and up to three changes that
    help. With --operator it lists kernels. For an artifact with ranges of sizes, --dim gives the
    sizes of a request.
    """
    from ..compiler.options import CompileOptions
    from ..explaining.api import explain
    from ..explaining.operator import explain_operator, operator_text
    from ..explaining.text import explanation_text

    if operator is not None and (pair is not None or try_number is not None):
        raise InputError(
            "`--operator` explains the kernels of one operator: leave --pair and --try out"
        )
    request = _request(model, dims, operator)
    shapes = shape_options.shapes_of(model, input_shapes, None if request is not None else dims)
    with measuring_bar() as progress:
        common: dict[str, Any] = {
            "measure": not no_measure,
            "input_shapes": shapes,
            "options": CompileOptions(**flags.compile_options(), progress=progress),
        }
        if operator is not None:
            found = explain_operator(model, operator, **common)
            typer.echo(json_text(found.as_dict()) if as_json else operator_text(found))
            return
        explained = explain(model, pair, try_number=try_number, request=request, **common)
    typer.echo(json_text(explained.as_dict()) if as_json else explanation_text(explained))


def _request(model: Path | str, dims: str | None, operator: str | None) -> dict[str, int] | None:
    """The sizes that --dim gives for a request to an artifact; None for a model."""
    from ..explaining.subject import is_artifact

    if dims is None or not is_artifact(model):
        return None
    if operator is not None:
        raise InputError(
            "`--operator` explains the first size of an artifact only: leave --dim out"
        )
    return shape_options.parse_dims(dims)
