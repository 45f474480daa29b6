"""Describes groups of operators that a library may compute in one call.

The rules that find groups of each kind are in `recognise/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
from tvm import relax, tirx

from ..program.library_op import LibraryOp, library_op
from .activations import MOST_OPERATORS
from .names import values_of
from .static_shape import static_shape

DESCRIPTION = "tvm_interop.library_op"
"""The attribute of a group's function that holds the group's `LibraryOp`, as JSON."""

REFUSED = "tvm_interop.refused"
"""The attribute of `main` that holds the `LibraryOp` of each operator that all libraries refused.

It is JSON. Its keys are names of operators. After fusion, they are the names of the units that
contain these operators.
"""

Shape: TypeAlias = "tuple[int, ...]"


@dataclass
class Group:
    """A group of consecutive operators that a library may compute in one call.

    Attributes
    ----------
    vars, values: the variables that the operators of the group define, and the operators' calls, in
        order.
    args: the group's inputs, in the order of `description.shapes`.
    description: the `LibraryOp` that describes the group to libraries.
    takes_more: whether operators after the first one, such as an activation, may be added to the
        group.
    kernel: the kernel that TVM runs if no library computes the group; None if TVM makes its own
        kernel of the operators.
    """

    vars: list[relax.Var]
    values: list[relax.Call]
    args: list[relax.Expr]
    description: LibraryOp
    takes_more: bool = False
    kernel: tirx.PrimFunc | None = None

    @property
    def repeats_arguments(self) -> bool:
        """Whether two arguments are the same tensor.

        If a tensor is an argument twice, the group's kernel has only one parameter for it, but the
        description lists it twice.
        """
        return any(arg.same_as(other) for i, arg in enumerate(self.args) for other in self.args[:i])

    def function(self, module: relax.BlockBuilder) -> relax.Function:
        """The group's operators as a Relax function of the group's arguments.

        If the group has a `kernel`, this kernel is added to `module`.
        """
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
                    args = [_replaced(arg, known) for arg in call.args[:]]
                    # The type is known, so TVM need not infer it.
                    new = relax.Call(call.op, args, call.attrs, call.ty_args, ret_ty=call.ty)
                    last = i == len(self.vars) - 1
                    made = builder.emit_output(new) if last else builder.emit(new)
                    known.append((var, made))
            builder.emit_func_output(made)
        function = builder.finalize()["group"]
        return function.with_attrs({"Primitive": True, DESCRIPTION: self.description.to_json()})

    def add(self, var: relax.Var, value: relax.Call, **fields: Any) -> None:
        """Append an operator to the group.

        Parameters
        ----------
        fields: the fields of the description that change.
        """
        self.vars.append(var)
        self.values.append(value)
        self.description = self.description.with_fields(**fields)

    def add_argument(self, arg: relax.Expr, shape: Shape, **fields: Any) -> dict[str, Any]:
        """Append an argument to the arguments of the group.

        Parameters
        ----------
        fields: the fields of the description that change, besides `shapes` and `layouts`.

        Returns
        -------
        All fields of the description that change; the description itself is not changed yet.
        """
        self.args.append(arg)
        shapes, layouts = self.description.shapes, self.description.layouts
        return {
            "shapes": (*shapes[:-1], shape, shapes[-1]),
            "layouts": (*layouts, "plain"),
            **fields,
        }


class Dataflow:
    """The definitions and uses of a function's variables.

    Attributes
    ----------
    values: the expression that each variable is bound to.
    uses: how often each variable is read, including by the function's result.
    users: the variables that are computed from each variable, in order.
    depth: the number of bindings on the longest path that ends with each variable.
    """

    def __init__(self, main: relax.Function) -> None:
        self.values = values_of(main)
        self.uses: Counter[relax.Var] = Counter()
        self.users: dict[relax.Var, list[relax.Var]] = {}
        self.depth: dict[relax.Var, int] = {}
        for var, value in self.values.items():
            operands = relax.analysis.free_vars(value)[:]
            for operand in operands:
                self.users.setdefault(operand, []).append(var)
            self.uses.update(_occurrences(value))
            self.depth[var] = 1 + max((self.depth.get(o, 0) for o in operands), default=0)
        self.uses.update(_occurrences(main.body.body))

    def comes_from_library(self, expr: relax.Expr) -> bool:
        """Whether `expr` is an image that a library computes, perhaps with an activation after
        it.
        """
        for _ in range(MOST_OPERATORS):
            value: Any = self.values.get(expr)
            if not is_operator(value):
                return False
            if value.op.name in MAKES_IMAGES:
                return True
            tensors = [arg for arg in value.args if arg in self.values]
            same = [arg for arg in tensors if static_shape(arg.ty) == static_shape(expr.ty)]
            if not same:
                return False
            expr = same[0]
        return False

    def only_user(self, var: relax.Var) -> tuple[relax.Var, relax.Call] | None:
        """The operator that reads `var`; None unless `var` is read exactly once."""
        if self.uses[var] != 1 or var not in self.users:
            return None
        (user,) = self.users[var]
        value = self.values[user]
        return (user, value) if is_operator(value) else None


Recogniser: TypeAlias = Callable[[relax.Var, relax.Call, Dataflow], "Group | None"]
"""A function that finds the group that begins with a given operator.

