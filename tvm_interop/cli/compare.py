"""`tvm-interop compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from . import options


def compare_artifacts(
    first: Annotated[
        Path, typer.Argument(metavar="A.TAR", help="What `compile` wrote.", show_default=False)
    ],
    second: Annotated[
        Path,
        typer.Argument(
            metavar="B.TAR", help="The same model, compiled in another way.", show_default=False
        ),
    ],
    no_measure: Annotated[
        bool,
        typer.Option("--no-measure", help="Run nothing, and load none of the artifacts' code."),
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            min=0,
            help="About how long the whole artifacts may run; each difference has a twentieth.",
        ),
    ] = 20.0,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Say which operators, kernels and stages of two artifacts differ, and what each costs.

    The operators of a difference run alone, as either artifact has them, interleaved in rounds; at
    the end the whole artifacts run. A ratio below 1 says that the second is faster; it is beyond
    noise where its 90% interval leaves 0.99 to 1.01 out.

    An artifact holds machine code, which runs with all your rights: --no-measure looks at those
    whose origin you do not know.
    """
    from ..explaining.compare import compare
    from ..explaining.text import comparison_text

    found = compare(first, second, measure=not no_measure, total_s=seconds, each_s=seconds / 20)
    typer.echo(json.dumps(found.as_dict()) if as_json else comparison_text(found))
