"""Schedules, and the schedulers that make them: one a file, found by name."""

# Each registers itself under its name.
from . import (
    auto,
    greedy,
    ios,
    ios_merge,
    lios,
    lios_plus,
    lios_random,
    nimble,
    opara,
    sequential,
)
from .registry import options_of, register_scheduler, schedule, schedulers
from .schedule import Schedule, Stage
from .traits import OperatorTraits

__all__ = [
    "OperatorTraits",
    "Schedule",
    "Stage",
    "auto",
    "greedy",
    "ios",
    "ios_merge",
    "lios",
    "lios_plus",
    "lios_random",
    "nimble",
    "opara",
    "options_of",
    "register_scheduler",
    "schedule",
    "schedulers",
    "sequential",
]
