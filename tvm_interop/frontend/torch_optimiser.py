"""Optimises programs that PyTorch's exporter converted to ONNX.

The exporter's own optimiser treats numbers that are close to 0 or 1 as 0 or 1. So it would remove
the addition of 1e-9, which keeps a divisor from being 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from onnx_ir.passes import Sequential, common
from onnxscript import optimizer, rewriter
from onnxscript.rewriter import RewriteRule
from onnxscript.rewriter.rules.common import _no_op

_ROUNDS = 2


def optimise(model: Any) -> None:
    """Optimise a model in place like onnxscript's `optimize_ir`, but treat only 0 and 1 as 0
    and 1.
    """
    common.InlinePass()(model)
    rules = list(_rules())
    for _ in range(_ROUNDS):
        optimizer.fold_constants_ir(model, onnx_shape_inference=True)
        rewriter.rewrite(model, rules)
    Sequential(
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )(model)


def _rules() -> Iterator[RewriteRule]:
    """Return onnxscript's rules. Rules for operators such as `x + 0` are replaced by rules that
    accept only the exact numbers 0 and 1.
    """
    yield from _rule(lambda op, x, number: op.Add(x, number), 0).commute()
    yield from _rule(lambda op, x, number: op.Mul(x, number), 1).commute()
    yield _rule(lambda op, x, number: op.Sub(x, number), 0)
    yield _rule(lambda op, x, number: op.Div(x, number), 1)
    yield _no_op.dropout_inference_rule
    inexact = {id(rule) for rule in _no_op.rules}
    yield from (rule for rule in rewriter._DEFAULT_REWRITE_RULES if id(rule) not in inexact)


def _rule(pattern: Callable[..., Any], wanted: int) -> RewriteRule:
    def is_wanted(context: Any, x: Any, number: Any) -> bool:
        del context, x
        given = number.const_value
        # A constant with dimensions may determine the shape of the result, so only scalars are
        # accepted.
        return given is not None and not len(given.shape) and given.numpy().item() == wanted

    def unchanged(op: Any, x: Any, number: Any) -> Any:
        del number
        return op.Identity(x)

    return RewriteRule(pattern, unchanged, is_wanted)
