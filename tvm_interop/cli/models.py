"""`tvm-interop models`."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from .. import models
from ..models.describe import Description, describe
from . import options

_HEADINGS = ("name", "operators", "edges", "width", "parameters", "GFLOPs", "inputs")


def list_models(
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """List the networks there are: give a name in place of a file, as in `compile squeezenet`.

    Operators and edges are counted as the papers on scheduling do; a multiplication and an
    addition are two FLOPs; all figures are for one image or sequence. Weights are random. The
    architectures of the onnx package go by `light:squeezenet` and the like.
    """
    described = [describe(name) for name in models.list()]
    if as_json:
        facts = {
            "networks": [asdict(network) for network in described],
            "light": models.light.names(),
        }
        typer.echo(json.dumps(facts))
        return
    typer.echo(_table([_HEADINGS, *map(_row, described)]))
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


def _table(rows: list[tuple[str, ...]]) -> str:
    """Columns of equal width; names and inputs to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = (0, len(_HEADINGS) - 1)
    lines = (
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
