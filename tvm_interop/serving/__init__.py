"""Serve many models on one device.

The package `serving` holds request queues, scheduling policies, a simulator that compares policies,
and an inference server.
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING
from typing import Any as _Any

from . import policies as _registered  # noqa: F401
from .arrivals import Arrivals, closed_loop, dependent, on_off, periodic, poisson, trace_file
from .combination import (
    Combination,
    CombinedServing,
    Window,
    combination_of,
    each_alone,
    equal_depth,
    simulate_combined,
)
from .models import OperatorCosts, ServedModel, ServingDevice
from .policy import Policy, Setting, make_policy, policies, register_policy
from .programs import Programs
from .run import Latency, ServingRun
from .simulation import simulate_serving
from .tasks import WHOLE, Admit, Request, Running, Start, View, Wait

if TYPE_CHECKING:
    from .server.config import ServerConfig
    from .server.server import Server

__all__ = [
    "WHOLE",
    "Admit",
    "Arrivals",
    "Combination",
    "CombinedServing",
    "Latency",
    "OperatorCosts",
    "Policy",
    "Programs",
    "Request",
    "Running",
    "ServedModel",
    "Server",
    "ServerConfig",
    "ServingDevice",
    "ServingRun",
    "Setting",
    "Start",
    "View",
    "Wait",
    "Window",
    "closed_loop",
    "combination_of",
    "dependent",
    "each_alone",
    "equal_depth",
    "make_policy",
    "on_off",
    "periodic",
    "poisson",
    "policies",
    "register_policy",
    "simulate_combined",
    "simulate_serving",
    "trace_file",
]

_HOME = {"Server": "server.server", "ServerConfig": "server.config"}
"""Names that are imported when they are first used, and the module of each name.

Simulations need neither TVM nor the libraries of the server, so the server is imported lazily.
"""


def __getattr__(name: str) -> _Any:
    if name not in _HOME:
        raise AttributeError(f"module `tvm_interop.serving` has no attribute `{name}`")
    return getattr(_importlib.import_module(f".{_HOME[name]}", __name__), name)
