"""Groups of operators that something else than their kernels does, taken out before lowering.

A kernel library computes them as one, or, for a concatenation, nobody needs to do anything. Each
group becomes a function of its own, which fusion then leaves alone and turns into one kernel like
any other: TVM can run it, and a library can run it in TVM's stead, by the description it carries.
What a group begins with is found by the files of `recognise/`, one for each kind of operator; what
may follow is found here, whatever the kind.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from ..machine.kernel_libraries import is_supported
from ..program.import_files import import_files
from ..program.library_op import LibraryOp
from .activations import constant_number, find_activation
from .groups import RECOGNISERS, REFUSED, Dataflow, Group, Shape, float_shape, is_operator
from .names import is_meaningful, rename_bindings
from .static_shape import static_shape


@module_pass(opt_level=0, name="GroupLibraryCalls")
class GroupLibraryCalls:
    """Make each group of operators that one of `libraries` computes a function of its own.

    A group is a convolution, a matrix product or a pooling, and what follows it and can be done on
    the way: a bias, the sum with another tensor, ReLU or clip. A concatenation is one where its
    parts could be written into place. Where a sum joins two such, it goes
    to the one that is deeper in the network: the other can run beside what comes before it.
    """

    def __init__(self, libraries: tuple[str, ...]) -> None:
        self._libraries = libraries

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Group in `mod`; called by TVM's pass machinery."""
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
        """What libraries compute; and by operator, what all of them refuse."""
        import_files(f"{__package__}.recognise")
        groups = []
        refused = {}
        taken: set[relax.Var] = set()
        # The deepest first: it gets the sum.
        for var in sorted(graph.values, key=graph.depth.__getitem__, reverse=True):
            value = graph.values[var]
            known = RECOGNISERS.get(value.op.name, []) if is_operator(value) else []
            found = (recognise(var, value, graph) for recognise in known)
            group = next((group for group in found if group is not None), None)
            if group is None or taken.intersection(group.vars) or group.repeats_arguments:
                continue
            if group.takes_more:
                _extend(group, graph, taken, self._is_supported)
            if not group.description.computes or self._is_supported(group.description):
                groups.append(group)
                taken.update(group.vars)
            elif self._libraries:
                refused[group.vars[0].name] = group.description.to_json()
        return groups, refused

    def _is_supported(self, description: LibraryOp) -> bool:
        return any(is_supported(name, description) for name in self._libraries)


def _extend(
    group: Group,
    graph: Dataflow,
    taken: set[relax.Var],
    is_supported: Callable[[LibraryOp], bool],
) -> None:
    """Add what follows, as far as a library does it on the way."""
    while not _add_activation(group, graph, taken, is_supported):
        if not _add_tensor(group, graph, taken):
            return


def _add_activation(
    group: Group,
    graph: Dataflow,
    taken: set[relax.Var],
    is_supported: Callable[[LibraryOp], bool],
) -> bool:
    """Add the activation that follows, if one does that a library has."""
    chain = find_activation(graph.values, graph.users, graph.uses, group.vars[-1])
    if chain is None or taken.intersection(chain.vars):
        return False
    found = chain.activation
    fields = {"activation": found.name, "clip_low": found.low, "clip_high": found.high}
    described = group.description.with_fields(**fields)
    if not is_supported(described):
        return False
    for var in chain.vars:
        group.add(var, _with_scalars(graph.values[var]))
    group.description = described
    return True


def _with_scalars(call: relax.Call) -> relax.Call:
    """`call` with numbers in place of tensors of one number, which no kernel needs as such."""
    args = []
    for arg in call.args:
        number = constant_number(arg) if isinstance(arg, tvm.ir.GenericConst) else None
        args.append(arg if number is None else relax.const(number, str(arg.ty.dtype)))
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def _add_tensor(group: Group, graph: Dataflow, taken: set[relax.Var]) -> bool:
    """Add the sum with a bias, or with another tensor, that follows."""
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
    """Whether a tensor of this shape, added to the output, is one number a channel."""
    output = op.shapes[-1]
    padded = (1,) * (len(output) - len(shape)) + shape
    axis = op.channel_axis
    return padded == tuple(dim if a == axis else 1 for a, dim in enumerate(output))


def _rebound(binding: relax.Binding, calls: dict[relax.Var, relax.Expr]) -> relax.Binding:
    if binding.var in calls:
        return relax.VarBinding(binding.var, calls[binding.var])
    return binding
