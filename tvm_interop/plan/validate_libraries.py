"""Checks a plan's descriptions of the operators that kernel libraries run.

A description of an operator tells a kernel library what to compute, and for which shapes, layouts
and types of tensors.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import ArtifactError
from ..program.library_op import LibraryOp
from .limits import MAX_DIMENSION, MAX_PARAMETER, MAX_RANK
from .plan import Plan, PlannedOperator

_LIBRARIES = {"cpu": ("onednn",), "cuda": ("cudnn", "cublaslt")}
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


def check_library(plan: Plan, op: PlannedOperator) -> None:
    """Check that a library's operator reads and writes nothing beyond its tensors.

    Raises
    ------
    ArtifactError
        The library is unknown, or the operator's description does not fit its tensors; the message
        names the operator or the value at fault.
    """
    values = [plan.values[v] for v in (*op.inputs, *op.outputs)]
    if op.library is None:
        blocked = [v for v in values if v.layout != "plain" and v.stored_shape != v.shape]
        if blocked:
            raise ArtifactError(
                f"operator `{op.name}` is TVM's, but its `{blocked[0].name}` is {blocked[0].layout}"
            )
        return
    known = _LIBRARIES[plan.streams[op.stream].device.partition(":")[0]]
    if op.library not in known:
        raise ArtifactError(
            f"operator `{op.name}` needs kernel library `{op.library}`; known are "
            f"{', '.join(f'`{name}`' for name in known)}"
        )
    if op.description is None:
        raise ArtifactError(f"operator `{op.name}` is `{op.library}`'s, but has no description")
    _check_description(op.name, op.description)
    sizes = [math.prod(value.shape) for value in values]
    if sizes != [math.prod(shape) for shape in op.description.given_shapes]:
        raise ArtifactError(
            f"operator `{op.name}` is described with shapes {op.description.given_shapes}, but its "
            f"tensors are {tuple(value.shape for value in values)}"
        )
    types = op.description.stored_types
    if len(types) != len(values):
        raise ArtifactError(
            f"operator `{op.name}` is described with types of {len(types)} tensors, and has "
            f"{len(values)} tensors"
        )
    for value, dtype in zip(values, types, strict=True):
        if value.dtype != dtype:
            raise ArtifactError(
                f"operator `{op.name}` has a tensor that is not {dtype}: `{value.name}` is "
                f"{value.dtype}"
            )
    for value, layout in zip(values, op.description.layouts, strict=True):
        if value.layout != layout:
            raise ArtifactError(
                f"operator `{op.name}` takes `{value.name}` as {layout}, but it is {value.layout}"
            )


def _check_description(name: str, description: LibraryOp) -> None:
    """Check that the fields of the description are within bounds.

    Whether the fields fit together is checked by the native function `WhyMalformed` of each
    library.
    """
    if len(description.layouts) != len(description.shapes):
        raise ArtifactError(
            f"operator `{name}` is described with {len(description.shapes)} shapes and "
            f"{len(description.layouts)} layouts"
        )
    _check_cut(name, description)
    for shape in description.given_shapes:
        if len(shape) > MAX_RANK or not all(0 <= dim <= MAX_DIMENSION for dim in shape):
            raise ArtifactError(
                f"operator `{name}` is described with a shape of {shape}, which is out of bounds"
            )
    for field, given in description.fields().items():
        numbers = (
            given if isinstance(given, tuple) and field not in ("layouts", "stored") else (given,)
        )
        if field == "steps":
            numbers = tuple(number for step in given for number in step[1:])
        for number in numbers:
            if isinstance(number, float) and not abs(number) <= _MAX_FLOAT32:
                raise ArtifactError(
                    f"operator `{name}` is described with a `{field}` of {number}, which is out of "
                    "bounds"
                )
            least = -128 if field in ("data_zero", "weight_zero") else 0
            if isinstance(number, int) and not least <= number <= MAX_PARAMETER:
                raise ArtifactError(
                    f"operator `{name}` is described with a `{field}` of {number}, which is out of "
                    "bounds"
                )


def _check_cut(name: str, description: LibraryOp) -> None:
    """Check that the part of a tensor that the operator cuts out lies within the tensor."""
    cut = description.cut
    if not cut:
        return
    shapes = description.shapes
    is_one = len(cut) == 4 and 0 <= cut[0] < len(shapes) and 0 <= cut[1] < len(shapes[cut[0]])
    if not is_one or not 0 <= cut[2] <= cut[3] - shapes[cut[0]][cut[1]]:
        raise ArtifactError(
            f"operator `{name}` is described with a `cut` of {cut}, which its shapes {shapes} do "
            "not allow"
        )
