"""TVM's kernel of a quantised matrix product; `quantised.py` recognises the operator."""

from __future__ import annotations

from tvm import te

from ...program.kinds.quantised_matmul import QuantisedMatmul
from ..quantised_kernels import computes, dims, scaled


@computes("quantised_matmul")
def quantised_matmul(
    op: QuantisedMatmul, left: te.Tensor, right: te.Tensor, *more: te.Tensor
) -> te.Tensor:
    """The matrix product of integers. The scale, the bias, the steps (see `Integers`) and the
    rounding are then applied to it.
    """
    return scaled(op, op.ending, op.integers, _products(op, left, right), *more)


def _products(op: QuantisedMatmul, left: te.Tensor, right: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, op.shapes[0][-1]))
    many = len(op.shapes[1]) > 2
    integers = op.integers
    return te.compute(
        dims(op.shapes[-1]),
        lambda *i: te.sum(
            (left(*i[:-1], k).astype("int32") - integers.data_zero)
            * (right(*(i[:-2] if many else ()), k, i[-1]).astype("int32") - integers.weight_zero),
            axis=k,
        ),
        name="total",
    )
