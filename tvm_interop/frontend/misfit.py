"""The error for a node whose inputs do not fit it."""

from __future__ import annotations

from ..errors import UnsupportedModelError


class MisfitError(UnsupportedModelError):
    """A node could not be imported, perhaps because its inputs do not fit it.

    Their shapes may come from inputs of the model for which this part of the model was not made. An
    `If` leaves a branch with such a node out.
    """
