"""Schedules, and the schedulers that make them.

Each scheduler has a file of its own. `registry.schedule` finds a scheduler by its name.
"""

# Importing a module registers its schedulers under their names.
from ..program.traits import OperatorTraits
from . import (
    auto,
    gpg,
    greedy,
    heft,
    hios_lp,
    hios_mr,
    ios,
    ios_merge,
    lios,
    lios_plus,
    lios_random,
    multi_gpu,
    nimble,
    opara,
    sequential,
)
from .registry import options_of, register_scheduler, schedule, schedulers
from .schedules import Schedule
from .stages import Stage

__all__ = [
    "OperatorTraits",
    "Schedule",
    "Stage",
    "auto",
    "gpg",
    "greedy",
    "heft",
    "hios_lp",
    "hios_mr",
    "ios",
    "ios_merge",
    "lios",
    "lios_plus",
    "lios_random",
    "multi_gpu",
    "nimble",
    "opara",
    "options_of",
    "register_scheduler",
    "schedule",
    "schedulers",
    "sequential",
]
