"""Schedules, and the schedulers that make them: one a file, found by name."""

# Each registers itself under its name.
from . import greedy, ios, lios, sequential
from .registry import options_of, register_scheduler, schedule, schedulers
from .schedule import Schedule, Stage

__all__ = [
    "Schedule",
    "Stage",
    "greedy",
    "ios",
    "lios",
    "options_of",
    "register_scheduler",
    "schedule",
    "schedulers",
    "sequential",
]
