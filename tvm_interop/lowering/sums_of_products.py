"""Code shared by the functions that recognise convolutions and matrix products in Relax."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .groups import Dataflow, Group, float_shape, group_of


def sum_of_products(
    op: str, var: relax.Var, call: relax.Call, graph: Dataflow, **fields: Any
) -> Group | None:
    """The group that begins with a convolution or product `call`; None if no library computes it.

    If the inputs are float16, the result is float32 (see `WideSums`). In that case, a cast back to
    float16 must follow, and this cast is added to the group.
    """
    if float_shape(call.args[0], "float16") is None:
        return group_of(op, var, call, True, **fields)
    following = graph.only_user(var)
    if following is None or following[1].op.name != "relax.astype":
        return None
    cast, value = following
    group = group_of(op, cast, call, True, **fields)
    if group is not None:
        group.vars, group.values = [var, cast], [call, value]
    return group
