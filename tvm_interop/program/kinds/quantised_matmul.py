"""Matrix products of integers."""

from __future__ import annotations

from typing import ClassVar

from ..integers import Integers
from ..library_op import kind
from .matmul import Product


@kind("quantised_matmul")
class QuantisedMatmul(Product, frozen=True, kw_only=True):
    """Left (...,M,K), right (K,N) or (...,K,N), scale (N,) [, bias (N,)] [, a tensor to add].

    `Integers` says how the result comes about. A single row is not divided: oneDNN cannot pack some
    columns of a matrix of integers.
    """

    integers: Integers = Integers()

    is_quantised: ClassVar[bool] = True
