"""Cases of convolutions of integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kind_endings import rounded
from tests.kind_windows import convolved, first, last, sliding
from tests.kinds import Arrays, byte_inputs, conforms
from tvm_interop.program.library_op import LibraryOp, library_op


def conv(
    data: tuple[int, int, int, int],
    channels: int,
    window: tuple[int, int],
    *,
    groups: int = 1,
    zero: int = 0,
    types: tuple[str, str] = ("uint8", "uint8"),
    ending: dict[str, Any] | None = None,
    **slides: Any,
) -> LibraryOp:
    fields, made = sliding(data[1:3], window, **slides)
    weight = (channels, data[3] // groups, *window)
    shapes = (data, weight, (channels,), (channels,), (data[0], *made, channels))
    return library_op(
        op="quantised_conv2d",
        shapes=shapes,
        layouts=("plain",) * 5,
        dtype="int8",
        stored=(types[0], "int8", "float32", "float32", types[1]),
        groups=groups,
        has_bias=True,
        data_zero=zero,
        **fields,
        **ending or {},
    )


CASES = {
    "of one": conv((1, 1, 1, 1), 1, (1, 1)),
    "prime": conv((1, 13, 11, 7), 5, (3, 3), padding=(1,) * 4, zero=37),
    "large": conv((1, 30, 30, 32), 64, (3, 3), padding=(1,) * 4, types=("int8", "float32")),
    "images": conv((3, 9, 9, 16), 32, (1, 1), types=("uint8", "int8")),
    "depthwise": conv((1, 17, 17, 32), 32, (3, 3), groups=32, stride=2, types=("int8", "uint8")),
    "clipped": conv(
        (1, 8, 8, 16),
        17,
        (1, 1),
        ending={"activation": "clip", "clip_low": -20.0, "clip_high": 60.0},
        types=("uint8", "int8"),
    ),
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    data = first(arrays[0] - op.fields()["data_zero"])
    return rounded(op, last(convolved(op, data, arrays[1])), *arrays[2:])


conforms("quantised_conv2d", CASES, reference, byte_inputs)
