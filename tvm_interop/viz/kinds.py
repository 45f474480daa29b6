"""Kinds of operators, and a colour for each that colour-blind people tell apart."""

from __future__ import annotations

import re
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of operator: what a kernel's name has in it that tells it, its colour, its text's."""

    name: str
    pattern: str
    fill: str
    text: str = "#000000"


# The colours of Okabe and Ito, but for vermilion, which marks waits, and a grey.
KINDS = (
    Kind("convolution", "conv", "#56B4E9"),
    Kind("matrix product", "matmul|dense|gemm", "#E69F00"),
    Kind("softmax, norm", "softmax|norm", "#CC79A7"),
    Kind("pooling, reduction", r"pool|mean|sum|(^|_)(max|min)\d*(_|$)", "#009E73"),
    Kind("concatenation", "concat", "#F0E442"),
    Kind(
        "data movement",
        "transpose|reshape|slice|split|pad|take|layout|broadcast|copy",
        "#0072B2",
        "#FFFFFF",
    ),
    Kind("element-wise", "", "#B4B4B4"),
)
"""The first whose pattern is found in a kernel's name is its kind; the last is found in all."""

WAIT = "#D55E00"
INK = "#222222"
FAINT = "#767676"
STAGES = ("#ECECEC", "#DADADA")
"""Stages are shaded in turn."""


def kind_of(kernel: str) -> str:
    """The kind of a kernel, by its name.

    Examples
    --------
    >>> kind_of("fused_conv2d_add_relu"), kind_of("add3")
    ('convolution', 'element-wise')
    """
    return next(kind.name for kind in KINDS if re.search(kind.pattern, kernel))


def colours_of(kind: str) -> tuple[str, str]:
    """The fill and the text colour of a kind."""
    found = next(known for known in KINDS if known.name == kind)
    return found.fill, found.text
