"""Checks that the plans in an artifact are of one model, for different shapes of its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..errors import ArtifactError
from ..program.row_axis import MASK_TYPES, axis_of_rows
from .plan import Plan


def check_shapes(plans: Sequence[Plan]) -> None:
    """Check that plans are of the same model, and that each is for other shapes of the inputs.

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
                    f"shape {i} has the {kind} {ours}, shape 0 has {first}: they are not of one "
                    "model"
                )
        shapes = tuple(shape for _, shape, _ in interface(plan, plan.inputs))
        if known.setdefault(shapes, i) != i:
            raise ArtifactError(f"shapes {known[shapes]} and {i} are the same: {shapes}")


def check_batch_sizes(sizes: Sequence[int], plans: Sequence[Plan]) -> None:
    """Check that plans are of the same model, with one plan for each batch size.

    Without batch sizes, nothing is checked.

    Raises
    ------
    ArtifactError
        The first axis of an input or output is not the batch, or the sizes are wrong; the message
        names the input, the output or the sizes.
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


def check_row_sizes(sizes: Sequence[int], plans: Sequence[Plan]) -> None:
    """Check that plans are of the same model, with one plan for each number of rows.

    Without numbers of rows, nothing is checked.

    Raises
    ------
    ArtifactError
        An input or output does not grow with the number of rows along one dimension, or the numbers
        are wrong; the message names the input, the output or the numbers.
    """
    if not sizes:
        return
    are_different = len(set(sizes)) == len(sizes) > 1
    if len(sizes) != len(plans) or not are_different or min(sizes) < 1:
        raise ArtifactError(
            f"the numbers of rows are {list(sizes)} for {len(plans)} shapes: there must be one for "
            "each, at least two, all different and above 0"
        )
    for kind in ("inputs", "outputs"):
        interfaces = [interface(plan, getattr(plan, kind)) for plan in plans]
        for each in zip(*interfaces, strict=True):
            shapes = [shape for _, shape, _ in each]
            if len(set(shapes)) > 1 and axis_of_rows(shapes, sizes) is None:
                raise ArtifactError(
                    f"`{each[0][0]}` has the shapes {shapes} for {list(sizes)} rows: it must grow "
                    "with the number of rows along one dimension"
                )


def check_masks(
    masks: Mapping[str, str], dimension: str, sizes: Sequence[int], plans: Sequence[Plan]
) -> None:
    """Check that the inputs which are filled up with 0 can be masks.

    Parameters
    ----------
    masks: where each mask must be 1, by its name; see `artifact.manifest.RowMask`.

    Raises
    ------
    ArtifactError
        There is no such input with rows, its type is not one of masks, or it must be 1 at `any`
        position and has several elements at each. The message names it.
    """
    for name, one_at in masks.items():
        found = [
            (shape, dtype)
            for plan in plans[:2]
            for own, shape, dtype in interface(plan, plan.inputs)
            if own == name
        ]
        shapes = [shape for shape, _ in found]
        can_be = len(set(shapes)) > 1 and found[0][1] in MASK_TYPES
        if not can_be or (one_at == "any" and math.prod(shapes[0]) != sizes[0]):
            raise ArtifactError(
                f"`{name}` cannot be a mask: there must be an input of that name with "
                f"`{dimension}`, of a type for masks, with one element at each position if it must "
                "be 1 at any"
            )


def interface(plan: Plan, values: Sequence[int]) -> list[tuple[str, tuple[int, ...], str]]:
    """The name, shape and dtype of each of these values."""
    found = (plan.values[v] for v in values)
    return [(value.name, value.shape, value.dtype) for value in found]