It takes the operator's variable, its call and the dataflow around it. It returns None if there is
no group that a library could compute.
"""

RECOGNISERS: dict[str, list[Recogniser]] = {}
"""The recognisers for each Relax operator, in the order of their files' names.

If several recognisers find a group that a library can compute, the first of these groups is used.
"""

MAKES_IMAGES: set[str] = set()
"""The Relax operators that libraries compute and whose result is an image."""


def recognises(operator: str, *, makes_images: bool = False) -> Callable[[Recogniser], Recogniser]:
    """Register a recogniser of groups that begin with the Relax operator named `operator`.

    Parameters
    ----------
    makes_images: whether the result of the operator is an image.
    """

    def register(function: Recogniser) -> Recogniser:
        RECOGNISERS.setdefault(operator, []).append(function)
        if makes_images:
            MAKES_IMAGES.add(operator)
        return function

    return register


def group_of(
    op: str, var: relax.Var, call: relax.Call, takes_more: bool, **fields: Any
) -> Group | None:
    """A group with only `call`; None unless its tensors have known shapes and the same supported
    type.

    Parameters
    ----------
    op: the kind of the description.
    takes_more: whether operators that follow this call may be added to the group.
    fields: further fields of the description, besides `op`, `shapes`, `layouts` and `dtype`.
    """
    dtype = float_type(call.args[0])
    shapes = [float_shape(expr, dtype) for expr in (*call.args, var)] if dtype else [None]
    if None in shapes:
        return None
    description = library_op(
        op=op,
        shapes=tuple(shapes),
        layouts=tuple("plain" for _ in shapes),
        dtype=dtype,
        **fields,
    )
    return Group([var], [call], list(call.args), description, takes_more)


def window_fields(window: Shape, attrs: Any) -> dict[str, Any]:
    """The fields of `Window`, by name.

    `window` gives the field `size`. All other fields come from `attrs`, the attributes of a Relax
    operator.
    """
    return {
        "window": window,
        "strides": tuple(int(s) for s in attrs.strides),
        "padding": tuple(int(p) for p in attrs.padding),
        "dilation": tuple(int(d) for d in attrs.dilation),
    }


def float_type(expr: relax.Expr) -> str | None:
    """The data type of a tensor if libraries have kernels for it; None otherwise."""
    ty = getattr(expr, "ty", None)
    if not isinstance(ty, relax.TensorType) or str(ty.dtype) not in ("float32", "float16"):
        return None
    return str(ty.dtype)


def float_shape(expr: relax.Expr, dtype: str = "float32") -> Shape | None:
    """The shape of a tensor of type `dtype`; None for another type or if a dimension is unknown."""
    return static_shape(expr.ty) if float_type(expr) == dtype else None


def image_shape(expr: relax.Expr) -> Shape | None:
    """The shape (1,C,H,W) of a single float32 image; None for any other tensor."""
    shape = float_shape(expr)
    return shape if shape is not None and len(shape) == 4 and shape[0] == 1 else None


def is_operator(value: relax.Expr) -> bool:
    """Whether `value` is a call of one of Relax's operators."""
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)


def is_call(value: Any, op: tvm.ir.Op) -> bool:
    """Whether `value` is a call of the operator `op`."""
    return isinstance(value, relax.Call) and value.op == op


def calls_kernel(value: Any) -> bool:
    """Whether `value` is a call of a kernel."""
    return is_call(value, tvm.ir.Op.get("relax.call_tir"))


PATTERN = "op_pattern"
"""The attribute of a kernel by which TVM says which other kernels it may be fused with."""

ELEMENTWISE = 0
"""TVM's `kElemWise`, the `op_pattern` of element-wise kernels."""


def pattern_of(kernel: tirx.PrimFunc) -> int:
    """The `op_pattern` of a kernel; -1 if it has none."""
    return int((kernel.attrs or {}).get(PATTERN, -1))


def is_constant(expr: relax.Expr) -> bool:
    """Whether `expr` is a constant tensor."""
    return isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType)


def _occurrences(expr: relax.Expr) -> list[relax.Var]:
    """The variables that `expr` reads, each repeated as often as it is read."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.TupleGetItem):
        return _occurrences(expr.tuple_value)
    parts = expr.args if isinstance(expr, relax.Call) else getattr(expr, "fields", [])
    return [var for part in parts[:] for var in _occurrences(part)]


def _replaced(arg: relax.Expr, known: list[tuple[relax.Expr, relax.Expr]]) -> relax.Expr:
    if isinstance(arg, relax.Tuple):
        return relax.Tuple([_replaced(field, known) for field in arg.fields])
    return next((new for old, new in known if old.same_as(arg)), arg)
