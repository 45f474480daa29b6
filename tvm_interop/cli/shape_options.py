"""Command-line options for the shapes of a model's inputs, and functions that parse them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError

InputShapes = Annotated[
    str | None,
    typer.Option(
        "--input-shapes",
        metavar='"NAME:[D,D,...] ..."',
        help="Shapes of inputs the model leaves open.",
        rich_help_panel="Model",
    ),
]
RequestDims = Annotated[
    str | None,
    typer.Option(
        "--dim",
        metavar="NAME=N,...",
        help="Sizes of a request, for artifacts that were compiled for ranges: such as "
        "batch=3,seq=20. The plan that runs this request is drawn.",
    ),
]
Dims = Annotated[
    str | None,
    typer.Option(
        "--dim",
        metavar="NAME=N,...",
        help="Sizes of dimensions that the model leaves open, by their names in the model, such as "
        "batch=1,past=64.",
        rich_help_panel="Model",
    ),
]
SeveralInputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shapes",
        metavar='"NAME:[D,D,...] ..."',
        help="Shapes of inputs the model leaves open. If the option is given more than once, the "
        "artifact holds the model for each set of shapes, and a run uses the set that fits its "
        "inputs.",
        rich_help_panel="Model",
    ),
]
BatchSizes = Annotated[
    str | None,
    typer.Option(
        "--batch-sizes",
        metavar="N,...",
        help="Sizes of the inputs' first dimension, such as 1,2,4,8; `serve` joins requests into "
        "batches of these sizes. Printed figures are of the first size. The rows of a batch must "
        "not depend on each other.",
        rich_help_panel="Model",
    ),
]

Ranges = Annotated[
    str | None,
    typer.Option(
        "--shapes",
        metavar="NAME=N..M,...",
        help="Sizes of open dimensions, such as width=64,128, or ranges for one or two of them, "
        "such as batch=1..8. A comma also separates two dimensions: batch=1..8, then seq=1..128. "
        "A range is compiled for some of its sizes. Inputs of other sizes are filled up, and a "
        "model is refused if this could change its results.",
        rich_help_panel="Model",
    ),
]
MostSizes = Annotated[
    int | None,
    typer.Option(
        "--most-sizes",
        help="Compile ranges for at most this many sizes, or combinations of sizes.  [default: 8]",
        rich_help_panel="Model",
    ),
]
_RANGE = re.compile(r"\s*(?P<name>.+?)\s*=\s*(?P<least>\d+)(?:\.\.(?P<most>\d+))?\s*")


def parse_ranges(text: str | None) -> dict[str, int | tuple[int, int] | set[int]] | None:
    """Parse ranges and sizes such as `batch=1..32,length=64,128`; None if there is no text.

    Raises
    ------
    InputError
        A part of the text is neither a range such as `batch=1..32` nor sizes such as
        `length=64,128`.
    """
    if text is None:
        return None
    ranges: dict[str, int | tuple[int, int] | set[int]] = {}
    name = None
    for part in text.split(","):
        match, before = _RANGE.fullmatch(part), ranges.get(name or "")
        if match is None and part.strip().isdecimal() and isinstance(before, int | set):
            assert name is not None
            ranges[name] = {*(before if isinstance(before, set) else {before}), int(part)}
            continue
        if match is None:
            raise InputError(
                f"--shapes: cannot read `{part}`; write NAME=SIZE, NAME=LEAST..GREATEST or "
                "NAME=SIZE,SIZE,..., several with commas between, such as batch=1..32,length=64"
            )
        name, least = match["name"], int(match["least"])
        if name in ranges:
            raise InputError(
                f"--shapes gives `{name}` twice: write one range, such as {name}=1..8, or all of "
                f"its sizes, such as {name}=1,8"
            )
        ranges[name] = least if match["most"] is None else (least, int(match["most"]))
    return ranges


def parse_batch_sizes(text: str | None) -> list[int] | None:
    """Parse batch sizes such as `1,2,4`; None if there is no text.

    Raises
    ------
    InputError
        A part of the text is not a whole number.
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"--batch-sizes `{text}`: give whole numbers with commas between them, such as 1,2,4"
        ) from None


def parse_dims(text: str | None) -> dict[str, int]:
    """Parse dimensions such as `batch=1,past=64` into sizes by name.

    Raises
    ------
    InputError
        A part of the text is not of the form NAME=SIZE.
    """
    sizes = {}
    for part in text.split(",") if text else ():
        name, _, size = part.rpartition("=")
        if not name.strip() or not size.strip().isdecimal():
            raise InputError(
                f"--dim: cannot read `{part}`; write NAME=SIZE, several with commas between, such "
                "as batch=1,past=64"
            )
        sizes[name.strip()] = int(size)
    return sizes


def shapes_of(
    model: Path | str, input_shapes: str | None, dims: str | None
) -> dict[str, tuple[int, ...]] | None:
    """The shapes of inputs that `--input-shapes` and `--dim` give; None if neither is given.

    If `--input-shapes` and `--dim` both give the shape of an input, `--input-shapes` decides.

    Raises
    ------
    InputError
        An option cannot be parsed, or it names a dimension that the model does not have.
    """
    given = parse_input_shapes(input_shapes)
    return given if dims is None else {**shapes_by_dims(model, dims), **(given or {})}


def shapes_by_dims(model: Path | str, dims: str | None) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs that `--dim` gives, by name. For errors see `shapes_of`."""
    sizes = parse_dims(dims)
    if not sizes:
        return {}
    from ..frontend.open_dimensions import shapes_of_dims

    return shapes_of_dims(model, sizes)


def parse_input_shapes(text: str | None) -> dict[str, tuple[int, ...]] | None:
    """Parse shapes in tvmc's notation, such as `"data:[1,3,224,224] mask:[1,128]"`.

    The result is None if the option was not given.

    Raises
    ------
    InputError
        The text is not in tvmc's notation.
    """
    if text is None:
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    rest = text.strip()
    # A name may hold nearly any character, even a colon, so the name ends at `:[`.
    pattern = re.compile(r"(?P<name>\S+?)\s*:\s*\[(?P<dims>[\d\s,]*)\][\s,;]*")
    while rest:
        match = pattern.match(rest)
        if match is None:
            raise InputError(
                f"--input-shapes: cannot read `{rest}`; write NAME:[D,D,...], for example "
                '"data:[1,3,224,224]", and separate several inputs by spaces'
            )
        dims = tuple(int(d) for d in match["dims"].replace(",", " ").split())
        shapes[match["name"].strip("\"'")] = dims
        rest = rest[match.end() :]
    return shapes
