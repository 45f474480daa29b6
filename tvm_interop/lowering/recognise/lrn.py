"""Local response normalisations that libraries compute.

Conditions: a division ends the operators of one (see `lrn_pattern`), and nothing else uses what
they make on the way. Images are N,C,H,W, of float32 and of a shape that is known.
"""

from __future__ import annotations

from tvm import relax, te, topi

from ...program.library_op import library_op
from ..groups import Dataflow, Group, float_shape, recognises
from ..lrn_pattern import find_lrn


@recognises("relax.divide")
def lrn(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """A division may be the end of a local response normalisation."""
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
    # As imported it reshapes on the way, which no kernel may.
    data = te.placeholder(shape, "float32")
    result = topi.nn.lrn(data, found.size, 1, found.alpha, found.beta, found.bias)
    kernel = te.create_prim_func([data, result])
    return Group(list(found.vars), values, [found.data], description, kernel=kernel)
