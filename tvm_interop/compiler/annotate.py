"""Keeps a schedule in its Relax module, as an attribute of the function; stock TVM ignores it."""

from __future__ import annotations

from typing import Any

import tvm

from ..scheduling import Schedule

_ATTRIBUTE = "tvm_interop.schedule"


def annotate(module: Any, schedule: Schedule, function: str = "main") -> Any:
    """A module whose `function` carries `schedule`."""
    annotated = module.clone()
    global_var = module.get_global_var(function)
    annotated[global_var] = module[global_var].with_attr(_ATTRIBUTE, schedule.to_json())
    return annotated


def annotated_schedule(module: Any, function: str = "main") -> Schedule | None:
    """The schedule that `function` has as an attribute; None if `module` is no Relax module, too.

    Raises
    ------
    ScheduleError
        It carries one that cannot be read.
    """
    is_there = isinstance(module, tvm.IRModule) and function in [
        var.name_hint for var in module.get_global_vars()
    ]
    attributes = module[function].attrs if is_there else None
    if attributes is None or _ATTRIBUTE not in attributes:
        return None
    return Schedule.from_json(str(attributes[_ATTRIBUTE]))
