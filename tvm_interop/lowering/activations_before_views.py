"""Moves activations from behind a transposition to the operator that computed the tensor."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .activations import ActivationChain, find_activation, with_scalars
from .groups import Dataflow, is_operator
from .names import is_meaningful, rename_bindings, replace_bindings

_TRANSPOSITION = "relax.permute_dims"
_VIEWS = {_TRANSPOSITION, "relax.reshape", "relax.expand_dims", "relax.squeeze"}
_PRODUCTS = {"relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d", "relax.matmul"}
_MOST_ADDED = 2
"""The largest number of additions, such as that of a bias, between a convolution or matrix product
and the reshapes and transpositions after it.
"""


@dataclass(frozen=True)
class _Move:
    """An activation that will be computed before the views (reshapes and transpositions) that now
    precede it.

    Attributes
    ----------
    source: the tensor before the views, to which the activation will be applied.
    views: the variables of the views, in order.
    chain: the operators of the activation, which follow the views.
    """

    source: relax.Var
    views: tuple[relax.Var, ...]
    chain: ActivationChain


@module_pass(opt_level=0, name="ActivationsBeforeViews")
class ActivationsBeforeViews:
    """Compute activations of convolutions and matrix products before the transposition of the
    result.

    A kernel library computes a convolution and an activation in one call, but only if nothing lies
    between them. In SegFormer and PVT v2, each convolution is reshaped and transposed from an image
    to a sequence before its GELU. An activation is computed for each number independently, so it
    gives the same numbers before and after a transposition. This pass moves an activation if one of
    the operators between the convolution and the activation is a transposition, and if nothing else
    reads the tensors between the two.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        main = mod["main"]
        graph = Dataflow(main)
        moves = [move for var in graph.values if (move := _move_of(var, graph)) is not None]
        if not moves:
            return mod
        gone = {var for move in moves for var in (*move.views, *move.chain.vars)}
        by_result = {move.chain.vars[-1]: move for move in moves}

        def replaced(binding: relax.Binding) -> list[relax.Binding]:
            move = by_result.get(binding.var)
            if move is not None:
                return _moved(move, graph)
            return [] if binding.var in gone else [binding]

        names = {
            move.chain.vars[-1]: move.views[-1].name
            for move in moves
            if is_meaningful(move.views[-1].name)
        }
        rewritten = mod.clone()
        rewritten.update_func(
            rewritten.get_global_var("main"),
            rename_bindings(replace_bindings(main, replaced), names),
        )
        return rewritten


def _move_of(product: relax.Var, graph: Dataflow) -> _Move | None:
    """The activation that follows the views of `product` and can be moved before them; None if
    there is no such activation.
    """
    if not _is_operator(product, graph, _PRODUCTS):
        return None
    source = product
    for _ in range(_MOST_ADDED):
        following = graph.only_user(source)
        if following is None or following[1].op.name != "relax.add":
            break
        source = following[0]
    views: list[relax.Var] = []
    last = source
    while (following := graph.only_user(last)) is not None and following[1].op.name in _VIEWS:
        last = following[0]
        views.append(last)
    if not any(_is_operator(view, graph, {_TRANSPOSITION}) for view in views):
        return None
    chain = find_activation(graph.values, graph.users, graph.uses, last)
    return None if chain is None else _Move(source, tuple(views), chain)


def _is_operator(var: relax.Var, graph: Dataflow, names: set[str]) -> bool:
    value = graph.values[var]
    return is_operator(value) and value.op.name in names


def _moved(move: _Move, graph: Dataflow) -> list[relax.Binding]:
    """The bindings of the activation and then of the views.

    The last view is bound to the variable that the activation had.
    """
    builder = relax.BlockBuilder()
    made: list[relax.Binding] = []

    def bound(call: relax.Call, args: list[relax.Expr], var: relax.Var | str) -> relax.Var:
        value = builder.normalize(relax.Call(call.op, args, call.attrs, call.ty_args))
        if isinstance(var, str):
            var = relax.DataflowVar(var, value.ty)
        made.append(relax.VarBinding(var, value))
        return var

    result = move.chain.vars[-1]
    before = {move.views[-1]: move.source}
    for var in move.chain.vars:
        # A constant of one element becomes a scalar, because it may have more axes than the tensor
        # before the views.
        call = with_scalars(graph.values[var])
        before[var] = bound(call, [before.get(arg, arg) for arg in call.args], str(var.name))
    last = before[result]
    for view in move.views:
        call = graph.values[view]
        var = result if view.same_as(move.views[-1]) else str(view.name)
        last = bound(call, [last, *call.args[1:]], var)
    return made
