"""Cases of convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kind_endings import ended
from tests.kind_windows import convolved, sliding
from tests.kinds import Arrays, conforms
from tvm_interop.program.library_op import LibraryOp, library_op


def conv(
    data: tuple[int, int, int, int],
    channels: int,
    window: tuple[int, int],
    *,
    groups: int = 1,
    bias: bool = True,
    added: bool = False,
    ending: dict[str, Any] | None = None,
    **slides: Any,
) -> LibraryOp:
    fields, made = sliding(data[2:], window, **slides)
    result = (data[0], channels, *made)
    weight = (channels, data[1] // groups, *window)
    shapes = (data, weight, *[(channels,)] * bias, *[result] * added, result)
    return library_op(
        op="conv2d",
        shapes=shapes,
        layouts=("plain",) * len(shapes),
        groups=groups,
        has_bias=bias,
        has_sum=added,
        **fields,
        **ending or {},
    )


CASES = {
    "of one": conv((1, 1, 1, 1), 1, (1, 1), bias=False),
    "prime": conv((1, 7, 13, 11), 5, (3, 3), padding=(1, 1, 1, 1), ending={"activation": "relu"}),
    "large": conv((1, 32, 30, 30), 64, (3, 3), padding=(1,) * 4, added=True),
    "images": conv((3, 16, 9, 9), 32, (1, 1), ending={"activation": "hardswish"}),
    "one block of several": conv(
        (1, 40, 31, 33), 16, (3, 3), dilation=2, padding=(2,) * 4, ending={"activation": "relu"}
    ),
    "one channel of several blocks": conv((1, 64, 19, 80), 1, (3, 3), padding=(1,) * 4),
    "few channels": conv((1, 3, 41, 43), 16, (5, 3), stride=2, padding=(2, 1, 1, 0)),
    "depthwise": conv((1, 48, 37, 37), 48, (3, 3), groups=48, padding=(1,) * 4),
    "groups": conv((1, 32, 28, 28), 64, (3, 3), groups=2, dilation=2),
    "clipped": conv(
        (1, 16, 8, 8), 17, (1, 1), ending={"activation": "clip", "clip_high": 6.0}, added=True
    ),
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    return ended(op, convolved(op, arrays[0], arrays[1]), arrays[2:])


conforms("conv2d", CASES, reference)
