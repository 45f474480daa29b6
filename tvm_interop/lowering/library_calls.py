"""Groups of operators that something else than their kernels does, taken out before lowering.

A kernel library computes them as one, or, for a concatenation, nobody needs to do anything. Each
group becomes a function of its own, which fusion then leaves alone and turns into one kernel like
any other: TVM can run it, and a library can run it in TVM's stead, by the description it carries.
To let a library do more, add a function to `ANCHORS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import msgspec
import tvm
from tvm import relax, te, tirx, topi
from tvm.ir.transform import PassContext, module_pass

from ..machine.kernel_libraries import is_supported
from ..program.concat_in_place import CONCAT, can_be_in_place
from ..program.library_op import LibraryOp
from ..program.storage import Layout
from .activations import MOST_OPERATORS, constant_number, find_activation
from .lrn_pattern import find_lrn
from .names import bindings_of, is_meaningful, rename_bindings
from .static_shape import static_shape

DESCRIPTION = "tvm_interop.library_op"
"""Attribute of a group's function: its `LibraryOp`, as JSON."""

_Shape: TypeAlias = "tuple[int, ...]"


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
        groups = self._groups(graph)
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

    def _groups(self, graph: Dataflow) -> list[_Group]:
        groups = []
        taken: set[relax.Var] = set()
        # The deepest first: it gets the sum.
        for var in sorted(graph.values, key=graph.depth.__getitem__, reverse=True):
            value = graph.values[var]
            anchor = ANCHORS.get(value.op.name) if _is_operator(value) else None
            group = anchor(var, value, graph) if anchor else None
            if group is None or taken.intersection(group.vars) or group.repeats_arguments:
                continue
            if group.takes_more:
                _extend(group, graph, taken, self._is_supported)
            if group.description.op == CONCAT or self._is_supported(group.description):
                groups.append(group)
                taken.update(group.vars)
        return groups

    def _is_supported(self, description: LibraryOp) -> bool:
        return any(is_supported(name, description) for name in self._libraries)


@dataclass
class _Group:
    """Operators in a chain.

    Attributes
    ----------
    vars, values: what the operators define and are, in order.
    args: what goes in: in the order of `description.shapes`.
    takes_more: whether anything may follow the first operator.
    kernel: what TVM computes in place of the operators; None where it takes them as they are.
    """

    vars: list[relax.Var]
    values: list[relax.Call]
    args: list[relax.Expr]
    description: LibraryOp
    takes_more: bool = False
    kernel: tirx.PrimFunc | None = None

    @property
    def repeats_arguments(self) -> bool:
        """Whether an argument goes in twice: its kernel would take it once, unlike described."""
        return any(arg.same_as(other) for i, arg in enumerate(self.args) for other in self.args[:i])

    def function(self, module: relax.BlockBuilder) -> relax.Function:
        """The group as a function of its arguments; its kernel joins the functions of `module`."""
        params = [relax.Var(f"p{i}", arg.ty) for i, arg in enumerate(self.args)]
        known: list[tuple[relax.Expr, relax.Expr]] = list(zip(self.args, params, strict=True))
        builder = relax.BlockBuilder()
        with builder.function("group", params, private=True):
            with builder.dataflow():
                calls = list(zip(self.vars, self.values, strict=True))
                if self.kernel is not None:
                    kernel = module.add_func(self.kernel, self.description.op)
                    calls = []
                    made = builder.emit_output(relax.call_tir(kernel, params, self.vars[-1].ty))
                for i, (var, call) in enumerate(calls):
                    args = [_replaced(arg, known) for arg in call.args]
                    new = relax.Call(call.op, args, call.attrs, call.ty_args)
                    last = i == len(self.vars) - 1
                    made = builder.emit_output(new) if last else builder.emit(new)
                    known.append((var, made))
            builder.emit_func_output(made)
        function = builder.finalize()["group"]
        return function.with_attrs({"Primitive": True, DESCRIPTION: self.description.to_json()})

    def add(self, var: relax.Var, value: relax.Call, **fields: Any) -> None:
        """Let the group end with another operator, which changes its description so."""
        self.vars.append(var)
        self.values.append(value)
        self.description = msgspec.structs.replace(self.description, **fields)

    def add_argument(self, arg: relax.Expr, shape: _Shape, **fields: Any) -> dict[str, Any]:
        """Take one more argument; the fields of the description that change."""
        self.args.append(arg)
        shapes, layouts = self.description.shapes, self.description.layouts
        return {
            "shapes": (*shapes[:-1], shape, shapes[-1]),
            "layouts": (*layouts, "plain"),
            **fields,
        }


