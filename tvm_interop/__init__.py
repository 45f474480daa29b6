"""Run a model's independent operators side by side.

`compile` takes a model to an artifact, `load` and `GraphModule` run it; `schedule` and `OpGraph`
schedule any graph of operators; `transform.InterOpSchedule` is the pass, also found at
`tvm.relax.transform.InterOpSchedule` once this package is imported.
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING
from typing import Any as _Any

# By default TVM confines every thread that calls a kernel to one core, all of them to the same:
# streams would take turns. Read when the first kernel runs, so this is early enough.
_os.environ.setdefault("TVM_BIND_THREADS", "0")

import tvm as _tvm

from ._version import __version__
from .artifact import Artifact, load
from .errors import (
    ArtifactError,
    DeviceError,
    ExecutionError,
    GraphError,
    InputError,
    PlanError,
    ScheduleError,
    TVMInteropError,
    UnsupportedModelError,
)
from .executor import GraphModule, measure_interleaved
from .graph import OpGraph
from .latency import LatencyModel, LatencyTable
from .scheduling import Schedule, Stage, register_scheduler, schedule, schedulers

if TYPE_CHECKING:
    from . import transform
    from .compiler import compile

__all__ = [
    "Artifact",
    "ArtifactError",
    "DeviceError",
    "ExecutionError",
    "GraphError",
    "GraphModule",
    "InputError",
    "LatencyModel",
    "LatencyTable",
    "OpGraph",
    "PlanError",
    "Schedule",
    "ScheduleError",
    "Stage",
    "TVMInteropError",
    "UnsupportedModelError",
    "__version__",
    "compile",
    "load",
    "measure_interleaved",
    "register_scheduler",
    "schedule",
    "schedulers",
    "transform",
]

# Where only TVM's runtime is installed, artifacts are run and nothing is compiled.
if not _tvm.base._RUNTIME_ONLY:
    from . import transform
    from .compiler import compile

    _tvm.relax.transform.InterOpSchedule = transform.InterOpSchedule


def __getattr__(name: str) -> _Any:
    if name in ("compile", "transform"):
        raise DeviceError(
            f"`tvm_interop.{name}` needs TVM's compiler, and only its runtime is loaded; "
            "unset TVM_USE_RUNTIME_LIB"
        )
    raise AttributeError(f"module `tvm_interop` has no attribute `{name}`")
