"""`relay.transform`, which has the pass of this package, but none of Relay's own passes."""

from __future__ import annotations

from typing import Any

import tvm

from ..transform import InterOpSchedule
from .counterparts import refuse

__all__ = ["InterOpSchedule"]


def __getattr__(name: str) -> Any:
    passes = vars(tvm.relax.transform)
    known = {name: f"tvm.relax.transform.{name}"} if name in passes else {}
    refuse("relay.transform", name, known)
