"""The error for a node whose inputs have the wrong shapes or values."""

from __future__ import annotations

from ..errors import UnsupportedModelError


class MisfitError(UnsupportedModelError):
    """A node could not be imported, perhaps because its inputs have the wrong shapes or values.

    This error can occur in a branch of an `If` that is not meant for the given input shapes. The
    branch is then left out.
    """