class Dataflow:
    """Who defines, who uses what, and how deep in the network it is."""

    def __init__(self, main: relax.Function) -> None:
        self.values = {b.var: b.value for b in bindings_of(main) if isinstance(b, relax.VarBinding)}
        self.uses: Counter[relax.Var] = Counter()
        self.users: dict[relax.Var, list[relax.Var]] = {}
        self.depth: dict[relax.Var, int] = {}
        for var, value in self.values.items():
            operands = list(relax.analysis.free_vars(value))
            for operand in operands:
                self.users.setdefault(operand, []).append(var)
            self.uses.update(_occurrences(value))
            self.depth[var] = 1 + max((self.depth.get(o, 0) for o in operands), default=0)
        self.uses.update(_occurrences(main.body.body))

    def comes_from_library(self, expr: relax.Expr) -> bool:
        """Whether a library makes images such as `expr`, perhaps with an activation at the end."""
        for _ in range(MOST_OPERATORS):
            value: Any = self.values.get(expr)
            if not _is_operator(value):
                return False
            if value.op.name in _MAKES_IMAGES:
                return True
            tensors = [arg for arg in value.args if arg in self.values]
            same = [arg for arg in tensors if static_shape(arg.ty) == static_shape(expr.ty)]
            if not same:
                return False
            expr = same[0]
        return False

    def only_user(self, var: relax.Var) -> tuple[relax.Var, relax.Call] | None:
        """The operator that reads `var`, where it is the only one and reads it once."""
        if self.uses[var] != 1 or var not in self.users:
            return None
        (user,) = self.users[var]
        value = self.values[user]
        return (user, value) if _is_operator(value) else None


def _extend(
    group: _Group,
    graph: Dataflow,
    taken: set[relax.Var],
    is_supported: Callable[[LibraryOp], bool],
) -> None:
    """Add what follows, as far as a library does it on the way."""
    while _add_activation(group, graph, taken, is_supported) or _add_tensor(group, graph, taken):
        if group.description.activation != "none":
            return


