"""Options that several verbs share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..kernel_libraries import provider_names
from ..scheduling import schedulers

Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="An ONNX file, or a network's name (see `tvm-interop models`).",
        show_default=False,
    ),
]
Target = Annotated[
    str, typer.Option("--target", help="TVM target of the kernels.", rich_help_panel="Model")
]
InputShapes = Annotated[
    str | None,
    typer.Option(
        "--input-shapes",
        metavar='"NAME:[D,D,...] ..."',
        help="Shapes of inputs the model leaves open.",
        rich_help_panel="Model",
    ),
]
Scheduler = Annotated[
    str,
    typer.Option(
        "--scheduler",
        help=f"One of {', '.join(schedulers())}.",
        rich_help_panel="Scheduling",
    ),
]
Streams = Annotated[
    int | None,
    typer.Option(
        "--streams",
        min=1,
        help="CPU streams side by side; by default as many as there are cores for.",
        rich_help_panel="Scheduling",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        help="Threads for the kernels of each stream; by default the cores shared out evenly.",
        rich_help_panel="Scheduling",
    ),
]
MaxGroupOps = Annotated[
    int | None,
    typer.Option(
        "--max-group-ops",
        help="ios: most operators in a group (r in the paper).",
        rich_help_panel="Scheduling",
    ),
]
MaxGroups = Annotated[
    int | None,
    typer.Option(
        "--max-groups",
        help="ios, greedy: most groups in a stage (s in the paper).",
        rich_help_panel="Scheduling",
    ),
]
Endings = Annotated[
    str | None,
    typer.Option(
        "--endings",
        metavar="complete|paper",
        help="ios: every ending, or only those the authors' code enumerates.",
        rich_help_panel="Scheduling",
    ),
]
LatencyDb = Annotated[
    Path | None,
    typer.Option(
        "--latency-db",
        help="File that keeps measured latencies; by default one in your cache folder.",
        rich_help_panel="Scheduling",
    ),
]
Providers = Annotated[
    str | None,
    typer.Option(
        "--providers",
        metavar="NAME,...",
        help=f"Whose kernels to choose from: {', '.join(provider_names())}; by default all that "
        "are there.",
        rich_help_panel="Model",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Show the traceback when something fails.")
]


def scheduler_options(**given: Any) -> dict[str, Any]:
    """Those options that were given: a scheduler that has no use for one says so itself."""
    return {name: value for name, value in given.items() if value is not None}


def parse_providers(text: str | None) -> tuple[str, ...] | None:
    """Names with commas between them."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def parse_input_shapes(text: str | None) -> dict[str, tuple[int, ...]] | None:
    """Read tvmc's notation: `"data:[1,3,224,224] mask:[1,128]"`.

    Raises
    ------
    InputError
        The text is not of that form.
    """
    if text is None:
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    rest = text.strip()
    # A name may hold nearly anything, colons too: the shape's bracket ends it.
    pattern = re.compile(r"(?P<name>\S+?)\s*:\s*\[(?P<dims>[\d\s,]*)\][\s,;]*")
    while rest:
        match = pattern.match(rest)
        if match is None:
            raise InputError(
                f"--input-shapes: cannot read `{rest}`; write NAME:[D,D,...], for example "
                '"data:[1,3,224,224]", several with a blank between'
            )
        dims = tuple(int(d) for d in match["dims"].replace(",", " ").split())
        shapes[match["name"].strip("\"'")] = dims
        rest = rest[match.end() :]
    return shapes
