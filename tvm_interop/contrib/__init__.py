"""`graph_executor` of `tvm.contrib`, which left TVM with Relay, for scripts that import it."""

from __future__ import annotations

from typing import Any

from ..relay.counterparts import CONTRIB, refuse


def __getattr__(name: str) -> Any:
    refuse("contrib", name, CONTRIB)
