"""`tvm.contrib`'s names: `graph_executor`, which left TVM with Relay."""

from __future__ import annotations

from typing import Any

from ..relay.counterparts import CONTRIB, refuse


def __getattr__(name: str) -> Any:
    refuse("contrib", name, CONTRIB)
