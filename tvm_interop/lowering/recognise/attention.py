"""Recognises attention that libraries can compute as one operator.

Conditions: there are two matrix products with a softmax between them, all of float32 and of known
shapes. The first product makes the scores. They may be multiplied or divided by a number, and then
a mask may be added. No operator outside of the group reads an intermediate result. Each head has
its own keys and values. The number of scores is so large that one operator takes less time than
several.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tvm import relax

from ...program.library_op import library_op
from ..activations import constant_number
from ..groups import Dataflow, Group, Shape, float_shape, is_operator, recognises
from ..static_shape import swaps_last_axes

FEWEST_SCORES = 1 << 20
"""The smallest number of scores, of all heads together, for which attention becomes one operator.
Fewer scores take less than 4 MB and stay in the caches between operators. Three operators then take
no longer than one (`benchmarks/attention.py`).
"""

MOST_NUMBERS = 96
"""Attention becomes one operator only if the vectors of one key and one value together have at most
this many numbers. With longer vectors, the matrix products take most of the time, and separate
products by oneDNN are as fast as the one operator.
"""

FEWEST_QUERIES = 8
"""The smallest number of queries for which attention becomes one operator. With fewer queries, as
in a decoder's step, reading the keys and values takes most of the time. Attention as one operator
reads them twice, because it first copies them into another layout.
"""


@recognises("relax.matmul")
def attention(var: relax.Var, call: relax.Call, graph: Dataflow) -> Group | None:
    """The attention group that ends with the product `call`; None if no library computes it."""
    walk = _Walk(graph, var, call)
    softmax = walk.before(call.args[0], "relax.nn.softmax")
    if softmax is None or int(softmax.attrs.axis) not in (-1, len(softmax.args[0].ty.shape) - 1):
        return None
    scores_shape = float_shape(softmax.args[0])
    if scores_shape is None:
        return None
    scores, mask = softmax.args[0], None
    added = walk.before(scores, "relax.add")
    if added is not None:
        at = 0 if _is_scaled_product(added.args[0], graph) else 1
        scores, mask = added.args[at], added.args[1 - at]
    scores, scale = _unscaled(scores, walk)
    product = walk.before(scores, "relax.matmul")
    if product is None or float_shape(scores) != scores_shape:
        return None
    queries, keys = product.args
    before = walk.before(keys, "relax.permute_dims")
    by_position = False
    if before is not None and swaps_last_axes(before):
        keys, by_position = before.args[0], True
    elif before is not None:
        walk.steps.pop()
    arguments = [queries, keys, call.args[1], *([] if mask is None else [mask])]
    shapes = _shapes(arguments, scores_shape, by_position)
    result = float_shape(var)
    if shapes is None or result is None:
        return None
    if not _pays(shapes, scores_shape):
        return None
    described = library_op(
        op="attention",
        shapes=(*shapes, result),
        layouts=("plain",) * (len(shapes) + 1),
        scale=scale,
        has_mask=mask is not None,
        keys_by_position=by_position,
    )
    steps = walk.steps[::-1]
    return Group([v for v, _ in steps], [c for _, c in steps], arguments, described)


def _pays(shapes: tuple[Shape, ...], scores: Shape) -> bool:
    """Whether attention with these shapes takes less time as one operator than as several."""
    numbers = shapes[0][-1] + shapes[2][-1]
    enough = prod(scores) >= FEWEST_SCORES and scores[-2] >= FEWEST_QUERIES
    return enough and numbers <= MOST_NUMBERS


@dataclass
class _Walk:
    """The operators of an attention group, found from the last operator backwards."""

    graph: Dataflow
    last: relax.Var
    call: relax.Call
    steps: list[tuple[relax.Var, relax.Call]] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = [(self.last, self.call)]

    def before(self, expr: relax.Expr, *names: str) -> relax.Call | None:
        """Return the operator that makes `expr`, and add it to the group.

        Return None if an operator of another name makes `expr`, or if an operator outside of the
        group reads `expr`.
        """
        call = _only_made(expr, self.graph, *names)
        if call is not None:
            self.steps.append((expr, call))
        return call


def _only_made(expr: relax.Expr, graph: Dataflow, *names: str) -> relax.Call | None:
    """The call of one of the operators `names` that makes `expr`, if `expr` is read only once."""
    call = graph.values.get(expr) if isinstance(expr, relax.Var) else None
    if call is None or not is_operator(call) or call.op.name not in names:
        return None
    return call if graph.uses[expr] == 1 else None


def _is_scaled_product(expr: relax.Expr, graph: Dataflow) -> bool:
    """Whether `expr` is a matrix product, perhaps multiplied or divided by a number."""
    call = _only_made(expr, graph, "relax.matmul", "relax.multiply", "relax.divide")
    if call is None or call.op.name == "relax.matmul":
        return call is not None
    return any(_only_made(arg, graph, "relax.matmul") is not None for arg in call.args)


def _unscaled(scores: relax.Expr, walk: _Walk) -> tuple[relax.Expr, float]:
    """The scores before they are multiplied or divided by a number; and the factor."""
    call = _only_made(scores, walk.graph, "relax.multiply", "relax.divide")
    if call is None:
        return scores, 1.0
    left, right = (constant_number(arg) for arg in call.args)
    divides = call.op.name == "relax.divide"
    if right is not None and not (divides and right == 0):
        scaled, scale = call.args[0], 1 / right if divides else right
    elif left is not None and not divides:
        scaled, scale = call.args[1], left
    else:
        return scores, 1.0
    walk.steps.append((scores, call))
    return scaled, scale


def _shapes(
    arguments: list[relax.Expr], scores: Shape, by_position: bool
) -> tuple[Shape, ...] | None:
    """The shapes of queries, keys, values and mask; None if they do not fit the scores' shape."""
    found = [float_shape(arg) for arg in arguments]
    if None in found:
        return None
    queries, keys, values, *mask = (shape for shape in found if shape is not None)
    *heads, rows, positions = scores
    depth = queries[-1]
    expected = (
        (*heads, rows, depth),
        (*heads, positions, depth) if by_position else (*heads, depth, positions),
        (*heads, positions, values[-1]),
    )
    if (queries, keys, values) != expected:
        return None
    padded = [(1,) * (len(scores) - len(shape)) + shape for shape in mask]
    if any(m not in (1, s) for shape in padded for m, s in zip(shape, scores, strict=True)):
        return None
    return (*expected, *padded)
