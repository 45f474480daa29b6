"""Relay's names for compiling an ONNX model into a library and running it, on today's TVM.

Relay and the graph executor left TVM in 0.20. A script that loads a model, builds it and runs it
keeps every line but its imports::

    from tvm_interop import relay  # was: from tvm import relay
    from tvm_interop.contrib import graph_executor  # was: from tvm.contrib import graph_executor

The package has `frontend.from_onnx`, `transform.InterOpSchedule` and `build`. They use Relax and
this package's executor. No Relay program is made, so a pass that rewrites Relay programs finds
none. Any other name of Relay raises an ImportError that names its counterpart in Relax.
"""

from __future__ import annotations

from typing import Any

from . import frontend, transform
from .build_module import Library, PlacedLibrary, build
from .counterparts import RELAY, refuse

__all__ = ["Library", "PlacedLibrary", "build", "frontend", "transform"]


def __getattr__(name: str) -> Any:
    refuse("relay", name, RELAY)
