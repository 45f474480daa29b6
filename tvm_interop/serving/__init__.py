"""Many models on one device: queues, policies, and a simulator to compare them on."""

from . import policies as _registered  # noqa: F401
from .arrivals import Arrivals, closed_loop, dependent, on_off, periodic, poisson, trace_file
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
    "dependent",
    "make_policy",
    "on_off",
    "periodic",
    "poisson",
    "policies",
    "register_policy",
    "simulate_serving",
    "trace_file",
]
