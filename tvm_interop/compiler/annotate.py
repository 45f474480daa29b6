"""Stores a schedule in a Relax module, as an attribute that stock TVM ignores."""

from __future__ import annotations

from typing import Any

import tvm

from ..scheduling import Schedule

_ATTRIBUTE = "tvm_interop.schedule"


def annotate(module: Any, schedule: Schedule, function: str = "main") -> Any:
    """Return a copy of the module whose `function` has `schedule` as an attribute."""
    annotated = module.clone()
    global_var = module.get_global_var(function)
    annotated[global_var] = module[global_var].with_attr(_ATTRIBUTE, schedule.to_json())
    return annotated


def annotated_schedule(module: Any, function: str = "main") -> Schedule | None:
    """The schedule that `function` has as an attribute.

    None if there is no such attribute or function, or if `module` is no Relax module.

    Raises
    ------
    ScheduleError
        The attribute cannot be read.
    """
    is_there = isinstance(module, tvm.IRModule) and function in [
        var.name_hint for var in module.get_global_vars()
    ]
    attributes = module[function].attrs if is_there else None
    if attributes is None or _ATTRIBUTE not in attributes:
        return None
    return Schedule.from_json(str(attributes[_ATTRIBUTE]))
