"""Makes plans with a fault, for tests of the checks."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tvm_interop.plan.plan import Plan


def damaged(plan: Plan, **changes: Any) -> str:
    """The JSON of a plan in which some fields of operators or values are replaced.

    For example, `B__waits=[...]` replaces the field `waits` of the operator `B`.
    """
    document = json.loads(plan.to_json())
    for path, value in changes.items():
        name, field = path.split("__")
        entries = [*document["operators"], *document["values"]]
        next(e for e in entries if e["name"] == name)[field] = value
    return json.dumps(document)


def change_operator(plan: Plan, name: str, **fields: Any) -> Plan:
    """The plan, with some fields of one operator replaced."""
    operators = tuple(
        msgspec.structs.replace(op, **fields) if op.name == name else op for op in plan.operators
    )
    return msgspec.structs.replace(plan, operators=operators)
