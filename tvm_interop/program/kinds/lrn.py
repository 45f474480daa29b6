"""Local response normalisation, across channels."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from ..library_op import kind
from ..of_images import OfImages


@kind("lrn")
class Lrn(OfImages, frozen=True, kw_only=True):
    """Local response normalisation of data (N,C,H,W).

    Attributes
    ----------
    size, alpha, beta, bias: the attributes of ONNX's operator. Data is divided by (bias + alpha /
        size * sum of squares over `size` channels) to the power of beta.
    """

    # oneDNN's kernel computes the cube of the divisor, which overflows for inputs above about 1e8
    # (see docs/numbers.rst). So the kernel is not checked on large numbers. It is used
    # nevertheless, because TVM's kernel takes six times as long.
    takes_large: ClassVar[bool] = False
    layer: ClassVar[str] = "normalise"

    size: int = msgspec.field(default=0, name="lrn_size")
    alpha: float = msgspec.field(default=0.0, name="lrn_alpha")
    beta: float = msgspec.field(default=0.0, name="lrn_beta")
    bias: float = msgspec.field(default=0.0, name="lrn_bias")
