"""The layout of an artifact's file, which `reading` and `writing` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..plan.plan import Plan
from ..plan.several_shapes import check_masks, check_row_sizes
from ..scheduling import Schedule
from .manifest import Manifest, RowSizes

VERSION = 5
"""The newest version of the file that this release reads."""
MAX_SHAPES = 64
"""The most input shapes that one artifact may be compiled for."""


class Contents(NamedTuple):
    """The content of the file for one set of input shapes. `Artifact` describes each field."""

    plan: Plan
    schedule: Schedule
    kernels: bytes | None
    weights: dict[int, np.ndarray]
    manifest: Manifest
    fallback: Plan | None


def prefix(shape: int) -> str:
    """The folder in the tar file that holds the members of input shape number `shape`.

    Shapes are numbered from 0. Shape 0 has no folder.
    """
    return f"shapes/{shape}/"


def check_rows(rows: RowSizes | None, plans: Sequence[Plan]) -> None:
    """Check that the plans of all shapes fit the ranges of sizes of `rows`, if there are any.

    Raises
    ------
    ArtifactError
        A plan does not fit, or an input that `rows` names as a mask cannot be a mask; see
        `check_row_sizes` and `check_masks`.
    """
    if rows is not None:
        check_row_sizes(rows.ranges, plans)
        check_masks(rows.where_one, rows.ranges, plans)
