"""Recognises local response normalisations that libraries can compute.

Conditions: the operators of `lrn_pattern` end with a division, and no other operator reads their
intermediate results. Images have the layout N,C,H,W, float32 numbers and a known shape.
"""

from __future__ import annotations

from tvm import relax, te, topi

from ...program.library_op import library_op
from ..groups import Dataflow, Group, float_shape, recognises
from ..lrn_pattern import find_lrn


@recognises("relax.divide")
def lrn(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The calls that form a local response normalisation; the division `call` is the last."""
    found = find_lrn(graph.values, var)
    if found is None or any(graph.uses[v] != 1 for v in found.vars[:-1]):
        return None
    shape = float_shape(found.data)
    if shape is None or len(shape) != 4 or float_shape(var) != shape:
        return None
    description = library_op(
        op="lrn",
        shapes=(shape, shape),
        layouts=("plain", "plain"),
        lrn_size=found.size,
        lrn_alpha=found.alpha,
        lrn_beta=found.beta,
        lrn_bias=found.bias,
    )
    values = [graph.values[v] for v in found.vars]
    # The kernel is written anew, because the imported operators contain reshapes, which cannot be
    # inside one kernel.
    data = te.placeholder(shape, "float32")
    result = topi.nn.lrn(data, found.size, 1, found.alpha, found.beta, found.bias)
    kernel = te.create_prim_func([data, result])
    return Group(list(found.vars), values, [found.data], description, kernel=kernel)
