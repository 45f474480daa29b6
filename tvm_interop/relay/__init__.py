"""Compiles and runs ONNX models on today's TVM for scripts that were written for Relay.

Relay and the graph executor were removed in TVM 0.20. A script that loads a model, builds it and
runs it needs to change only its imports::

    from tvm_interop import relay  # was: from tvm import relay
    from tvm_interop.contrib import graph_executor  # was: from tvm.contrib import graph_executor

The package has `frontend.from_onnx`, `transform.InterOpSchedule` and `build`. These three use Relax
and this package's executor. They make no Relay program, so a pass that rewrites Relay programs
finds nothing to rewrite. The import of any other name of Relay raises an ImportError, which names
the counterpart of this name in Relax.
"""

from __future__ import annotations

from typing import Any

from . import frontend, transform
from .build_module import Library, PlacedLibrary, build
from .counterparts import RELAY, refuse

__all__ = ["Library", "PlacedLibrary", "build", "frontend", "transform"]


def __getattr__(name: str) -> Any:
    refuse("relay", name, RELAY)
