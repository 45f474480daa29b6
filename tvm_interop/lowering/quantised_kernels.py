"""Exact kernels of quantised operators, which run if a kernel library is missing at run time.

A library may multiply by the scale and add the bias with a single rounding. So its results may
differ by 1 from the results of the kernels made here. This module has the code that all kinds of
operators share. The code for each kind is in `recognise/`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tvm import te, tirx

from ..program.endings import Ending
from ..program.import_files import import_files
from ..program.integers import Integers
from ..program.library_op import LibraryOp

_Written = TypeVar("_Written", bound=Callable[..., te.Tensor])

_WRITTEN: dict[str, Callable[..., te.Tensor]] = {}


def computes(kind: str) -> Callable[[_Written], _Written]:
    """Register the function that defines the kernel of a kind, given a description and the
    inputs.
    """

    def register(function: _Written) -> _Written:
        _WRITTEN[kind] = function
        return function

    return register


def quantised_kernel(op: LibraryOp) -> tirx.PrimFunc:
    """A kernel of the quantised operator `op`, on tensors in row-major order."""
    import_files(f"{__package__}.recognise")
    inputs = [
        te.placeholder(dims(shape), dtype, name=f"p{i}")
        for i, (shape, dtype) in enumerate(zip(op.shapes[:-1], op.stored, strict=False))
    ]
    return te.create_prim_func([*inputs, _WRITTEN[op.op](op, *inputs)])


def scaled(
    op: LibraryOp,
    ending: Ending,
    integers: Integers,
    total: te.Tensor,
    scale: te.Tensor,
    *more: te.Tensor,
) -> te.Tensor:
    """Multiply sums of products by the scale, add the bias, and apply `finished`.

    Parameters
    ----------
    total: the sums of products, as int32.
    scale: the scale for each index of the last axis.
    more: the bias and the tensor to add, if the operator has them.
    """

    def element(*i: Any) -> Any:
        x = total[i].astype("float32") * scale[i[-1]]
        return x + more[0][i[-1]] if ending.has_bias else x

    summed = te.compute(total.shape, element, name="summed")
    return finished(op, ending, integers, summed, more[-1] if ending.has_sum else None)


def finished(
    op: LibraryOp,
    ending: Ending,
    integers: Integers,
    data: te.Tensor,
    addend: te.Tensor | None = None,
) -> te.Tensor:
    """Apply the steps of `integers` (see `Integers`), the activation and the rounding to `data`.

    Parameters
    ----------
    addend: the tensor that the step `add_tensor` adds.
    """
    dtype = op.stored[-1]

    def element(*i: Any) -> Any:
        x = data[i]
        for kind, first, second in integers.steps:
            a, b = (tirx.const(number, "float32") for number in (first, second))
            if kind == "clip":
                x = te.min(te.max(x, a), b)
            elif kind == "round":
                x = tirx.nearbyint(x)
            elif kind == "linear":
                x = x * a + b
            elif addend is not None:
                x = x + addend[i].astype("float32")
        if ending.activation == "relu":
            x = te.max(x, tirx.const(0, "float32"))
        if ending.activation == "clip":
            low, high = (tirx.const(b, "float32") for b in (ending.clip_low, ending.clip_high))
            x = te.min(te.max(x, low), high)
        if dtype == "float32":
            return x
        least, most = (bound(dtype).astype("float32") for bound in (tirx.min_value, tirx.max_value))
        return te.min(te.max(tirx.nearbyint(x), least), most).astype(dtype)

    return te.compute(data.shape, element, name="scaled")


def rounded_to_steps(data: te.Tensor, scale: Any, zero: Any, axis: int, dtype: str) -> te.Tensor:
    """Quantise `data` as ONNX's `QuantizeLinear` does.

    Halves are rounded to the even integer. A number out of range becomes the nearest integer of
    `dtype`.

    Parameters
    ----------
    scale, zero: the scale and the zero point. Each is one number, or one number for each index of
        `axis`.
    """

    def element(*i: Any) -> Any:
        by, at = (_at(each, i, axis).astype("float32") for each in (scale, zero))
        x = tirx.nearbyint(data[i].astype("float32") / by) + at
        least, most = (bound(dtype).astype("float32") for bound in (tirx.min_value, tirx.max_value))
        return te.min(te.max(x, least), most).astype(dtype)

    return te.compute(data.shape, element, name="quantised")


def _at(numbers: Any, i: tuple[Any, ...], axis: int) -> Any:
    if not isinstance(numbers, te.Tensor):
        return numbers
    single = all(int(dim) == 1 for dim in numbers.shape)
    return numbers[(0,) * len(numbers.shape)] if single else numbers[i[axis]]


def dims(shape: tuple[int, ...]) -> list[Any]:
    """A shape as integers of 64 bits, as Relax needs it."""
    return [tirx.IntImm("int64", dim) for dim in shape]
