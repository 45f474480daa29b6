"""Recognises local response normalisation. ONNX's `LRN` is imported as several operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import relax


@dataclass(frozen=True)
class Lrn:
    """`data / (bias + alpha * mean of squares over size channels) ** beta`.

    Attributes
    ----------
    vars: the variables that the operators define, in order; the last is the result.
    data: the tensor that is normalised.
    size, alpha, beta, bias: the parameters of the formula. `size` is the number of channels in the
        mean.
    """

    vars: tuple[relax.Var, ...]
    data: relax.Expr
    size: int
    alpha: float
    beta: float
    bias: float


def find_lrn(values: Mapping[relax.Var, relax.Expr], result: relax.Var) -> Lrn | None:
    """The normalisation whose last operator is the division `result`; None if there is none.

    Parameters
    ----------
    values: the expression that each variable is bound to.
    """
    chain: list[relax.Var] = [result]

    def operand(name: str, expr: relax.Expr) -> relax.Call | None:
        """The call of operator `name` that `expr` is bound to, or None.

        If `expr` is bound to a call of the operator `name`, `expr` is appended to `chain`.
        """
        call = values.get(expr) if isinstance(expr, relax.Var) else None
        if not isinstance(call, relax.Call) or getattr(call.op, "name", None) != name:
            return None
        chain.append(expr)
        return call

    data, divisor = values[result].args
    numbers = []
    for name in ("relax.power", "relax.add", "relax.multiply"):
        call = operand(name, divisor)
        number = _number(call.args[1]) if call is not None else None
        if call is None or number is None:
            return None
        numbers.append(number)
        divisor = call.args[0]
    beta, bias, alpha = numbers
    flat = operand("relax.squeeze", divisor)
    mean = operand("relax.nn.avg_pool3d", flat.args[0]) if flat is not None else None
    deep = operand("relax.expand_dims", mean.args[0]) if mean is not None else None
    square = operand("relax.multiply", deep.args[0]) if deep is not None else None
    if flat is None or mean is None or deep is None or square is None:
        return None
    size = _window(mean)
    if size is None or [list(call.attrs.axis) for call in (flat, deep)] != [[1], [1]]:
        return None
    if not all(arg.same_as(data) for arg in square.args):
        return None
    return Lrn(tuple(reversed(chain)), data, size, alpha, beta, bias)


def _window(mean: relax.Call) -> int | None:
    """The number of channels in the window of the average pooling `mean`.

    Return None unless the number of channels is odd and the window is centred. The padding beyond
    the first and last channel must be 0.
    """
    attrs = mean.attrs
    size, *rest = (int(n) for n in attrs.pool_size)
    half = size // 2
    is_lrn = (
        size % 2 == 1
        and rest == [1, 1]
        and all(int(n) == 1 for n in (*attrs.strides, *attrs.dilation))
        and [int(n) for n in attrs.padding] == [half, 0, 0, half, 0, 0]
        and bool(attrs.count_include_pad)
    )
    return size if is_lrn else None


def _number(expr: relax.Expr) -> float | None:
    if not isinstance(expr, tvm.ir.GenericConst) or not isinstance(expr.ty, relax.TensorType):
        return None
    array = expr.value.numpy()
    return float(array) if array.ndim == 0 else None
