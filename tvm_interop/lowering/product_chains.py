"""Finds matrix products that can be merged into one, each with the bias and activation after it.

The products for queries, keys and values of attention can be merged, for example. Products that
read the same tensor can always be merged, because each column of a weight gives its own column of
the result. Each number of a merged product is a sum of the same terms as before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import tvm
from tvm import relax

from .chains import Array, Chain, ChainFinder
from .static_shape import static_shape

_MATMUL = tvm.ir.Op.get("relax.matmul")


class ProductChain(Chain):
    """A product of a tensor of shape (..., M, K) or (K,) and a constant weight of shape (K, N)."""

    @property
    def axis(self) -> int:
        """The last axis, which holds the columns."""
        return len(self.output_shape) - 1

    def kind(self) -> Hashable:
        """A key. It is equal for products that read the same tensor and have the same type and
        activation.
        """
        types = (str(self.weight.dtype), str(self.result.ty.dtype))
        return ("matmul", self.data, types, self.activation_key())

    def why_not_merged(self, group: Sequence[Chain]) -> str | None:
        """Return None, because products with the same key can always be merged."""
        return None

    def wider(self, group: Sequence[Chain], data: relax.Expr) -> relax.Call:
        """The product of `data` and the columns of all weights, side by side."""
        weight = np.concatenate([chain.weight for chain in group], axis=1)
        dtype = str(self.vars[0].ty.dtype)
        out_dtype = None if dtype == str(data.ty.dtype) else dtype
        return relax.op.matmul(data, relax.const(weight, str(weight.dtype)), out_dtype)

    def shaped_bias(self, bias: Array) -> Array:
        """The bias, unchanged, because it already lies along the last axis."""
        return bias


def product_chain(finder: ChainFinder, var: relax.Var) -> ProductChain | None:
    """The chain that begins with `var`, if `var` is a product that might be merged.

    A product might be merged if its right factor is a constant matrix, and all shapes are static.
    """
    call = finder.values[var]
    if not isinstance(call, relax.Call) or call.op != _MATMUL:
        return None
    data, weight = call.args
    if not isinstance(weight, tvm.ir.GenericConst) or len(weight.ty.shape) != 2:
        return None
    shape = static_shape(var.ty)
    if not shape or not static_shape(data.ty):
        return None
    variables, bias, activation = finder.ending(var, len(shape) - 1)
    array = weight.value.numpy()
    return ProductChain(str(var.name), variables, call, data, array, bias, activation)
