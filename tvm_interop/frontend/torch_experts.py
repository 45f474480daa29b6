"""Converts products of groups of rows, each group by its own matrix, as in mixtures of experts.

The package `transformers` defines an operator of its own for products of groups of rows. A program
of `torch.export` names the operator, and PyTorch cannot read the program in a process in which
nobody has defined it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from onnx import TensorProto
from onnxscript import opset18 as op

from .torch_shapes import fixed_sizes, ints

_OF_TRANSFORMERS = "transformers::grouped_mm_fallback"


def define() -> Any:
    """Return the operator of `transformers`. Define it here if `transformers` is not imported.

    If `transformers` is imported later, its own definition replaces the definition made here.
    """
    with contextlib.suppress(AttributeError):
        return torch.ops.transformers.grouped_mm_fallback.default
    schema = "(Tensor input, Tensor weight, Tensor offs) -> Tensor"
    made = torch.library.custom_op(_OF_TRANSFORMERS, _product, mutates_args=(), schema=schema)
    made.register_fake(lambda rows, weight, ends: rows.new_empty(rows.shape[0], weight.shape[2]))
    return torch.ops.transformers.grouped_mm_fallback.default


def _product(rows: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply rows by the matrix of their group. Rows after the last group give zeros.

    Parameters
    ----------
    rows: shape (rows, inner). The rows of a group stand side by side.
    weight: shape (groups, inner, columns), a matrix for each group.
    ends: shape (groups,). A group begins where the one before it ends.
    """
    result = rows.new_zeros(rows.shape[0], weight.shape[2])
    start = 0
    for matrix, end in zip(weight, ends.tolist(), strict=True):
        result[start:end] = rows[start:end] @ matrix
        start = end
    return result


def grouped_product(rows: Any, weight: Any, ends: Any) -> Any:
    """Convert the operator of `transformers`; see `_product`.

    If there are at most as many rows as groups, each row is multiplied by a copy of the matrix of
    its group. If there are more rows, all rows are multiplied by all matrices, and each row takes
    the result of its group. That takes more multiplications, but it copies no matrix.
    """
    count, inner, groups, columns = fixed_sizes(
        (*rows.shape, weight.shape[0], weight.shape[2]), range(4)
    )
    places = op.Constant(value_ints=list(range(count)))
    ended = op.LessOrEqual(op.Unsqueeze(op.CastLike(ends, places), ints(1)), places)
    group = op.ReduceSum(op.Cast(ended, to=TensorProto.INT64), ints(0), keepdims=0)
    own = op.Min(group, ints(groups - 1))
    if count <= groups:
        product = op.MatMul(op.Reshape(rows, ints(count, 1, inner)), op.Gather(weight, own))
        result = op.Reshape(product, ints(count, columns))
    else:
        every = op.Reshape(op.MatMul(rows, weight), ints(groups * count, columns))
        result = op.Gather(every, op.Add(op.Mul(own, ints(count)), places))
    is_in_a_group = op.Unsqueeze(op.Less(group, ints(groups)), ints(1))
    return op.Where(is_in_a_group, result, op.CastLike(op.Constant(value_float=0.0), rows))


def product_of_groups(
    rows: Any, weight: Any, ends: Any = None, bias: Any = None, out_dtype: int | None = None
) -> Any:
    """Convert `torch.nn.functional.grouped_mm`: products of groups of rows, or of whole matrices.

    PyTorch leaves rows after the last group undefined; here they are zeros.
    """
    if ends is None:
        result = op.MatMul(rows, weight)
    elif len(rows.shape) == 2 and len(weight.shape) == 3:
        result = grouped_product(rows, weight, ends)
    else:
        raise TypeError("groups of columns are not converted, only groups of rows")
    if bias is not None:
        raise TypeError("a `bias` is not converted: add it to the result")
    return result if out_dtype in (None, -1) else op.Cast(result, to=out_dtype)
