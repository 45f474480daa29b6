"""Many models on one device: queues, policies, and a simulator to compare them on."""

from . import policies as _registered  # noqa: F401
from .arrivals import Arrivals, closed_loop, dependent, on_off, periodic, poisson, trace_file
from .combination import (
    Combination,
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

__all__ = [
    "WHOLE",
    "Admit",
    "Arrivals",
    "Combination",
    "Latency",
    "OperatorCosts",
    "Policy",
    "Programs",
    "Request",
    "Running",
    "ServedModel",
    "ServingDevice",
    "ServingRun",
    "Setting",
    "Start",
    "View",
    "Wait",
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
