"""Finds groups of operators that a kernel library can compute in one call.

The groups are found before the operators become kernels.

Each group of operators for a library becomes a separate function. Fusion turns each such function
into one kernel, and neither splits it nor adds operators to it. A concatenation that needs no
computation at all may also be a group. At run time, either TVM's kernel runs, or a library computes
the group. An attribute of the function describes the group to libraries.

The files in `recognise/`, one for each kind of operator, find the operator with which a group
begins. This module finds the operators that may follow in the group. The same operators may follow
for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from ..machine.kernel_libraries import is_supported
from ..program.import_files import import_files
from ..program.library_op import LibraryOp
from .activations import find_activation, with_scalars
from .groups import RECOGNISERS, REFUSED, Dataflow, Group, Shape, float_shape, is_operator
from .names import is_meaningful, rename_bindings
from .static_shape import static_shape


@module_pass(opt_level=0, name="GroupLibraryCalls")
class GroupLibraryCalls:
    """Put each group of operators that one of `libraries` can compute into a separate function.

    A group is a convolution, a matrix product, a pooling or another operator that `recognise/`
    finds. Some kinds of groups also contain the operators that follow, if the library can compute
    them in the same call: a bias, the sum with another tensor, an activation. A concatenation is a
    group if its inputs could be computed directly in its result.

    If the results of two groups are added, the addition joins the group that is deeper in the
    network. The other group can then run in parallel with the operators before the deeper group.
    """

    def __init__(self, libraries: tuple[str, ...], without: tuple[str, ...] = ()) -> None:
        """`without` has the names of kinds of operators that are not grouped."""
        self._libraries = libraries
        self._without = without

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Group the operators of `mod`; called by TVM's pass machinery."""
        main = mod["main"]
        graph = Dataflow(main)
        groups, refused = self._groups(graph)
        if refused:
            mod = mod.clone()
            mod["main"] = main = main.with_attr(REFUSED, refused)
        if not groups:
            return mod
        builder = relax.BlockBuilder(mod)
        calls: dict[relax.Var, relax.Expr] = {}
        names = {}
        for group in groups:
            function = builder.add_func(group.function(builder), group.description.op)
            calls[group.vars[-1]] = builder.normalize(relax.Call(function, group.args))
            if is_meaningful(group.vars[0].name):
                names[group.vars[-1]] = group.vars[0].name
        gone = {var for group in groups for var in group.vars[:-1]}
        blocks = [
            type(block)([_rebound(b, calls) for b in block.bindings if b.var not in gone])
            for block in main.body.blocks
        ]
        body = relax.SeqExpr(blocks, main.body.body)
        function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        grouped = builder.get()
        grouped.update_func(grouped.get_global_var("main"), rename_bindings(function, names))
        return grouped

    def _groups(self, graph: Dataflow) -> tuple[list[Group], dict[str, str]]:
        """The groups to make, and the descriptions, by operator, that all libraries refuse."""
        import_files(f"{__package__}.recognise")
        groups = []
        refused = {}
        taken: set[relax.Var] = set()
        # The deepest operators come first, so that a sum of two groups is added to the deeper
        # group.
        for var in sorted(graph.values, key=graph.depth.__getitem__, reverse=True):
            value = graph.values[var]
            known = RECOGNISERS.get(value.op.name, []) if is_operator(value) else []
            found = (recognise(var, value, graph) for recognise in known)
            fit = [
                group
                for group in found
                if group is not None
                and not taken.intersection(group.vars)
                and not group.repeats_arguments
                and group.description.op not in self._without
            ]
            for group in fit:
                if group.takes_more:
                    _extend(group, graph, taken, self._is_supported)
                if not group.description.computes or self._is_supported(group.description):
                    groups.append(group)
                    taken.update(group.vars)
                    break
            else:
                if fit and self._libraries:
                    refused[fit[-1].vars[0].name] = fit[-1].description.to_json()
        return groups, refused

    def _is_supported(self, description: LibraryOp) -> bool:
        return any(is_supported(name, description) for name in self._libraries)


def _extend(
    group: Group,
    graph: Dataflow,
    taken: set[relax.Var],
    is_supported: Callable[[LibraryOp], bool],
) -> None:
    """Add the operators that follow the group to it, if a library computes them in the same
    call.
    """
    while not _add_activation(group, graph, taken, is_supported):
        if not _add_tensor(group, graph, taken):
            return


def _add_activation(
    group: Group,
    graph: Dataflow,
    taken: set[relax.Var],
    is_supported: Callable[[LibraryOp], bool],
) -> bool:
    """Add the next operator to the group if it is an activation that a library supports.

    Returns
    -------
    Whether an activation was added.
    """
    chain = find_activation(graph.values, graph.users, graph.uses, group.vars[-1])
    if chain is None or taken.intersection(chain.vars):
        return False
    found = chain.activation
    fields = {"activation": found.name, "clip_low": found.low, "clip_high": found.high}
    described = group.description.with_fields(**fields)
    if not is_supported(described):
        return False
    for var in chain.vars:
        group.add(var, with_scalars(graph.values[var]))
    group.description = described
    return True


def _add_tensor(group: Group, graph: Dataflow, taken: set[relax.Var]) -> bool:
    """Add the next operator to the group if it adds a bias or a tensor of the output's shape.

    Returns
    -------
    Whether a sum was added.
    """
    following = graph.only_user(group.vars[-1])
    if following is None or following[0] in taken or following[1].op.name != "relax.add":
        return False
    var, value = following
    op = group.description
    other = value.args[1] if value.args[0].same_as(group.vars[-1]) else value.args[0]
    if any(other.same_as(arg) for arg in group.args):
        return False
    shape, output = float_shape(other, op.dtype), op.shapes[-1]
    if shape is None or static_shape(value.ty) != output:
        return False
    if not op.has_bias and not op.has_sum and _is_by_channel(shape, op):
        channels = output[op.channel_axis]
        fields = group.add_argument(other, (channels,), has_bias=True)
    elif not op.has_sum and shape == output and op.multiplies:
        fields = group.add_argument(other, output, has_sum=True)
    else:
        return False
    group.add(var, value, **fields)
    return True


def _is_by_channel(shape: Shape, op: LibraryOp) -> bool:
    """Whether a tensor of shape `shape` that is added to the output has one number for each
    channel.
    """
    output = op.shapes[-1]
    padded = (1,) * (len(output) - len(shape)) + shape
    axis = op.channel_axis
    return padded == tuple(dim if a == axis else 1 for a, dim in enumerate(output))


def _rebound(binding: relax.Binding, calls: dict[relax.Var, relax.Expr]) -> relax.Binding:
    if binding.var in calls:
        return relax.VarBinding(binding.var, calls[binding.var])
    return binding
