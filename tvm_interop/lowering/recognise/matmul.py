"""Recognises matrix products that libraries can compute.

Conditions: all shapes are known. Both factors and the result are float32. Alternatively the factors
are float16, the sums are float32, and a cast back to float16 follows.
"""

from __future__ import annotations

from tvm import relax

from ..groups import Dataflow, Group, recognises
from ..sums_of_products import sum_of_products


@recognises("relax.matmul")
def matmul(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The group that begins with the matrix product `call`; None if libraries cannot compute it."""
    return sum_of_products("matmul", var, call, graph)
