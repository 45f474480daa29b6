"""Local response normalisation, across channels."""

from __future__ import annotations

import msgspec

from ..library_op import kind
from ..of_images import OfImages


@kind("lrn")
class Lrn(OfImages, frozen=True, kw_only=True):
    """Data (N,C,H,W).

    Attributes
    ----------
    size, alpha, beta, bias: as ONNX's operator has them: divide by (bias + alpha / size * sum of
        squares over `size` channels) to the power of beta.
    """

    size: int = msgspec.field(default=0, name="lrn_size")
    alpha: float = msgspec.field(default=0.0, name="lrn_alpha")
    beta: float = msgspec.field(default=0.0, name="lrn_beta")
    bias: float = msgspec.field(default=0.0, name="lrn_bias")
