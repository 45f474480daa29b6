"""Conversions to ONNX of PyTorch's linear algebra, by onnxruntime's operator `Inverse`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, numpy_helper
from onnx.defs import OpSchema
from onnxscript import opset18 as op
from onnxscript.values import Op, Opset

from .torch_shapes import fixed_sizes, ints

_INVERSE = OpSchema(
    "Inverse",
    "com.microsoft",
    1,
    inputs=[OpSchema.FormalParameter("X", "T")],
    outputs=[OpSchema.FormalParameter("Y", "T")],
    type_constraints=[("T", ["tensor(float16)", "tensor(float)", "tensor(double)"], "Floats")],
)
_MOST_COLUMNS = 128
"""Larger matrices are not decomposed, since each column takes several operators."""


def without_checks() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of operators to those that do not check for singular matrices."""
    aten = torch.ops.aten

    def inverted(x: Any) -> Any:
        return aten.linalg_inv_ex.default(x)[0]

    def solved(a: Any, b: Any, *, left: bool = True) -> Any:
        return aten._linalg_solve_ex.default(a, b, left=left)[0]

    def decomposed(x: Any, *, upper: bool = False) -> Any:
        return aten.linalg_cholesky_ex.default(x, upper=upper)[0]

    return {
        aten.inverse.default: inverted,
        aten.linalg_cholesky.default: decomposed,
        aten.linalg_inv.default: inverted,
        aten.linalg_solve.default: solved,
    }


CHECKED = frozenset({*without_checks(), torch.ops.aten.linalg_matrix_power.default})
"""PyTorch's operators that check for singular matrices."""


def inverse(x: Any, check_errors: bool = False) -> Any:
    """Convert `linalg.inv_ex`; the second result says that no matrix is singular."""
    del check_errors
    return _inverse(x), _no_fault(x)


def solve(a: Any, b: Any, left: bool = True, check_errors: bool = False) -> Any:
    """Convert `linalg.solve`, by an inverse and one step of refinement."""
    del check_errors
    is_vector = len(b.shape) == len(a.shape) - 1
    if is_vector:
        b = op.Unsqueeze(b, ints(-1))
    inverted = _inverse(a)

    def product(matrix: Any, other: Any) -> Any:
        return op.MatMul(matrix, other) if left else op.MatMul(other, matrix)

    first = product(inverted, b)
    refined = op.Add(first, product(inverted, op.Sub(b, product(a, first))))
    result = op.Squeeze(refined, ints(-1)) if is_vector else refined
    return result, op.Identity(a), op.Constant(value_ints=[0]), _no_fault(a)


def solve_triangular(
    a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """Convert `linalg.solve_triangular`, by an inverse."""
    triangle = op.Trilu(a, upper=int(upper))
    if unitriangular:
        one = op.CastLike(op.Constant(value_float=1.0), a)
        triangle = op.Where(_diagonal(a), one, triangle)
    inverted = _inverse(triangle)
    return op.MatMul(inverted, b) if left else op.MatMul(b, inverted)


def sign_and_log_of_determinant(x: Any) -> Any:
    """Convert `linalg.slogdet`.

    The determinants of matrices whose rows have the length 1 are at most 1, and are computed in
    float64. So they leave the range of numbers for matrices of several hundred rows only.
    """
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    lengths = op.ReduceL2(wide, ints(-1), keepdims=1)
    is_zero = op.Equal(lengths, op.CastLike(op.Constant(value_float=0.0), wide))
    one = op.CastLike(op.Constant(value_float=1.0), wide)
    rest = op.Det(op.Div(wide, op.Where(is_zero, one, lengths)))
    scale = op.ReduceSum(op.Log(lengths), ints(-2, -1), keepdims=0)
    log = op.Add(op.Log(op.Abs(rest)), scale)
    # The factors that are not used outside of PyTorch's own code.
    others = op.Identity(x), op.Constant(value_ints=[0])
    return op.CastLike(op.Sign(rest), x), op.CastLike(log, x), *others


def log_of_determinant(x: Any) -> Any:
    """Convert `logdet`, which is NaN for a negative determinant."""
    sign, log, *_ = sign_and_log_of_determinant(x)
    zero, nan = (op.CastLike(op.Constant(value_float=value), x) for value in (0.0, np.nan))
    return op.Where(op.Less(sign, zero), nan, log)


def cholesky(x: Any, upper: bool = False, check_errors: bool = False) -> Any:
    """Convert `linalg.cholesky_ex`, one column at a time.

    Source: Golub and Van Loan, "Matrix Computations", section 4.2: outer products.
    """
    del check_errors
    (size,) = fixed_sizes(x.shape, [-1])
    if size > _MOST_COLUMNS:
        raise TypeError(
            f"Cholesky's decomposition is converted for at most {_MOST_COLUMNS} columns"
        )
    rest, columns = x, []
    for j in range(size):
        column = op.Slice(rest, ints(j), ints(j + 1), ints(-1))
        pivot = op.Slice(column, ints(j), ints(j + 1), ints(-2))
        # Rows above the diagonal are exactly 0.
        below = np.arange(size)[:, None] >= j
        mask = op.CastLike(op.Constant(value=numpy_helper.from_array(below)), x)
        scaled = op.Mul(op.Div(column, op.Sqrt(pivot)), mask)
        columns.append(scaled)
        rest = op.Sub(rest, op.Mul(scaled, _turned(scaled, len(x.shape))))
    lower = op.Concat(*columns, axis=-1)
    return _turned(lower, len(x.shape)) if upper else lower, _no_fault(x)


def lower_or_upper_factor(x: Any, upper: bool = False) -> Any:
    """Convert `cholesky`, the older form of `linalg.cholesky`."""
    return cholesky(x, upper)[0]


def inverse_of_decomposed(x: Any, upper: bool = False) -> Any:
    """Convert `cholesky_inverse`: the inverse of the matrix that was decomposed."""
    inverted = _inverse(op.Trilu(x, upper=int(upper)))
    turned = _turned(inverted, len(x.shape))
    return op.MatMul(inverted, turned) if upper else op.MatMul(turned, inverted)


def solve_decomposed(b: Any, x: Any, upper: bool = False) -> Any:
    """Convert `cholesky_solve`, by two triangular matrices."""
    inverted = _inverse(op.Trilu(x, upper=int(upper)))
    turned = _turned(inverted, len(x.shape))
    first, second = (turned, inverted) if upper else (inverted, turned)
    return op.MatMul(second, op.MatMul(first, b))


def _inverse(x: Any) -> Any:
    return Op(Opset(_INVERSE.domain, 1), _INVERSE.name, _INVERSE)(x)


def _no_fault(x: Any) -> Any:
    """Return PyTorch's code for a success for each matrix."""
    return op.ConstantOfShape(
        op.Shape(x, end=-2), value=numpy_helper.from_array(np.zeros(1, np.int32))
    )


def _diagonal(x: Any) -> Any:
    """Return whether each element of a matrix is on its diagonal."""
    rows, columns = fixed_sizes(x.shape, [-2, -1])
    return op.Constant(value=numpy_helper.from_array(np.eye(rows, columns, dtype=bool)))


def _turned(x: Any, rank: int) -> Any:
    return op.Transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2])
