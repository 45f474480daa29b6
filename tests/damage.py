"""Plans with something wrong in them, for whoever is to notice."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tvm_interop.plan.plan import Plan


def damaged(plan: Plan, **changes: Any) -> str:
    """The plan's JSON with an operator's or value's field overwritten: `B__waits=[...]`."""
    document = json.loads(plan.to_json())
    for path, value in changes.items():
        name, field = path.split("__")
        entries = [*document["operators"], *document["values"]]
        next(e for e in entries if e["name"] == name)[field] = value
    return json.dumps(document)


def change_operator(plan: Plan, name: str, **fields: Any) -> Plan:
    """The plan with fields of an operator overwritten."""
    operators = tuple(
        msgspec.structs.replace(op, **fields) if op.name == name else op for op in plan.operators
    )
    return msgspec.structs.replace(plan, operators=operators)
