"""Proves that a plan is safe before it runs. The plan may be new, or read from a file."""

from __future__ import annotations

from ..checking.races import check_program
from ..errors import PlanError
from ..program.storage import ALIGNMENT
from .plan import Plan
from .stream_form import stream_program
from .validate import check_bounds, decoded


def read_plan(text: str | bytes) -> Plan:
    """Read a plan that `Plan.to_json` wrote, and check it.

    Raises
    ------
    ArtifactError
        The text is not a plan of this version, or a number in it is out of bounds.
    PlanError
        The plan is unsafe: a wait is missing, or two tensors may use the same bytes at once.
    """
    plan = decoded("plan.json", text, Plan)
    check_plan(plan)
    return plan


def check_plan(plan: Plan) -> None:
    """Prove that a plan is safe: waits and streams order all operators that use the same bytes.

    The module `stream_form` derives from the plan which bytes each operator reads and writes, and
    which operators it waits for. Then `checking.races.check_program` proves that there are no
    races. Neither uses code of the planner, so both can find the planner's mistakes.

    Raises
    ------
    ArtifactError
        A number in the plan is out of bounds, or an index is not valid: see
        `validate.check_bounds`.
    PlanError
        The plan is unsafe; the message names the operators or the buffers at fault.
    """
    check_bounds(plan)
    for value in plan.values:
        if value.storage == "arena" and (value.offset or 0) % ALIGNMENT:
            raise PlanError(
                f"value `{value.name}` lies at {value.offset}, which is not a multiple of "
                f"{ALIGNMENT}"
            )
    check_program(stream_program(plan)).raise_for_faults()
