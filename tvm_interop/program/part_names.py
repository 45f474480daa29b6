"""How a part of a divided operator is called: `conv1[1/2]`, the first of two parts of `conv1`.

A program says of each operator what it is a part of. Schedules and plans have names alone.
"""

from __future__ import annotations

import re

_PART = re.compile(r"(?P<whole>.+)\[\d+/\d+\]")


def whole_name(name: str) -> str:
    """The operator that the one of this name is a part of; its own name where it is no part.

    Examples
    --------
    >>> whole_name("conv1[1/2]"), whole_name("conv1")
    ('conv1', 'conv1')
    """
    match = _PART.fullmatch(name)
    return match["whole"] if match else name
