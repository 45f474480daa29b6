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
from onnxscript.rewriter.rules.common import _fuse_relus_clips, _no_op, _redundant_scatter_nd

_ROUNDS = 2


def optimise(model: Any) -> None:
    """Optimise a model in place like onnxscript's `optimize_ir`, but treat only 0 and 1 as 0
    and 1.
    """
    common.InlinePass()(model)
    rules = list(_rules())
    for _ in range(_ROUNDS):
        optimizer.fold_constants_ir(model, onnx_shape_inference=True, should_fold=_is_folded)
        rewriter.rewrite(model, rules)
    Sequential(
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )(model)


def _is_folded(node: Any) -> bool | None:
    """Leave a `Resize` of a constant to TVM: onnxscript's computation would take minutes.

    For all other nodes, onnxscript decides.
    """
    return False if node.op_type == "Resize" else None


def _rules() -> Iterator[RewriteRule]:
    """Return onnxscript's rules. Rules for operators such as `x + 0` are replaced by rules that
    accept only the exact numbers 0 and 1.
    """
    yield from _rule(lambda op, x, number: op.Add(x, number), 0).commute()
    yield from _rule(lambda op, x, number: op.Mul(x, number), 1).commute()
    yield _rule(lambda op, x, number: op.Sub(x, number), 0)
    yield _rule(lambda op, x, number: op.Div(x, number), 1)
    yield _no_op.dropout_inference_rule
    wrong = {id(rule) for rule in (*_no_op.rules, *_WRONG)}
    yield from (rule for rule in rewriter._DEFAULT_REWRITE_RULES if id(rule) not in wrong)


_WRONG = (
    _fuse_relus_clips.successive_clip_rule,
    _fuse_relus_clips.successive_clip_relu_rule,
    _fuse_relus_clips.successive_relu_clip_rule,
    _redundant_scatter_nd.no_op_static_scatter_nd_rule,
)
"""Rules of onnxscript that change results.

The rules for two `Clip`, or a `Clip` and a `Relu`, join their bounds. That is wrong if no number is
within all bounds: `x.clamp(0, 1).clamp(2, 3)` is 2, and not 1. The rule for `ScatterND` takes all
elements from the updates, also if the updates are added, as in `index_add`.
"""


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
