"""Stores a schedule in a Relax module, as an attribute that stock TVM ignores."""

from __future__ import annotations

from typing import Any

import msgspec
import tvm

from ..artifact.manifest import MergeCheck
from ..errors import ScheduleError
from ..scheduling import Schedule

_SCHEDULE = "tvm_interop.schedule"
_MERGE_CHECK = "tvm_interop.merge_check"


def annotate(
    module: Any, schedule: Schedule, merge_check: MergeCheck | None, function: str = "main"
) -> Any:
    """Return a copy of the module whose `function` has `schedule` as an attribute.

    Parameters
    ----------
    merge_check: the comparison of merged operators with the operators that they replaced; None if
        none were merged. This comparison becomes an attribute too.
    """
    attributes = {_SCHEDULE: schedule.to_json()}
    if merge_check is not None:
        attributes[_MERGE_CHECK] = msgspec.json.encode(merge_check).decode()
    annotated = module.clone()
    global_var = module.get_global_var(function)
    annotated[global_var] = module[global_var].with_attrs(attributes)
    return annotated


def annotated_schedule(module: Any, function: str = "main") -> Schedule | None:
    """The schedule that is stored as an attribute of `function`.

    Return None if `module` is not a Relax module, or if its function `function` is missing or has
    no schedule.

    Raises
    ------
    ScheduleError
        The attribute cannot be read.
    """
    text = _attribute(module, function, _SCHEDULE)
    return None if text is None else Schedule.from_json(text)


def annotated_merge_check(module: Any, function: str = "main") -> MergeCheck | None:
    """The comparison of merged operators with the operators that they replaced, which is stored as
    an attribute of `function`; None if nothing is stored.

    Raises
    ------
    ScheduleError
        The attribute cannot be read.
    """
    text = _attribute(module, function, _MERGE_CHECK)
    try:
        return None if text is None else msgspec.json.decode(text, type=MergeCheck)
    except msgspec.MsgspecError as error:
        raise ScheduleError(
            f"the attribute `{_MERGE_CHECK}` of `{function}` cannot be read: {error}; run "
            "`InterOpSchedule` again"
        ) from error


def _attribute(module: Any, function: str, name: str) -> str | None:
    is_there = isinstance(module, tvm.IRModule) and function in [
        var.name_hint for var in module.get_global_vars()
    ]
    attributes = module[function].attrs if is_there else None
    return None if attributes is None or name not in attributes else str(attributes[name])
