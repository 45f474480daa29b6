"""The verb `tvm-interop compare`, which shows how two artifacts of one model differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import json_text


def compare_artifacts(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="A.TAR", help="An artifact that `compile` wrote.", show_default=False
        ),
    ],
    second: Annotated[
        Path,
        typer.Argument(
            metavar="B.TAR",
            help="An artifact of the same model, compiled in another way.",
            show_default=False,
        ),
    ],
    no_measure: Annotated[
        bool,
        typer.Option(
            "--no-measure",
            help="Only list the differences: nothing runs, and the artifacts' code is not loaded.",
        ),
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            min=0,
            help="About how many seconds the whole artifacts run; each difference gets a twentieth "
            "of this time.",
        ),
    ] = 20.0,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Say which operators, kernels and stages of two artifacts differ, and measure each difference.

    To measure a difference, only the operators that differ run: in turns as the first artifact runs
    them, and as the second artifact does. At the end the whole artifacts run. Each ratio is the
    time of the second artifact divided by the time of the first artifact. Below 1, the second
    artifact is faster. The ratio is beyond noise if its 90% confidence interval lies outside of
    0.99 to 1.01.

    An artifact holds machine code, which runs with all your rights. Use --no-measure for artifacts
    whose origin you do not know.
    """
    from ..explaining.compare import compare
    from ..explaining.text import comparison_text

    found = compare(first, second, measure=not no_measure, total_s=seconds, each_s=seconds / 20)
    typer.echo(json_text(found.as_dict()) if as_json else comparison_text(found))
