"""The kinds of operators, each with a colour.

The colours are chosen so that colour-blind people can distinguish them.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of operator, with its colours and a pattern that the names of its kernels match."""

    name: str
    pattern: str
    fill: str
    text: str = "#000000"


# The colours are Okabe and Ito's palette, and a grey. Vermilion is left out, because it marks
# waits.
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
"""All kinds. A kernel belongs to the first kind whose pattern is found in the kernel's name. Every
name matches the last pattern."""

WAIT = "#D55E00"
INK = "#222222"
FAINT = "#767676"
STAGES = ("#ECECEC", "#DADADA")
"""The fill colours of stages. Neighbouring stages have different colours."""


def kind_of(kernel: str) -> str:
    """The name of the kind that a kernel belongs to.

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
