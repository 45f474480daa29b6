"""Computes only the rows of a tensor that are read.

Vision transformers and BERT classify by one position of the last layer: they compute all positions,
and select the first. Most operators of a layer compute each row of their result from one row of an
input. So the selection can be moved before these operators. A product of the last layer then
computes one row, instead of hundreds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .groups import is_constant
from .names import NewBindings, bindings_of, readers_of, replace_bindings, values_of
from .static_shape import static_shape

Rows: TypeAlias = npt.NDArray[np.int64]
Shape: TypeAlias = tuple[int, ...]
Operand: TypeAlias = tuple[int, int | None]
"""The position of an argument, and the axis of its rows; None if all of the argument is read."""

_LEAST_FLOPS = 1e5
"""The least number of operations that a selection must save in products."""


@module_pass(opt_level=0, name="SelectedRows")
class SelectedRows:
    """Move selections of constant rows before the operators that compute each row by itself.

    A selection is a `take` by constant indices, or a slice of one axis. It is moved if at most half
    of the rows are selected, if nothing else reads the tensor, and if this saves work in a product
    of matrices. Results change only by rounding: products of few rows may add up their terms in
    another order.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        main = mod["main"]
        selections = _Selections(main)
        if not selections.moved:
            return mod
        rewritten = mod.clone()
        var = rewritten.get_global_var("main")
        rewritten.update_func(var, replace_bindings(main, selections.rewritten))
        return rewritten


@dataclass(frozen=True)
class _Selection:
    """A selection of rows: the tensor, the axis, and the indices of the rows in order."""

    tensor: relax.Var
    axis: int
    rows: Rows


class _Selections:
    """The selections in a function.

    Attributes
    ----------
    moved: the bindings that replace the binding of each selection that is moved.
    """

    def __init__(self, main: relax.Function) -> None:
        self._values, self._readers = values_of(main), readers_of(main)
        self._order = [binding.var for binding in bindings_of(main)]
        self.moved: dict[relax.Var, list[relax.Binding]] = {}
        seen: set[relax.Var] = set()
        for var in self._order:
            selection = self._selection(var)
            if selection is not None and selection.tensor not in seen:
                seen.add(selection.tensor)
                self._move(selection)

    def rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        """The bindings that replace `binding`; a later pass removes bindings that nothing reads."""
        return self.moved.get(binding.var, [binding])

    def _selection(self, var: relax.Var) -> _Selection | None:
        call: Any = self._values.get(var)
        if not isinstance(call, relax.Call) or not call.args:
            return None
        tensor = call.args[0]
        shape = static_shape(tensor.ty) if isinstance(tensor, relax.Var) else None
        if shape is None or tensor not in self._values or static_shape(var.ty) is None:
            return None
        if call.op == _TAKE and call.attrs.axis is not None:
            axis = int(call.attrs.axis) % len(shape)
            rows = self._array(call.args[1])
            if rows is None or rows.size == 0 or rows.dtype.kind not in "iu":
                return None
            rows = rows.reshape(-1).astype(np.int64)
            rows = np.where(rows < 0, rows + shape[axis], rows)
            in_range = rows.min() >= 0 and rows.max() < shape[axis]
            return _Selection(tensor, axis, rows) if in_range else None
        return self._slice(call, tensor, shape) if call.op == _SLICE else None

    def _slice(self, call: relax.Call, tensor: relax.Var, shape: Shape) -> _Selection | None:
        made = static_shape(call.ty)
        numbers = [self._numbers(arg) for arg in call.args[1:]]
        if made is None or len(numbers) < 3 or any(each is None for each in numbers):
            return None
        axes, begins, _, *steps = (each or [] for each in numbers)
        changed = [axis for axis in range(len(shape)) if made[axis] != shape[axis]]
        named = [axis % len(shape) for axis in axes]
        has_steps = any(step != 1 for each in steps for step in each)
        if len(changed) != 1 or changed[0] not in named or has_steps:
            return None
        (axis,) = changed
        begin = begins[named.index(axis)]
        begin = min(max(begin + shape[axis] if begin < 0 else begin, 0), shape[axis])
        return _Selection(tensor, axis, np.arange(begin, begin + made[axis]))

    @staticmethod
    def _numbers(arg: Any) -> list[int] | None:
        fields = getattr(arg, "fields", None)
        values = [getattr(field, "value", None) for field in fields] if fields is not None else []
        if fields is None or any(value is None for value in values):
            return None
        return [int(value) for value in values if value is not None]

    def _array(self, expr: relax.Expr) -> npt.NDArray[Any] | None:
        value = self._values.get(expr, expr)
        return value.value.numpy() if is_constant(value) else None

    def _move(self, first: _Selection) -> None:
        """Move all selections from the tensor of `first`, if nothing else reads the tensor."""
        readers = self._readers.get(first.tensor, [])
        selections = {var: self._selection(var) for var in readers if var is not None}
        found = {var: each for var, each in selections.items() if each is not None}
        if len(found) != len(readers) or any(each.axis != first.axis for each in found.values()):
            return
        shape = static_shape(first.tensor.ty)
        assert shape is not None
        rows = np.unique(np.concatenate([each.rows for each in found.values()]))
        if 2 * len(rows) > shape[first.axis]:
            return
        moving = _Moving(self._values, self._readers, rows, set(found))
        moving.collect(first.tensor, first.axis, reversed(self._order))
        if moving.saved_flops < _LEAST_FLOPS:
            return
        made, tensor = moving.bindings(self._order, first.tensor)
        for var in (each for each in self._order if each in found):
            self.moved[var] = [*made, *_selected(var, tensor, rows, found[var])]
            made = []


