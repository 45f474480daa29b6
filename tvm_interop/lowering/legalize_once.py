"""Makes one kernel for operators that are equal.

Most networks repeat a layer. TVM's `LegalizeOps` makes a kernel for each operator, and then finds
that the module already has an equal kernel. In this module, an operator that is like an earlier
operator uses the earlier kernel, and no new kernel is made. `LegalizeOps` alone would give the same
lowered module, except for poolings. `extremes` changes the kernel of a pooling after TVM has made
it, so TVM does not find that two poolings have equal kernels. Here equal poolings share a kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import relax

from .extremes import Legalization

_SMALL = 64
"""The numbers of a constant are compared only if it has at most this many bytes.

The numbers matter because a legalization may write a constant into the kernel. Two operators with
larger constants are alike only if both read the same constant object.
"""


def legalized_once(own: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """Return, for one run of `LegalizeOps`, the function that makes each operator's kernel.

    The result maps the operators' names to the functions that make their kernels. Each function
    makes the same kernel as the function in `own`, or as TVM's function if `own` has none for the
    operator.

    Parameters
    ----------
    own: functions that make kernels, by the operators' names. A kernel may depend only on the
        operator's attributes, on the types of its arguments and on its constants.
    """
    usual = {name: function for name, function in _usual().items() if name not in own}
    return {name: _Once(function) for name, function in {**usual, **own}.items()}


@cache
def _usual() -> dict[str, Legalization]:
    """TVM's own function that makes the kernel of each operator, by the operator's name."""
    operators = ((name, tvm.ir.Op.get(name)) for name in tvm.ir.Op.list_op_names())
    found = {str(name): operator.get_attr("FLegalize") for name, operator in operators}
    return {name: function for name, function in found.items() if function is not None}


class _Made(NamedTuple):
    """A call of a kernel that was made for an operator.

    Attributes
    ----------
    like: a description of everything that the kernel depends on.
    call: the call of the kernel.
    order: for each argument of the kernel, its index among the operator's tensors.
    """

    like: Any
    call: relax.Call
    order: list[int]


class _Once:
    """A legalization that keeps the kernels it has made, and uses them again."""

    def __init__(self, make: Legalization) -> None:
        self._make = make
        self._made: dict[Hashable, list[_Made]] = {}

    def __call__(self, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        tensors: list[relax.Expr] = []
        large: list[Any] = []
        like = tvm_ffi.Array([call.attrs, *_described(call.args[:], tensors, large)])
        key = (tvm_ffi.structural_hash(like), *large)
        alike = self._made.setdefault(key, [])
        for made in alike:
            if tvm_ffi.structural_equal(made.like, like):
                return _with(made.call, [tensors[i] for i in made.order])
        result = self._make(bb, call)
        order = _order(result, tensors)
        if order is not None:
            alike.append(_Made(like, result, order))
        return result


def _described(args: Any, tensors: list[relax.Expr], large: list[Any]) -> list[Any]:
    """Describe everything in an operator's arguments that its kernel may depend on.

    Parameters
    ----------
    tensors: a list to which all tensors are appended, in order.
    large: a list to which the arrays of large constants are appended.
    """
    found: list[Any] = []
    for arg in args:
        if isinstance(arg, relax.Tuple):
            found.append(tvm_ffi.Array(_described(arg.fields[:], tensors, large)))
            continue
        is_constant = isinstance(arg, tvm.ir.GenericConst)
        if is_constant or isinstance(arg, relax.Var):
            tensors.append(arg)
        if is_constant and arg.value.numpy().nbytes > _SMALL:
            large.append(arg.value)
            found.append(arg.ty)
        else:
            found.append(arg.ty if isinstance(arg, relax.Var) else arg)
    return found


def _order(result: relax.Expr, tensors: list[relax.Expr]) -> list[int] | None:
    """The index of each argument of the kernel call `result` in `tensors`.

    Return None if `result` is not a call of one kernel with some of `tensors`. Return None also if
    a tensor occurs twice in `tensors`, because its index is then ambiguous.
    """
    is_kernel = isinstance(result, relax.Call) and result.op == tvm.ir.Op.get("relax.call_tir")
    if not is_kernel or len(result.args) != 2 or not isinstance(result.args[1], relax.Tuple):
        return None
    found = []
    for used in result.args[1].fields[:]:
        places = [i for i, tensor in enumerate(tensors) if tensor.same_as(used)]
        if len(places) != 1:
            return None
        found.append(places[0])
    return found


def _with(call: relax.Call, tensors: list[relax.Expr]) -> relax.Call:
    """A call of the same kernel with other tensors of the same types."""
    args = [call.args[0], relax.Tuple(tensors)]
    return relax.Call(call.op, args, call.attrs, call.ty_args)
