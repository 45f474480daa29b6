"""The layout of an artifact's file, which `reading` and `writing` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import ArtifactError
from ..plan.plan import Plan
from ..plan.several_shapes import check_masks, check_row_sizes
from ..scheduling import Schedule
from .manifest import Manifest, RowSizes

VERSION = 7
"""The newest version of the file that this release reads."""
MAX_SHAPES = 64
"""The most sets of input shapes that one artifact may be compiled for."""


class Contents(NamedTuple):
    """The content of the file for one set of input shapes. `Artifact` describes each field."""

    plan: Plan
    schedule: Schedule
    kernels: bytes | None
    weights: dict[int, np.ndarray]
    manifest: Manifest
    fallback: Plan | None


def prefix(shape: int) -> str:
    """The folder in the tar file that holds the members of the set of input shapes `shape`.

    The sets of input shapes are numbered from 0. The members of set 0 are in no folder.
    """
    return f"shapes/{shape}/"


def check_rows(rows: RowSizes | None, plans: Sequence[Plan]) -> None:
    """Check that all plans fit the ranges in `rows`, unless `rows` is None.

    Raises
    ------
    ArtifactError
        A plan does not fit the ranges, or an input that `rows` names as a mask cannot be a mask;
        see `check_row_sizes` and `check_masks`.
    """
    if rows is not None:
        check_row_sizes(rows.ranges, plans)
        check_masks(rows.where_one, rows.ranges, plans)


def check_counted(manifest: Manifest, plans: Sequence[Plan]) -> None:
    """Check that the plans have the outputs whose size depends on computed values.

    Raises
    ------
    ArtifactError
        The manifest names an output, an axis or a size that the plan does not have, or the tensors
        that hold sizes are not the plan's last outputs. Or the model was compiled for batch sizes
        or ranges too.
    """
    if not manifest.counted:
        return
    if manifest.batch_sizes or manifest.row_sizes is not None:
        raise ArtifactError(
            "the model has output sizes that depend on computed values, and also ranges or batch "
            "sizes"
        )
    if len({each.output for each in manifest.counted}) < len(manifest.counted):
        raise ArtifactError("two sizes of one output depend on computed values; at most one may")
    counts = sorted({each.count for each in manifest.counted})
    for plan in plans:
        shapes = [plan.values[v].shape for v in plan.outputs]
        first = len(shapes) - len(counts)
        if first < 1 or counts != list(range(first, len(shapes))):
            raise ArtifactError("the sizes that depend on computed values are not the last outputs")
        for each in manifest.counted:
            size = plan.values[plan.outputs[each.count]]
            if not 0 <= each.output < first or not 0 <= each.axis < len(shapes[each.output]):
                raise ArtifactError(
                    f"the manifest says that the size of output {each.output} along axis "
                    f"{each.axis} depends on computed values, but this output or axis does not "
                    "exist"
                )
            if (size.dtype, size.shape) != ("int64", (1,)):
                raise ArtifactError(f"`{size.name}` is the size of an output, and is not one int64")


def check_strings(manifest: Manifest, plans: Sequence[Plan]) -> None:
    """Check the inputs and outputs that are strings against the plans of all shapes.

    Raises
    ------
    ArtifactError
        The manifest names an input or output twice, or names one that the model lacks or that is
        not int64 in a plan. Or an input or output has no strings, or has a string with a zero byte.
    """
    inputs = [(each.input, each.strings) for each in manifest.string_inputs]
    outputs = [(each.output, each.strings) for each in manifest.string_outputs]
    for plan in plans:
        count = min([len(plan.outputs), *(each.count for each in manifest.counted)])
        _check_strings("input", inputs, plan, plan.inputs)
        _check_strings("output", outputs, plan, plan.outputs[:count])


def _check_strings(
    kind: str, tensors: Sequence[tuple[int, Sequence[str]]], plan: Plan, values: Sequence[int]
) -> None:
    """Check the inputs or the outputs of a plan that are strings.

    Parameters
    ----------
    tensors: for each input or output that is strings, its position among `values`, and its strings.
    values: all inputs or all outputs of the model, as indices of `plan.values`.
    """
    seen: set[int] = set()
    for place, strings in tensors:
        told = f"{kind} {place}, which is strings,"
        if place in seen:
            raise ArtifactError(f"{told} is listed twice")
        seen.add(place)
        if not strings:
            raise ArtifactError(f"{told} has no strings")
        if any("\0" in text for text in strings):
            raise ArtifactError(f"{told} has a string with a zero byte")
        if not 0 <= place < len(values):
            raise ArtifactError(f"{told} is not among the model's {len(values)}")
        dtype = plan.values[values[place]].dtype
        if dtype != "int64":
            raise ArtifactError(
                f"{told} is {dtype} in the plan, and the positions of strings are int64"
            )