def _selected(
    var: relax.Var, tensor: relax.Var, rows: Rows, selection: _Selection
) -> list[relax.Binding]:
    """The bindings of a selection `var` from a tensor that has only the rows `rows`."""
    new = NewBindings()
    if not np.array_equal(rows, selection.rows):
        places = relax.const(np.searchsorted(rows, selection.rows), "int64")
        tensor = new.bind(relax.op.take(tensor, places, selection.axis, "clip"), var.name)
    shape = static_shape(var.ty)
    assert shape is not None
    new.bind(relax.op.reshape(tensor, shape), var.name)
    return new.defining(var)


class _Moving:
    """The operators before which a selection is moved.

    Attributes
    ----------
    saved_flops: the number of operations that are saved in products.
    """

    def __init__(
        self,
        values: dict[relax.Var, relax.Expr],
        readers: dict[relax.Var, list[relax.Var | None]],
        rows: Rows,
        selections: set[relax.Var],
    ) -> None:
        self._values, self._readers, self._rows = values, readers, rows
        self._passed: dict[relax.Var, tuple[int, list[Operand]]] = {}
        self._selections = selections
        self._cut: dict[tuple[relax.Expr, int], relax.Var] = {}
        self.saved_flops = 0.0

    def collect(self, tensor: relax.Var, axis: int, order: Iterable[relax.Var]) -> None:
        """Find the operators. `order` has the function's variables, the last first."""
        wanted: dict[relax.Expr, set[int]] = {tensor: {axis}}
        for var in order:
            axes = wanted.get(var, set())
            readers = self._readers.get(var, [None])
            if len(axes) != 1 or not all(
                reader in self._passed or reader in self._selections for reader in readers
            ):
                continue
            (axis,) = axes
            call: Any = self._values.get(var)
            operands = _operands(call, axis)
            if operands is None:
                continue
            self._passed[var] = (axis, operands)
            if call.op == _MATMUL:
                shape = static_shape(var.ty)
                inner = static_shape(call.args[0].ty)
                assert shape is not None
                assert inner is not None
                part = 1 - len(self._rows) / shape[axis]
                self.saved_flops += 2 * prod(shape) * inner[-1] * part
            for position, rows_axis in operands:
                if rows_axis is not None:
                    wanted.setdefault(call.args[position], set()).add(rows_axis)

    def bindings(
        self, order: Iterable[relax.Var], tensor: relax.Var
    ) -> tuple[list[relax.Binding], relax.Var]:
        """The bindings that compute only the selected rows, and the variable for `tensor`."""
        new = NewBindings()
        fewer: dict[relax.Expr, relax.Var] = {}

        def cut(expr: relax.Expr, axis: int) -> relax.Expr:
            if expr in fewer:
                return fewer[expr]
            if isinstance(expr, tvm.ir.GenericConst):
                array = expr.value.numpy()
                return relax.const(np.take(array, self._rows, axis), str(expr.ty.dtype))
            if (expr, axis) not in self._cut:
                places = relax.const(self._rows, "int64")
                call = relax.op.take(expr, places, axis, "clip")
                self._cut[expr, axis] = new.bind(call, expr.name)
            return self._cut[expr, axis]

        for var in order:
            if var not in self._passed:
                continue
            axis, operands = self._passed[var]
            call: Any = self._values[var]
            args = list(call.args)
            for position, rows_axis in operands:
                if rows_axis is not None:
                    args[position] = cut(args[position], rows_axis)
            if call.op in _VIEWS:
                shape = list(static_shape(var.ty) or ())
                shape[axis] = len(self._rows)
                fewer[var] = new.bind(relax.op.reshape(args[0], shape), var.name)
            else:
                fewer[var] = new.bind(relax.Call(call.op, args, call.attrs), var.name)
        return new.all(), fewer[tensor]


