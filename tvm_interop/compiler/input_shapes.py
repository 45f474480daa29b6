"""The input shapes that a model is compiled for: given shapes, batch sizes, or ranges of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, TypeAlias

import msgspec

from ..artifact.artifact import Artifact
from ..artifact.layout import MAX_SHAPES, check_rows
from ..artifact.manifest import RowSizes
from ..errors import (
    ArtifactError,
    CannotFillUpError,
    InputError,
    TVMInteropError,
    UnsupportedModelError,
)
from ..frontend.load import batch_shapes, load_model
from ..plain_data import is_whole
from ..plan.several_shapes import check_batch_sizes
from .backends import can_fill_up
from .options import CompileOptions

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Shapes of inputs, by name."""


def shapes_to_compile(
    model: Any,
    input_shapes: Shapes | Sequence[Shapes] | None,
    batch_sizes: Sequence[int] | None,
) -> list[dict[str, tuple[int, ...]]]:
    """The sets of input shapes to compile for, each a mapping from input names to shapes."""
    each = list_of_shapes(input_shapes)
    if batch_sizes is None:
        return each
    sizes = list(batch_sizes)
    if not sizes or not all(is_whole(size) and size > 0 for size in sizes):
        raise InputError(f"`batch_sizes` is {sizes}: give whole numbers above 0")
    if len(set(sizes)) < len(sizes) or len(sizes) > MAX_SHAPES:
        raise InputError(f"`batch_sizes` is {sizes}: give from 1 to {MAX_SHAPES} different sizes")
    if len(each) > 1:
        if len(each) != len(sizes):
            raise InputError(
                f"there are {len(sizes)} batch sizes and {len(each)} `input_shapes`; give one "
                "entry for each batch size"
            )
        return each
    return [batch_shapes(model, each[0], size) for size in sizes]


def list_of_shapes(
    input_shapes: Shapes | Sequence[Shapes] | None,
) -> list[dict[str, tuple[int, ...]]]:
    if input_shapes is None or isinstance(input_shapes, Mapping):
        return [_whole(input_shapes or {})]
    each = [_whole(shapes) for shapes in input_shapes]
    if not 1 <= len(each) <= MAX_SHAPES:
        raise InputError(f"`input_shapes` has {len(each)} entries: give from 1 to {MAX_SHAPES}")
    for i, shapes in enumerate(each):
        if shapes in each[:i]:
            raise InputError(f"`input_shapes` has {shapes} twice: leave one out")
    return each


def _whole(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Convert shapes to tuples of whole numbers, and refuse shapes that are not whole numbers."""
    found = {}
    for name, shape in shapes.items():
        try:
            found[name] = tuple(map(index, shape))
        except TypeError:
            raise InputError(
                f"`input_shapes` gives `{name}` the shape {shape!r}: give a whole number for each "
                "dimension, such as (1, 3, 224, 224)"
            ) from None
    return found


def refuse_fixed_batch(
    error: UnsupportedModelError,
    model: Any,
    input_shapes: Shapes | Sequence[Shapes] | None,
    shapes_of: Mapping[int, Shapes],
) -> None:
    """Raise a clearer error if a model cannot be imported only because of the wanted batch size.

    Parameters
    ----------
    error: why the model could not be imported for a batch size.
    shapes_of: the shapes of inputs, by batch size.

    Raises
    ------
    InputError
        The model was exported with a fixed batch size; the message says how to export it instead.
    """
    size = next((size for size, shapes in shapes_of.items() if not _imports(model, shapes)), None)
    if size is None or not error.node:
        return
    given = list_of_shapes(input_shapes)[0]
    # Try to import the model with its own shapes, and also with batch size 1, because the model may
    # leave the batch size open.
    if _imports(model, given) or _imports(model, batch_shapes(model, given, 1)):
        raise InputError(
            f"the model cannot be compiled for a batch of {size}: node {error.node}, or a constant "
            "that it takes its shape from, has the fixed batch size that the model was exported "
            "with; export the model with a dynamic first dimension (in PyTorch `dynamic_shapes`), "
            "or leave out `batch_sizes`"
        ) from error


def _imports(model: Any, shapes: Shapes) -> bool:
    try:
        load_model(model, shapes)
    except TVMInteropError:
        return False
    return True


def mark_batches(artifact: Artifact, batch_sizes: Sequence[int]) -> None:
    """Record in the manifest the batch sizes for which the artifact was compiled.

    Raises
    ------
    InputError
        The first axis of an input or output is not the batch, or the size of an output depends on
        computed values.
    """
    if artifact.manifest.counted:
        raise InputError(f"the model cannot be compiled for batches: {_counted_in_words(artifact)}")
    try:
        check_batch_sizes(batch_sizes, [artifact.plan, *(one.plan for one in artifact.others)])
    except ArtifactError as error:
        raise InputError(f"the model cannot be compiled for batches: {error}") from error
    artifact.manifest = msgspec.structs.replace(
        artifact.manifest, batch_sizes=tuple(map(int, batch_sizes))
    )


def _counted_in_words(artifact: Artifact) -> str:
    plan = artifact.plan
    names = [plan.values[plan.outputs[each.output]].name for each in artifact.manifest.counted]
    listed = ", ".join(f"`{name}`" for name in names)
    return f"the size of its output {listed} depends on computed values"


def mark_ranges(artifact: Artifact, row_sizes: RowSizes) -> None:
    """Record in the manifest that the artifact was compiled for ranges of sizes.

    Raises
    ------
    CannotFillUpError
        For some range, there is an input or output that does not grow along exactly one dimension.
    """
    if artifact.manifest.counted:
        why = f"the model cannot be compiled for ranges: {_counted_in_words(artifact)}"
        raise CannotFillUpError(why, ". Give a set of sizes")
    try:
        check_rows(row_sizes, [artifact.plan, *(one.plan for one in artifact.others)])
    except ArtifactError as error:
        why = f"the model cannot be compiled for ranges: {error}"
        raise CannotFillUpError(why, ". Give a set of sizes") from error
    artifact.manifest = msgspec.structs.replace(artifact.manifest, row_sizes=row_sizes)


def check_range(
    ranges: Any,
    input_shapes: Shapes | Sequence[Shapes] | None,
    batch_sizes: Sequence[int] | None,
    options: CompileOptions | None,
) -> None:
    """Refuse options that cannot be combined with a range of a dimension, or with a set of sizes.

    Parameters ---------- options: the options of the compilation; None for sets of sizes, which run
    on any device.
    """
    if ranges is None:
        raise InputError("`most_sizes` is for a range in `shapes`: give a range, or leave it out")
    if not isinstance(ranges, Mapping) or not all(isinstance(name, str) for name in ranges):
        raise InputError(
            f"`shapes` is {ranges!r}: give sizes by the names of dimensions, such as "
            '{"batch": (1, 32)}'
        )
    if any(list_of_shapes(input_shapes)) or batch_sizes is not None:
        raise InputError(
            "`shapes` gives all sizes, so it cannot be combined with `input_shapes` or "
            "`batch_sizes`: leave them out"
        )
    if options is not None and not can_fill_up(options):
        raise InputError(
            "a range in `shapes` is for models on a CPU: for a GPU, give `input_shapes` or "
            "`batch_sizes` for the sizes that you need"
        )
