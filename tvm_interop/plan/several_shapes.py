"""Checks that all plans in an artifact belong to one model, for different shapes of its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..errors import ArtifactError
from ..program.row_axis import MASK_TYPES, axes_of_ranges, grows_with_rows
from .plan import Plan


def check_shapes(plans: Sequence[Plan]) -> None:
    """Check that all plans are of one model, and that no two plans are for the same input shapes.

    Raises
    ------
    ArtifactError
        Two plans differ in more than shapes, or have the same input shapes; the message says which.
    """
    known: dict[tuple[tuple[int, ...], ...], int] = {}
    for i, plan in enumerate(plans):
        for kind in ("inputs", "outputs"):
            ours, first = (
                [(name, dtype) for name, _, dtype in interface(each, getattr(each, kind))]
                for each in (plan, plans[0])
            )
            if ours != first:
                raise ArtifactError(
                    f"the plan of shape {i} has the {kind} {ours}, and the plan of shape 0 has "
                    f"{first}: the plans are not of one model"
                )
        shapes = tuple(shape for _, shape, _ in interface(plan, plan.inputs))
        if known.setdefault(shapes, i) != i:
            raise ArtifactError(
                f"the plans {known[shapes]} and {i} are for the same shapes: {shapes}"
            )


def check_batch_sizes(sizes: Sequence[int], plans: Sequence[Plan]) -> None:
    """Check that plans are of the same model, with one plan for each batch size.

    If `sizes` is empty, the model has no batch sizes, and nothing is checked.

    Raises
    ------
    ArtifactError
        The first axis of an input or output is not the batch, or the batch sizes do not fit the
        plans. The message names the input, the output or the sizes.
    """
    if not sizes:
        return
    if len(sizes) != len(plans) or len(set(sizes)) != len(sizes) or min(sizes) < 1:
        raise ArtifactError(
            f"the batch sizes are {list(sizes)} for {len(plans)} shapes: there must be one for "
            "each, all different and above 0"
        )
    for size, plan in zip(sizes, plans, strict=True):
        for name, shape, _ in interface(plan, (*plan.inputs, *plan.outputs)):
            if not shape or shape[0] != size:
                raise ArtifactError(
                    f"`{name}` has shape {shape} for a batch of {size}: its first axis must be "
                    "the batch"
                )
    interfaces = {
        tuple((name, shape[1:]) for name, shape, _ in interface(p, (*p.inputs, *p.outputs)))
        for p in plans
    }
    if len(interfaces) > 1:
        raise ArtifactError("the shapes of the batch sizes differ in more than the first axis")


def check_row_sizes(ranges: Mapping[str, Sequence[int]], plans: Sequence[Plan]) -> None:
    """Check that plans are of the same model, with one plan for each number of rows.

    If two dimensions can have several sizes (numbers of rows), there must be a plan for each
    combination of their sizes.

    Parameters
    ----------
    ranges: the number of rows in each plan, by the name of the dimension.

    Raises
    ------
    ArtifactError
        An input or output does not have an axis that grows with the number of rows, or the numbers
        of rows are wrong. The message names the input, the output or the numbers.
    """
    each = list(zip(*ranges.values(), strict=True)) if _fit(ranges, plans) else []
    if len(set(each)) != len(plans) or len(plans) < 2:
        raise ArtifactError(
            f"the numbers of rows are {_in_words(ranges)} for {len(plans)} shapes: there must be "
            "one for each, at least two, all different and above 0"
            + (", and a shape for each combination" if len(ranges) > 1 else "")
        )
    for kind in ("inputs", "outputs"):
        interfaces = [interface(plan, getattr(plan, kind)) for plan in plans]
        for found in zip(*interfaces, strict=True):
            shapes = [shape for _, shape, _ in found]
            if not grows_with_rows(shapes, each):
                raise ArtifactError(
                    f"`{found[0][0]}` has the shapes {shapes} for {_in_words(ranges)} rows: it "
                    "must grow with the number of rows along one dimension"
                    + (" for each range" if len(ranges) > 1 else "")
                )


def _fit(ranges: Mapping[str, Sequence[int]], plans: Sequence[Plan]) -> bool:
    """Whether there is one plan for each combination of the sizes of all ranges.

    `ranges` must give, for each dimension, one size per plan, and at least two different sizes.
    """
    combinations = math.prod(len(set(sizes)) for sizes in ranges.values())
    return combinations == len(plans) and all(
        len(sizes) == len(plans) and min(sizes) > 0 and len(set(sizes)) > 1
        for sizes in ranges.values()
    )


def _in_words(ranges: Mapping[str, Sequence[int]]) -> str:
    return " and ".join(str(list(sizes)) for sizes in ranges.values())


def check_masks(
    masks: Mapping[str, str], ranges: Mapping[str, Sequence[int]], plans: Sequence[Plan]
) -> None:
    """Check that the inputs named as masks, which are padded with 0, can be masks.

    Parameters
    ----------
    masks: for each mask, by name, the position at which it must be 1 in a padded run; see
        `artifact.manifest.RowMask`.
    ranges: the number of rows in each plan, by the name of the dimension; the last dimension is the
        dimension of the masks' positions. The ranges have passed `check_row_sizes`.

    Raises
    ------
    ArtifactError
        A mask is not an input with rows, or its type is not a type of masks. Or a mask whose 1 may
        be at `any` position has several elements at each position. The message names the input.
    """
    sizes = list(zip(*ranges.values(), strict=True))
    for name, one_at in masks.items():
        found = [
            (shape, dtype)
            for plan in plans
            for own, shape, dtype in interface(plan, plan.inputs)
            if own == name
        ]
        axes = axes_of_ranges([shape for shape, _ in found], sizes) if found else [None]
        can_be = axes[-1] is not None and found[0][1] in MASK_TYPES
        rows = (s for s, axis in zip(sizes[0], axes, strict=False) if axis is not None)
        if not can_be or (one_at == "any" and math.prod(found[0][0]) != math.prod(rows)):
            raise ArtifactError(
                f"`{name}` cannot be a mask: a mask is an input with the dimension "
                f"`{list(ranges)[-1]}` and a type that masks can have; a mask whose 1 may be at "
                "any position has one element at each position"
            )


def interface(plan: Plan, values: Sequence[int]) -> list[tuple[str, tuple[int, ...], str]]:
    """The name, shape and dtype of each of the `values`."""
    found = (plan.values[v] for v in values)
    return [(value.name, value.shape, value.dtype) for value in found]
