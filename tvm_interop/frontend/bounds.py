"""Keeps what a model looks up within the tensor it looks it up in.

TVM's importers take elements unchecked: an index out of range, such as a token no vocabulary holds,
would read or write foreign memory. Nodes of ONNX are seen to one by one (see `indices`), programs
of PyTorch as they come from TVM's importer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from ..lowering.names import replace_bindings
from ..lowering.static_shape import static_shape
from .indices import bounded

_TAKE = tvm.ir.Op.get("relax.take")

Sizes = Callable[[relax.Call, tuple[int, ...]], list[npt.NDArray[np.int64]]]
"""How many elements there are for each tensor of indices, by the call and its data's shape."""


def _along_axis(call: relax.Call, shape: tuple[int, ...]) -> list[npt.NDArray[np.int64]]:
    return [np.array(shape[int(call.attrs.axis)], np.int64)]


def _of_several(call: relax.Call, shape: tuple[int, ...]) -> list[npt.NDArray[np.int64]]:
    return [np.array(size, np.int64) for size in shape]


_UNCHECKED: dict[str, Sizes] = {
    "relax.gather_elements": _along_axis,
    "relax.index_put": _of_several,
    "relax.index_tensor": _of_several,
    "relax.scatter_elements": _along_axis,
}
"""Operators whose second argument, or each field of it, is of indices into the first."""


def within_bounds(value: Any) -> Any:
    """`value`, or if it takes elements unchecked, the same with the nearest index that exists."""
    is_call = isinstance(value, relax.Call)
    if is_call and value.op == _TAKE and value.attrs.mode == "fast":
        axis = value.attrs.axis
        return relax.op.take(*value.args, axis=None if axis is None else int(axis), mode="clip")
    return value


def all_within_bounds(main: relax.Function) -> relax.Function:
    """`main`, whose operators take no index but that of an element."""

    def checked(binding: relax.Binding) -> list[relax.Binding]:
        value = binding.value if isinstance(binding, relax.VarBinding) else None
        inside = within_bounds(value)
        if inside is not value:
            return [relax.VarBinding(binding.var, relax.BlockBuilder().normalize(inside))]
        name = getattr(getattr(value, "op", None), "name", "")
        shape = static_shape(value.args[0].ty) if name in _UNCHECKED else None
        if shape is None:
            return [binding]
        before = _Bindings()
        indices = _bounded_argument(before, value.args[1], _UNCHECKED[name](value, shape))
        args = [value.args[0], indices, *value.args[2:]]
        call = relax.Call(value.op, args, value.attrs, value.ty_args)
        normal = relax.BlockBuilder().normalize(call)
        return [*before.made, relax.VarBinding(binding.var, normal)]

    return replace_bindings(main, checked)


def _bounded_argument(
    before: _Bindings, argument: relax.Expr, sizes: list[npt.NDArray[np.int64]]
) -> relax.Expr:
    if not isinstance(argument, relax.Tuple):
        return _bounded_tensor(before, argument, sizes[0])
    fields = zip(argument.fields, sizes, strict=False)
    return relax.Tuple([_bounded_tensor(before, field, size) for field, size in fields])


def _bounded_tensor(
    before: _Bindings, indices: relax.Expr, sizes: npt.NDArray[np.int64]
) -> relax.Expr:
    is_index = "int" in str(getattr(indices.ty, "dtype", ""))  # A mask of booleans is none.
    return bounded(before, indices, sizes) if is_index else indices


class _Bindings:
    """What a block builder would emit, to stand before a binding.

    Attributes
    ----------
    made: the bindings so far.
    """

    def __init__(self) -> None:
        self.made: list[relax.Binding] = []

    def emit(self, expr: relax.Expr) -> relax.Var:
        normal = relax.BlockBuilder().normalize(expr)
        var = relax.DataflowVar("lv", normal.ty)
        self.made.append(relax.VarBinding(var, normal))
        return var
