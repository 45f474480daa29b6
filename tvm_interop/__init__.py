"""Run a model's independent operators side by side.

`Session` runs a model with onnxruntime's interface. `compile` turns a model into an artifact,
`load` reads the artifact, and `GraphModule` runs it. `schedule` and `OpGraph` schedule any graph of
operators. `transform.InterOpSchedule` is the Relax pass. Once this package is imported, the pass is
also found at `tvm.relax.transform.InterOpSchedule`.
"""

from __future__ import annotations

import importlib as _importlib
import importlib.util as _util
import os as _os
from typing import TYPE_CHECKING
from typing import Any as _Any

# By default TVM binds every thread that calls a kernel to the same core, so the streams could not
# run side by side. With TVM_BIND_THREADS=0, TVM binds no thread. TVM reads this variable only when
# the first kernel runs.
_os.environ.setdefault("TVM_BIND_THREADS", "0")

from . import _pass_hook
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
    only_runtime,
)

if TYPE_CHECKING:
    from . import transform
    from ._version import __version__
    from .artifact.artifact import Artifact, load
    from .checking.api import check
    from .compiler.api import compile
    from .compiler.operator_graph import operator_graph
    from .execution.graph_module import GraphModule
    from .execution.interleaved import measure_interleaved
    from .execution.threads import num_threads, set_num_threads
    from .execution.workspaces import set_workspace_limit, workspace_limit
    from .explaining.api import explain
    from .explaining.compare import compare
    from .latency import LatencyModel, LatencyTable
    from .program.graph import OpGraph
    from .program.host_memory import aligned_empty
    from .scheduling import Schedule, Stage
    from .scheduling.registry import register_scheduler, schedule, schedulers
    from .session.session import Session

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
    "Session",
    "Stage",
    "TVMInteropError",
    "UnsupportedModelError",
    "__version__",
    "aligned_empty",
    "check",
    "compare",
    "compile",
    "explain",
    "load",
    "measure_interleaved",
    "num_threads",
    "operator_graph",
    "register_scheduler",
    "schedule",
    "schedulers",
    "set_num_threads",
    "set_workspace_limit",
    "transform",
    "workspace_limit",
]

_HOME = {
    "Artifact": "artifact.artifact",
    "GraphModule": "execution.graph_module",
    "LatencyModel": "latency",
    "LatencyTable": "latency",
    "OpGraph": "program.graph",
    "Schedule": "scheduling",
    "Session": "session.session",
    "Stage": "scheduling",
    "__version__": "_version",
    "aligned_empty": "program.host_memory",
    "check": "checking.api",
    "compare": "explaining.compare",
    "compile": "compiler.api",
    "explain": "explaining.api",
    "load": "artifact.artifact",
    "measure_interleaved": "execution.interleaved",
    "num_threads": "execution.threads",
    "operator_graph": "compiler.operator_graph",
    "register_scheduler": "scheduling",
    "schedule": "scheduling",
    "schedulers": "scheduling",
    "set_num_threads": "execution.threads",
    "set_workspace_limit": "execution.workspaces",
    "workspace_limit": "execution.workspaces",
}
"""Names that this package imports on first use, each with the module that defines the name.
Importing TVM takes seconds, and help and shell completion do not need TVM."""

_NEEDS_COMPILER = ("compare", "compile", "explain", "operator_graph", "transform")

_pass_hook.install()


def __getattr__(name: str) -> _Any:
    if name in _NEEDS_COMPILER:
        _require_compiler(name)
    if name in _HOME:
        if _util.find_spec(f".{_HOME[name].partition('.')[0]}", __name__) is None:
            raise only_runtime(f"`tvm_interop.{name}`")
        value = getattr(_importlib.import_module(f".{_HOME[name]}", __name__), name)
    elif not name.startswith("_") and _util.find_spec(f".{name}", __name__):
        value = _importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module `tvm_interop` has no attribute `{name}`")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _require_compiler(name: str) -> None:
    """Raise DeviceError if only TVM's runtime is loaded, which cannot compile models."""
    if _util.find_spec(".compiler", __name__) is None:
        raise only_runtime(f"`tvm_interop.{name}`")
    import tvm

    if tvm.base._RUNTIME_ONLY:
        raise DeviceError(
            f"`tvm_interop.{name}` needs TVM's compiler, but only TVM's runtime is loaded; unset "
            "TVM_USE_RUNTIME_LIB"
        )
