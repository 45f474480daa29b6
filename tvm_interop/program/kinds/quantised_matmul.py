"""Matrix products of integers."""

from __future__ import annotations

from typing import ClassVar

from ..integers import Integers
from ..library_op import kind
from .matmul import Product


@kind("quantised_matmul")
class QuantisedMatmul(Product, frozen=True, kw_only=True):
    """Product of left (...,M,K), right (K,N) or (...,K,N), scale (N,) [, bias (N,)] [, a sum].

    The argument called a sum is a tensor to add to the product. The result is computed as
    `Integers` describes. A product of a single row is not divided into parts, because oneDNN cannot
    pack some columns of a matrix of integers.
    """

    integers: Integers = Integers()

    is_quantised: ClassVar[bool] = True
