"""The names of the parts of a divided operator: `conv1[1/2]` is the first of two parts of `conv1`.

In a program, the field `whole` of a part names the divided operator. Schedules and plans have no
such field, so there only its name shows that an operator is a part.
"""

from __future__ import annotations

import re

_PART = re.compile(r"(?P<whole>.+)\[\d+/\d+\]")


def whole_name(name: str) -> str:
    """The name of the divided operator of which `name` is a part; `name` itself if it does not name
    a part.

    Examples
    --------
    >>> whole_name("conv1[1/2]"), whole_name("conv1")
    ('conv1', 'conv1')
    """
    match = _PART.fullmatch(name)
    return match["whole"] if match else name