def _add_activation(
    group: _Group,
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
    if not is_supported(msgspec.structs.replace(group.description, **fields)):
        return False
    for var in chain.vars:
        group.add(var, _with_scalars(graph.values[var]))
    group.description = msgspec.structs.replace(group.description, **fields)
    return True


def _with_scalars(call: relax.Call) -> relax.Call:
    """`call` with numbers in place of tensors of one number, which no kernel needs as such."""
    args = []
    for arg in call.args:
        number = constant_number(arg) if isinstance(arg, tvm.ir.GenericConst) else None
        args.append(arg if number is None else relax.const(number, str(arg.ty.dtype)))
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def _add_tensor(group: _Group, graph: Dataflow, taken: set[relax.Var]) -> bool:
    """Add the sum with a bias, or with another tensor, that follows."""
    following = graph.only_user(group.vars[-1])
    if following is None or following[0] in taken or following[1].op.name != "relax.add":
        return False
    var, value = following
    op = group.description
    other = value.args[1] if value.args[0].same_as(group.vars[-1]) else value.args[0]
    if any(other.same_as(arg) for arg in group.args):
        return False
    shape, output = _float_shape(other, op.dtype), op.shapes[-1]
    if shape is None or static_shape(value.ty) != output:
        return False
    if not op.has_bias and not op.has_sum and _is_by_channel(shape, op):
        channels = output[_channel_axis(op)]
        fields = group.add_argument(other, (channels,), has_bias=True)
    elif not op.has_sum and shape == output and op.op != "scale":
        fields = group.add_argument(other, output, has_sum=True)
    else:
        return False
    group.add(var, value, **fields)
    return True


def _conv2d(var: relax.Var, call: relax.Call, graph: Dataflow) -> _Group | None:
    attrs = call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    if layouts != ("NCHW", "OIHW", "NCHW"):
        return None
    weight = static_shape(call.args[1].ty)
    if weight is None:
        return None
    fields = _window_fields(weight[2:], attrs)
    return _contraction("conv2d", var, call, graph, groups=int(attrs.groups), **fields)


def _matmul(var: relax.Var, call: relax.Call, graph: Dataflow) -> _Group | None:
    return _contraction("matmul", var, call, graph)


def _contraction(
    op: str, var: relax.Var, call: relax.Call, graph: Dataflow, **fields: Any
) -> _Group | None:
    """A sum of products. One of float16 gives float32 (see `WideSums`), and is cast back here."""
    if _float_shape(call.args[0], "float16") is None:
        return _group(op, var, call, True, **fields)
    following = graph.only_user(var)
    if following is None or following[1].op.name != "relax.astype":
        return None
    cast, value = following
    group = _group(op, cast, call, True, **fields)
    if group is not None:
        group.vars, group.values = [var, cast], [call, value]
    return group


def _max_pool2d(var: relax.Var, call: relax.Call, graph: Dataflow) -> _Group | None:
    return _pool("max_pool2d", var, call)


def _avg_pool2d(var: relax.Var, call: relax.Call, graph: Dataflow) -> _Group | None:
    counts = bool(call.attrs.count_include_pad)
    return _pool("avg_pool2d", var, call, counts_padding=counts)


def _pool(op: str, var: relax.Var, call: relax.Call, **fields: Any) -> _Group | None:
    attrs = call.attrs
    if (attrs.layout, attrs.out_layout) != ("NCHW", "NCHW"):
        return None
    fields |= _window_fields(tuple(int(size) for size in attrs.pool_size), attrs)
    return _group(op, var, call, False, **fields)


def _concat(var: relax.Var, call: relax.Call, graph: Dataflow) -> _Group | None:
    """Joins what lies one after the other in the result: channels, of one image."""
    if not isinstance(call.args[0], relax.Tuple):
        return None
    fields = list(call.args[0].fields)
    shapes = [_float_shape(expr) for expr in (*fields, var)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len(known[-1]) != 4 or known[-1][0] != 1:
        return None
    if int(call.attrs.axis) != 1 or not can_be_in_place([4 * prod(shape) for shape in known[:-1]]):
        return None
    plain: Layout = "plain"
    layouts = (plain,) * len(known)
    description = LibraryOp(op="concat", shapes=tuple(known), layouts=layouts)
    return _Group([var], [call], fields, description)


def _mean(var: relax.Var, call: relax.Call, graph: Dataflow) -> _Group | None:
    """The mean of an image is an average pooling whose window is all of it."""
    shape = _float_shape(call.args[0])
    axis = sorted(int(a) % 4 for a in call.attrs.axis or ())
    if shape is None or len(shape) != 4 or axis != [2, 3] or not call.attrs.keepdims:
        return None
    return _group(
        "avg_pool2d",
        var,
        call,
        False,
        window=shape[2:],
        strides=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
    )


def _lrn(var: relax.Var, call: relax.Call, graph: Dataflow) -> _Group | None:
    """A division may be the end of a local response normalisation."""
    found = find_lrn(graph.values, var)
    if found is None or any(graph.uses[v] != 1 for v in found.vars[:-1]):
        return None
    shape = _float_shape(found.data)
    if shape is None or len(shape) != 4 or _float_shape(var) != shape:
        return None
    description = LibraryOp(
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
    return _Group(list(found.vars), values, [found.data], description, kernel=kernel)


def _scale(var: relax.Var, call: relax.Call, graph: Dataflow) -> _Group | None:
    """An image times one number a channel: what squeeze-and-excitation ends with, batch norms too.

    Only of what a library makes: elsewhere TVM computes it on the way, with its neighbours.
    """
    data, factor = call.args
    if _is_by_channel_of(data, factor):
        data, factor = factor, data
    if not _is_by_channel_of(factor, data) or not graph.comes_from_library(data):
        return None
    shape = _float_shape(data)
    factor_shape = _float_shape(factor)
    assert shape is not None
    assert factor_shape is not None
    description = LibraryOp(op="scale", shapes=(shape, factor_shape, shape), layouts=("plain",) * 3)
    return _Group([var], [call], [data, factor], description, takes_more=True)


def _is_by_channel_of(factor: relax.Expr, data: relax.Expr) -> bool:
    """Whether `factor` is one number a channel of the image `data`."""
    wide, narrow = _float_shape(data), _float_shape(factor)
    if wide is None or narrow is None or len(wide) != 4 or len(narrow) != 4:
        return False
    fits = narrow[0] in (1, wide[0]) and narrow[1:] == (wide[1], 1, 1)
    return fits and wide[2] * wide[3] > 1


def _softmax(var: relax.Var, call: relax.Call, graph: Dataflow) -> _Group | None:
    shape = _float_shape(call.args[0])
    if shape is None or int(call.attrs.axis) not in (-1, len(shape) - 1):
        return None
    return _group("softmax", var, call, False)


def _layer_norm(var: relax.Var, call: relax.Call, graph: Dataflow) -> _Group | None:
    shape = _float_shape(call.args[0])
    axes = [int(axis) for axis in call.attrs.axes]
    both = call.attrs.center and call.attrs.scale
    if shape is None or not both or axes not in ([-1], [len(shape) - 1]):
        return None
    return _group("layer_norm", var, call, False, epsilon=float(call.attrs.epsilon))


_MAKES_IMAGES = {
    "relax.nn.conv2d",
    "relax.nn.max_pool2d",
    "relax.nn.avg_pool2d",
    "relax.concat",
}

ANCHORS: dict[str, Callable[[relax.Var, relax.Call, Dataflow], _Group | None]] = {
    "relax.nn.conv2d": _conv2d,
    "relax.matmul": _matmul,
    "relax.nn.max_pool2d": _max_pool2d,
    "relax.nn.avg_pool2d": _avg_pool2d,
    "relax.mean": _mean,
    "relax.concat": _concat,
    "relax.divide": _lrn,
    "relax.multiply": _scale,
    "relax.nn.softmax": _softmax,
    "relax.nn.layer_norm": _layer_norm,
}
"""By Relax operator: the group that it makes, or None where no library takes it."""


def _group(
    op: str, var: relax.Var, call: relax.Call, takes_more: bool, **fields: Any
) -> _Group | None:
    dtype = _float_type(call.args[0])
    shapes = [_float_shape(expr, dtype) for expr in (*call.args, var)] if dtype else [None]
    if None in shapes:
        return None
    description = LibraryOp(
        op=op,  # type: ignore[arg-type]
        shapes=tuple(shapes),  # type: ignore[arg-type]
        layouts=tuple("plain" for _ in shapes),
        dtype=dtype,  # type: ignore[arg-type]
        **fields,
    )
    return _Group([var], [call], list(call.args), description, takes_more)


def _window_fields(window: _Shape, attrs: Any) -> dict[str, Any]:
    return {
        "window": window,
        "strides": tuple(int(s) for s in attrs.strides),
        "padding": tuple(int(p) for p in attrs.padding),
        "dilation": tuple(int(d) for d in attrs.dilation),
    }


def _is_by_channel(shape: _Shape, op: LibraryOp) -> bool:
    """Whether a tensor of this shape, added to the output, is one number a channel."""
    output = op.shapes[-1]
    padded = (1,) * (len(output) - len(shape)) + shape
    axis = _channel_axis(op)
    return padded == tuple(dim if a == axis else 1 for a, dim in enumerate(output))


def _channel_axis(op: LibraryOp) -> int:
    return len(op.shapes[-1]) - 1 if op.op == "matmul" else 1


def _float_type(expr: relax.Expr) -> str | None:
    """The type of a tensor's numbers, where libraries have kernels for it."""
    ty = getattr(expr, "ty", None)
    if not isinstance(ty, relax.TensorType) or str(ty.dtype) not in ("float32", "float16"):
        return None
    return str(ty.dtype)


def _float_shape(expr: relax.Expr, dtype: str = "float32") -> _Shape | None:
    """The shape of a tensor of `dtype`, all of it known; None for anything else."""
    return static_shape(expr.ty) if _float_type(expr) == dtype else None


def _is_operator(value: relax.Expr) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)


def _occurrences(expr: relax.Expr) -> list[relax.Var]:
    """The variables `expr` reads, each as often as it does."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.TupleGetItem):
        return _occurrences(expr.tuple_value)
    parts = expr.args if isinstance(expr, relax.Call) else getattr(expr, "fields", [])
    return [var for part in parts for var in _occurrences(part)]


def _replaced(arg: relax.Expr, known: list[tuple[relax.Expr, relax.Expr]]) -> relax.Expr:
    if isinstance(arg, relax.Tuple):
        return relax.Tuple([_replaced(field, known) for field in arg.fields])
    return next((new for old, new in known if old.same_as(arg)), arg)


def _rebound(binding: relax.Binding, calls: dict[relax.Var, relax.Expr]) -> relax.Binding:
    if binding.var in calls:
        return relax.VarBinding(binding.var, calls[binding.var])
    return binding
