"""Recovers the program that a plan was made from."""

from __future__ import annotations

from typing import Any

from ..program.program import Operator, Program, Value
from .plan import Plan


def program_of(plan: Plan, weights: dict[int, Any]) -> Program:
    """Return the program of a plan: its operators and tensors without streams and memory."""
    return Program(
        values=[
            Value(
                v.name,
                v.shape,
                v.dtype,
                v.alias_of,
                (v.offset or 0) if v.alias_of is not None else 0,
                v.layout,
            )
            for v in plan.values
        ],
        operators=[
            Operator(
                op.name,
                op.kernel,
                op.inputs,
                op.outputs,
                op.description,
                op.library,
                op.share,
                op.whole if op.whole != op.name else None,
            )
            for op in plan.operators
        ],
        inputs=plan.inputs,
        outputs=plan.outputs,
        weights=weights,
    )
