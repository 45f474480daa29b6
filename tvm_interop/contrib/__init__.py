"""A replacement for `tvm.contrib.graph_executor`, which TVM removed together with Relay."""

from __future__ import annotations

from typing import Any

from ..relay.counterparts import CONTRIB, refuse


def __getattr__(name: str) -> Any:
    refuse("contrib", name, CONTRIB)
