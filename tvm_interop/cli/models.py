"""The verb `tvm-interop models`, which lists the built-in networks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from . import options
from .console import json_text, table

if TYPE_CHECKING:
    from ..models.describe import Description

_HEADINGS = ("name", "operators", "edges", "width", "parameters", "GFLOPs", "inputs")


def list_models(
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """List the built-in networks. Other verbs take their names, as in `compile squeezenet`.

    Operators and edges are counted as in the papers on scheduling. A multiplication and an addition
    are two FLOPs. All figures are for one image or sequence, and weights are random. The
    architectures of the onnx package have names like `light:squeezenet`.
    """
    from .. import models
    from ..models.describe import describe

    described = [describe(name) for name in models.list()]
    if as_json:
        facts = {
            "networks": [asdict(network) for network in described],
            "light": models.light.names(),
        }
        typer.echo(json_text(facts))
        return
    typer.echo(table([_HEADINGS, *map(_row, described)], left=(0, len(_HEADINGS) - 1)))
    typer.echo("\n" + "  ".join(f"light:{name}" for name in models.light.names()))


def _row(network: Description) -> tuple[str, ...]:
    return (
        network.name,
        str(network.operators),
        str(network.edges),
        str(network.width),
        f"{network.parameters / 1e6:.1f} M",
        f"{network.gflops:.2f}",
        ", ".join(f"{name} {shape}" for name, shape in network.inputs.items()),
    )
