"""Clips the indices that a model computes, so that they address only elements that exist.

The operators that TVM's importers emit do not check indices. An index out of range, such as a token
that is not in the vocabulary, would read or write memory outside of the tensor. This module clips
the indices in PyTorch programs and Relax modules, once the sizes of their inputs are known. For
ONNX models, the module `indices` clips them in most nodes, one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from ..lowering.names import bindings_of, replace_bindings
from ..lowering.static_shape import static_shape
from .indices import bounded

_TAKE = tvm.ir.Op.get("relax.take")

Sizes = Callable[[relax.Call, tuple[int, ...]], list[npt.NDArray[np.int64]]]
"""A function that takes a call and the shape of its data.

It returns, for each index tensor of the call, the number of elements that an index may address.
"""


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
"""Operators that do not check their indices. Each has a function that gives the limits of its
indices.

The second argument of each operator is an index tensor or a tuple of index tensors. The indices
address elements of the first argument.
"""


def within_bounds(value: Any) -> Any:
    """Return `value`.

    If it is a `take` that does not check its indices, return a `take` that clips them.
    """
    is_call = isinstance(value, relax.Call)
    if is_call and value.op == _TAKE and value.attrs.mode == "fast":
        axis = value.attrs.axis
        return relax.op.take(*value.args, axis=None if axis is None else int(axis), mode="clip")
    return value


def all_within_bounds(main: relax.Function) -> relax.Function:
    """Return `main` with the indices of its operators limited to elements that exist.

    Parameters
    ----------
    main: a function whose input shapes are static. An operator whose data still has a dynamic
        shape is not changed.
    """

    def checked(binding: relax.Binding) -> list[relax.Binding]:
        value = binding.value if isinstance(binding, relax.VarBinding) else None
        inside = within_bounds(value)
        if inside is not value:
            return [relax.VarBinding(binding.var, relax.BlockBuilder().normalize(inside))]
        name = getattr(getattr(value, "op", None), "name", "")
        shape = static_shape(value.args[0].ty) if name in _UNCHECKED else None
        if shape is None:
            return [binding]
        before = _Bindings(type(binding.var))
        indices = _bounded_argument(before, value.args[1], _UNCHECKED[name](value, shape))
        args = [value.args[0], indices, *value.args[2:]]
        call = relax.Call(value.op, args, value.attrs, value.ty_args)
        normal = relax.BlockBuilder().normalize(call)
        return [*before.made, relax.VarBinding(binding.var, normal)]

    found = {binding.var: checked(binding) for binding in bindings_of(main)}
    if all(found[binding.var] == [binding] for binding in bindings_of(main)):
        return main
    return replace_bindings(main, lambda binding: found[binding.var])


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
    # A tensor of booleans is a mask, not indices.
    is_index = "int" in str(getattr(indices.ty, "dtype", ""))
    return bounded(before, indices, sizes) if is_index else indices


class _Bindings:
    """Collects the bindings that clip indices; used in place of a block builder.

    The caller inserts the collected bindings before the binding that uses the indices.

    Attributes
    ----------
    made: the bindings emitted so far, in order.
    """

    def __init__(self, kind: type[relax.Var]) -> None:
        """Start with no bindings.

        Parameters
        ----------
        kind: type of the variables. A `DataflowVar` is allowed only in dataflow blocks.
        """
        self._kind = kind
        self.made: list[relax.Binding] = []

    def emit(self, expr: relax.Expr) -> relax.Var:
        normal = relax.BlockBuilder().normalize(expr)
        var = self._kind("lv", normal.ty)
        self.made.append(relax.VarBinding(var, normal))
        return var
