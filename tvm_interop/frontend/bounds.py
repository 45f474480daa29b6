"""Keeps what a model looks up within the tensor it looks it up in.

TVM's importers take elements unchecked: an index out of range, such as a token no vocabulary holds,
would read foreign memory.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..lowering.names import replace_bindings

_TAKE = tvm.ir.Op.get("relax.take")


def within_bounds(value: Any) -> Any:
    """`value`, or if it takes elements unchecked, the same with the nearest index that exists."""
    is_call = isinstance(value, relax.Call)
    if is_call and value.op == _TAKE and value.attrs.mode == "fast":
        axis = value.attrs.axis
        return relax.op.take(*value.args, axis=None if axis is None else int(axis), mode="clip")
    return value


def all_within_bounds(main: relax.Function) -> relax.Function:
    """`main` with `within_bounds` of what each binding computes."""

    def checked(binding: relax.Binding) -> list[relax.Binding]:
        value = binding.value if isinstance(binding, relax.VarBinding) else None
        inside = within_bounds(value)
        if inside is value:
            return [binding]
        return [relax.VarBinding(binding.var, relax.BlockBuilder().normalize(inside))]

    return replace_bindings(main, checked)
