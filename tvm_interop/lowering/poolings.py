"""Code shared by the functions that recognise poolings in Relax."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .groups import Group, group_of, window_fields


def pooled(op: str, var: relax.Var, call: relax.Call, **fields: Any) -> Group | None:
    """The group that begins with the pooling `call`; None unless its images have the layout
    N,C,H,W.
    """
    attrs = call.attrs
    if (attrs.layout, attrs.out_layout) != ("NCHW", "NCHW"):
        return None
    fields |= window_fields(tuple(int(size) for size in attrs.pool_size), attrs)
    return group_of(op, var, call, False, **fields)
