"""Converts PyTorch's operators of linear algebra to ONNX, with onnxruntime's operator `Inverse`."""

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
"""The largest number of columns for Cholesky's decomposition. Each column takes several operators.
"""
_MOST_REFLECTIONS = 64
"""The largest number of columns for the QR decomposition. It takes more operators for each column
than Cholesky's decomposition.
"""
_MOST_SQUARINGS = 24
"""The exponential of a matrix is NaN if the sum of the absolute values in a row is above 2 to this
power.
"""
_TAYLOR_TERMS = 18
"""The number of terms of the Taylor polynomial for the exponential of a matrix. The error is below
float64's precision if the absolute values in each row of the matrix add up to at most 1.
"""


def without_checks() -> dict[Any, Callable[..., Any]]:
    """Return functions that replace operators by operators that do not check for singular
    matrices.
    """
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
    """Convert `linalg.inv_ex`. The second result always says that no matrix is singular."""
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

    The rows of a matrix are first scaled to the length 1, so the determinant of the scaled matrix
    is at most 1. It is computed in float64. It is too small for float64 only if the matrix has
    several hundred rows.
    """
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    lengths = op.ReduceL2(wide, ints(-1), keepdims=1)
    is_zero = op.Equal(lengths, op.CastLike(op.Constant(value_float=0.0), wide))
    one = op.CastLike(op.Constant(value_float=1.0), wide)
    rest = op.Det(op.Div(wide, op.Where(is_zero, one, lengths)))
    scale = op.ReduceSum(op.Log(lengths), ints(-2, -1), keepdims=0)
    log = op.Add(op.Log(op.Abs(rest)), scale)
    # Stand-ins for the third and fourth result of PyTorch's operator, which only PyTorch's own code
    # uses.
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
        # The elements above the diagonal are exactly 0.
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
    """Convert `cholesky_solve`, by solving for two triangular matrices."""
    inverted = _inverse(op.Trilu(x, upper=int(upper)))
    turned = _turned(inverted, len(x.shape))
    first, second = (turned, inverted) if upper else (inverted, turned)
    return op.MatMul(second, op.MatMul(first, b))


def orthogonal_and_upper(x: Any, mode: str = "reduced") -> Any:
    """Convert `linalg.qr`, by Householder's reflections, one column at a time.

    Source: Golub and Van Loan, "Matrix Computations", section 5.2, with the signs of LAPACK.
    """
    rows, columns = fixed_sizes(x.shape, [-2, -1])
    count, rank = min(rows, columns), len(x.shape)
    if count > _MOST_REFLECTIONS:
        raise TypeError(f"QR is converted for at most {_MOST_REFLECTIONS} rows or columns")
    if mode == "r":
        raise TypeError("QR is not converted in the mode `r`: take the mode `reduced`")
    upper: Any = x
    whole = op.Concat(op.Shape(x, end=-2), ints(rows, rows), axis=0)
    orthogonal = op.Expand(_constant(np.eye(rows), x), whole)
    zero, one, two = (_constant(np.array(value), x) for value in (0, 1, 2))
    for j in range(min(count, rows - 1)):
        unit = np.eye(rows)[:, j : j + 1]
        column = op.Slice(upper, ints(j), ints(j + 1), ints(-1))
        pivot = op.Slice(column, ints(j), ints(j + 1), ints(-2))
        below = op.Mul(column, _constant(np.arange(rows)[:, None] > j, x))
        rest = op.ReduceSumSquare(below, ints(-2), keepdims=1)
        is_done = op.Equal(rest, zero)
        length = op.Sqrt(op.Add(op.Mul(pivot, pivot), rest))
        end = op.Where(op.Less(pivot, zero), op.Neg(length), length)
        first = op.Where(is_done, one, op.Add(pivot, end))
        vector = op.Add(op.Div(below, first), _constant(unit, x))
        square = op.ReduceSumSquare(vector, ints(-2), keepdims=1)
        turned = _turned(op.Mul(vector, op.Where(is_done, zero, op.Div(two, square))), rank)
        upper = op.Sub(upper, op.MatMul(vector, op.MatMul(turned, upper)))
        orthogonal = op.Sub(orthogonal, op.MatMul(op.MatMul(orthogonal, vector), turned))
    upper = op.Trilu(upper, upper=1)
    if mode == "complete":
        return op.Identity(orthogonal), upper
    start, end = ints(0), ints(count)
    return op.Slice(orthogonal, start, end, ints(-1)), op.Slice(upper, start, end, ints(-2))


def exponential(x: Any) -> Any:
    """Convert `linalg.matrix_exp`, by scaling, a Taylor polynomial and squaring.

    Source: Moler and Van Loan, "Nineteen Dubious Ways to Compute the Exponential of a Matrix",
    SIAM Review, 2003, method 3.
    """
    (size,) = fixed_sizes(x.shape, [-1])
    wide = op.Cast(x, to=TensorProto.DOUBLE)
    # The largest sum of absolute values in a row is a norm of the matrix. If it is at most 1, the
    # powers of the matrix in the Taylor polynomial stay small too.
    bound = op.ReduceMax(op.ReduceSum(op.Abs(wide), ints(-1), keepdims=1), ints(-2), keepdims=1)
    scale = _constant(np.array(1.0), wide)
    two = _constant(np.array(2.0), wide)
    squarings = []
    for _ in range(_MOST_SQUARINGS):
        is_large = op.Greater(bound, scale)
        squarings.append(is_large)
        scale = op.Where(is_large, op.Mul(scale, two), scale)
    scaled = op.Div(wide, scale)
    eye = _constant(np.eye(size), wide)
    result: Any = eye
    for k in range(_TAYLOR_TERMS, 0, -1):
        product = op.MatMul(scaled, result) if k < _TAYLOR_TERMS else scaled
        result = op.Add(op.Div(product, _constant(np.array(float(k)), wide)), eye)
    for is_large in squarings:
        result = op.Where(is_large, op.MatMul(result, result), result)
    is_too_large = op.Greater(bound, _constant(np.array(2.0**_MOST_SQUARINGS), wide))
    return op.CastLike(op.Where(is_too_large, _constant(np.array(np.nan), wide), result), x)


def _inverse(x: Any) -> Any:
    return Op(Opset(_INVERSE.domain, 1), _INVERSE.name, _INVERSE)(x)


def _no_fault(x: Any) -> Any:
    """Return, for each matrix, the code by which PyTorch reports success."""
    return op.ConstantOfShape(
        op.Shape(x, end=-2), value=numpy_helper.from_array(np.zeros(1, np.int32))
    )


def _diagonal(x: Any) -> Any:
    """Return, for each element of a matrix, whether it is on the diagonal."""
    rows, columns = fixed_sizes(x.shape, [-2, -1])
    return op.Constant(value=numpy_helper.from_array(np.eye(rows, columns, dtype=bool)))


def _turned(x: Any, rank: int) -> Any:
    return op.Transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2])


def _constant(value: np.ndarray, x: Any) -> Any:
    """Return a constant of the type of `x`."""
    return op.CastLike(op.Constant(value=numpy_helper.from_array(value)), x)


def added_product(is_summed: bool, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """Convert `beta * x + alpha * (a @ b)`, in `baddbmm`, `addmv`, and with a sum in `addbmm`.

    PyTorch does not read `x` if `beta` is 0, and then `x` may hold NaN.
    """
    product = op.MatMul(a, b)
    if is_summed:
        product = op.ReduceSum(product, ints(0), keepdims=0)
    if alpha != 1:
        product = op.Mul(product, op.CastLike(alpha, x))
    if beta == 0:
        return product
    return op.Add(x if beta == 1 else op.Mul(x, op.CastLike(beta, x)), product)
