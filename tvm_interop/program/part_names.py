"""The names of the parts of a divided operator: `conv1[1/2]` is the first of two parts of `conv1`.

In a program, the field `whole` of an operator names the operator that it is a part of. Schedules
and plans have no such field, so only the name of a part shows that it is a part.
"""

from __future__ import annotations

import re

_PART = re.compile(r"(?P<whole>.+)\[\d+/\d+\]")


def whole_name(name: str) -> str:
    """The name of the operator that `name` is a part of; `name` itself if it is not a part.

    Examples
    --------
    >>> whole_name("conv1[1/2]"), whole_name("conv1")
    ('conv1', 'conv1')
    """
    match = _PART.fullmatch(name)
    return match["whole"] if match else name
