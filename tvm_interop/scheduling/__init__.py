"""Schedules, and the schedulers that make them: one a file, found by name."""

# Each registers itself under its name.
from . import greedy, ios, lios, lios_plus, lios_random, nimble, sequential
from .registry import options_of, register_scheduler, schedule, schedulers
from .schedule import Schedule, Stage

__all__ = [
    "Schedule",
    "Stage",
    "greedy",
    "ios",
    "lios",
    "lios_plus",
    "lios_random",
    "nimble",
    "options_of",
    "register_scheduler",
    "schedule",
    "schedulers",
    "sequential",
]
