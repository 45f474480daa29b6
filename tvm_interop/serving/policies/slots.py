"""Choice of the slot in which a new instance runs."""

from __future__ import annotations

from ..tasks import View


def free_slot(view: View) -> int:
    """Return the lowest slot number in which no instance runs."""
    taken = {running.start.slot for running in view.running.values()}
    slot = 0
    while slot in taken:
        slot += 1
    return slot