def _op(name: str) -> tvm.ir.Op:
    return tvm.ir.Op.get(f"relax.{name}")


_TAKE, _SLICE, _MATMUL = _op("take"), _op("strided_slice"), _op("matmul")
_VIEWS = {_op(name) for name in ("reshape", "expand_dims", "squeeze")}
_OF_EACH_ELEMENT = {
    _op(name)
    for name in (
        "abs", "astype", "clip", "erf", "exp", "log", "negative", "nn.gelu", "nn.gelu_tanh",
        "nn.leakyrelu", "nn.relu", "nn.silu", "nn.softplus", "rsqrt", "sigmoid", "sqrt", "square",
        "tanh",
    )
}  # fmt: skip
_OF_PAIRS = {
    _op(name)
    for name in ("add", "divide", "maximum", "minimum", "multiply", "power", "subtract", "where")
}
_OF_LAST_AXIS = {_op(name) for name in ("nn.log_softmax", "nn.softmax")}
_NORMS = {_op(name) for name in ("nn.layer_norm", "nn.rms_norm")}
_REDUCTIONS = {_op(name) for name in ("max", "mean", "min", "sum")}


def _operands(call: Any, axis: int) -> list[Operand] | None:
    """The arguments of `call` that are read row by row.

    A row of the result, along `axis`, is computed from the same row of these arguments. None if the
    operator does not compute its result row by row.
    """
    if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
        return None
    shape = static_shape(call.ty)
    shapes = [static_shape(arg.ty) for arg in call.args if isinstance(arg.ty, relax.TensorType)]
    if shape is None or not shapes or None in shapes:
        return None
    known = [each for each in shapes if each is not None]
    for ops, rule in _RULES:
        if call.op in ops:
            return rule(call, shape, known, axis)
    return None


def _same_axis(call: Any, shape: Shape, shapes: list[Shape], axis: int) -> list[Operand] | None:
    return [(0, axis)] if shapes[0] == shape and len(shapes) == 1 else None


def _broadcast(call: Any, shape: Shape, shapes: list[Shape], axis: int) -> list[Operand] | None:
    operands: list[Operand] = []
    for position, given in enumerate(shapes):
        own = axis - (len(shape) - len(given))
        is_read_whole = own < 0 or (given[own] == 1 and shape[axis] != 1)
        operands.append((position, None if is_read_whole else own))
    return operands


def _along_last(call: Any, shape: Shape, shapes: list[Shape], axis: int) -> list[Operand] | None:
    rank = len(shape)
    return [(0, axis)] if int(call.attrs.axis) % rank == rank - 1 != axis else None


def _norm(call: Any, shape: Shape, shapes: list[Shape], axis: int) -> list[Operand] | None:
    axes = {int(each) % len(shape) for each in call.attrs.axes}
    return None if axis in axes or min(axes) < axis else [(0, axis)]


def _reduction(call: Any, shape: Shape, shapes: list[Shape], axis: int) -> list[Operand] | None:
    attrs = call.attrs
    if attrs.axis is None or not attrs.keepdims:
        return None
    axes = {int(each) % len(shape) for each in attrs.axis}
    return None if axis in axes else [(0, axis)]


def _product(call: Any, shape: Shape, shapes: list[Shape], axis: int) -> list[Operand] | None:
    left, right = shapes
    is_row = axis == len(shape) - 2 and len(left) >= 2 and len(right) >= 2
    return [(0, len(left) - 2)] if is_row else None


def _permuted(call: Any, shape: Shape, shapes: list[Shape], axis: int) -> list[Operand] | None:
    axes = call.attrs.axes
    order = list(range(len(shape)))[::-1] if axes is None else [int(each) for each in axes]
    return [(0, order[axis] % len(shape))]


def _view(call: Any, shape: Shape, shapes: list[Shape], axis: int) -> list[Operand] | None:
    given = shapes[0]
    before = prod(shape[:axis])
    places = [
        own for own, size in enumerate(given) if size == shape[axis] and prod(given[:own]) == before
    ]
    return [(0, places[0])] if len(places) == 1 else None


_Rule: TypeAlias = Callable[[Any, Shape, list[Shape], int], "list[Operand] | None"]
_RULES: list[tuple[set[tvm.ir.Op], _Rule]] = [
    (_OF_EACH_ELEMENT, _same_axis),
    (_OF_PAIRS, _broadcast),
    (_OF_LAST_AXIS, _along_last),
    (_NORMS, _norm),
    (_REDUCTIONS, _reduction),
    ({_MATMUL}, _product),
    ({_op("permute_dims")}, _permuted),
    (_VIEWS, _view),
]
