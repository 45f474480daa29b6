"""Cases of convolutions by Winograd's algorithm."""

from __future__ import annotations

from typing import Any

from tests.kinds import conforms
from tests.kinds.conv2d import conv, reference
from tvm_interop.program.kinds.winograd_conv2d import as_winograd
from tvm_interop.program.library_op import LibraryOp


def winograd(data: tuple[int, int, int, int], channels: int, **fields: Any) -> LibraryOp:
    made = as_winograd(conv(data, channels, (3, 3), **fields))
    assert made is not None
    return made


CASES = {
    "of one": winograd((1, 1, 3, 3), 1, bias=False),
    "smaller than a tile": winograd((1, 17, 2, 1), 5, padding=(1,) * 4),
    "prime": winograd((1, 7, 13, 11), 5, padding=(1,) * 4, ending={"activation": "relu"}),
    "uneven padding": winograd((1, 19, 11, 10), 33, padding=(2, 0, 1, 3), added=True),
    "large": winograd((1, 32, 30, 30), 64, padding=(1,) * 4, added=True),
    "images": winograd((3, 16, 9, 9), 48, padding=(1,) * 4, ending={"activation": "hardswish"}),
    "dilated": winograd((1, 24, 23, 17), 40, dilation=3, padding=(3,) * 4),
    "one block of several": winograd(
        (1, 40, 31, 33), 16, dilation=2, padding=(2,) * 4, ending={"activation": "swish"}
    ),
    "one channel of several blocks": winograd((1, 64, 19, 80), 1, padding=(1,) * 4),
    # The last block of channels is padded with channels of zeros. The activations of the next cases
    # turn 0 into another number, so they would change these channels too.
    "sigmoid": winograd((1, 8, 9, 9), 17, ending={"activation": "sigmoid"}),
    "hard sigmoid": winograd((1, 8, 9, 9), 20, ending={"activation": "hardsigmoid"}),
    "GELU": winograd((1, 8, 9, 9), 17, padding=(1,) * 4, ending={"activation": "gelu"}),
    "clipped": winograd(
        (1, 16, 8, 8),
        9,
        ending={"activation": "clip", "clip_low": 0.5, "clip_high": 6.0},
        added=True,
    ),
}


def narrow(op: LibraryOp) -> LibraryOp:
    """`op` on images that are stored as bfloat16."""
    last = len(op.shapes) - 1
    images = {0, last, last - op.has_sum}
    return op.with_fields(
        stored=tuple("bfloat16" if i in images else "float32" for i in range(last + 1))
    )


for each in ("prime", "large", "images", "one block of several", "sigmoid", "clipped"):
    CASES[f"{each}, of bfloat16"] = narrow(CASES[each])

conforms("winograd_conv2d", CASES, reference)
