"""Matrix products that libraries compute.

Conditions: all shapes are known. Both sides and the result are of float32; or of float16 and added
up in float32, which a cast back follows.
"""

from __future__ import annotations

from tvm import relax

from ..groups import Dataflow, Group, recognises
from ..sums_of_products import sum_of_products


@recognises("relax.matmul")
def matmul(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The product `call`."""
    return sum_of_products("matmul", var, call, graph)
