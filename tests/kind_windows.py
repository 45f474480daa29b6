"""Computes the sliding windows of convolutions and poolings in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tvm_interop.program.library_op import LibraryOp, library_op


def sliding(
    data: tuple[int, int],
    window: tuple[int, int],
    stride: int = 1,
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: int = 1,
) -> tuple[dict[str, Any], tuple[int, int]]:
    """The fields of an operator's description for a window over images of size `data`, and the size
    of the result."""
    made = tuple(
        (data[a] + padding[a] + padding[2 + a] - (window[a] - 1) * dilation - 1) // stride + 1
        for a in (0, 1)
    )
    fields = {
        "window": window,
        "strides": (stride, stride),
        "padding": padding,
        "dilation": (dilation, dilation),
    }
    return fields, (made[0], made[1])


def integer_pools(kind: str, **fields: Any) -> dict[str, LibraryOp]:
    """Descriptions of poolings of integers, by name. All of them have the fields `fields` too."""

    def pool(
        data: tuple[int, int, int, int], window: tuple[int, int], dtype: str, **slides: Any
    ) -> LibraryOp:
        how, made = sliding(data[1:3], window, **slides)
        return library_op(
            op=kind,
            shapes=(data, (data[0], *made, data[3])),
            layouts=("plain", "plain"),
            dtype="int8",
            stored=(dtype, dtype),
            **how,
            **fields,
        )

    return {
        "of one": pool((1, 1, 1, 1), (1, 1), "uint8"),
        "prime": pool((1, 13, 11, 7), (3, 2), "int8", stride=2, padding=(1, 0, 1, 1)),
        "large": pool((1, 40, 40, 64), (3, 3), "uint8", padding=(1, 1, 1, 1)),
        "images": pool((3, 28, 28, 16), (2, 2), "int8", stride=2),
    }


def seen(op: LibraryOp, data: np.ndarray, filling: float) -> Iterator[np.ndarray]:
    """Yield, for each place in the window, the pixel that each result reads there.

    Images are N,C,H,W.
    """
    fields = op.fields()
    (top, left, bottom, right), (sy, sx) = fields["padding"], fields["strides"]
    sides = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(data, sides, constant_values=filling)
    is_last = op.is_quantised
    rows, columns = op.shapes[-1][1:3] if is_last else op.shapes[-1][2:]
    for y, x in np.ndindex(*fields["window"]):
        y, x = y * fields["dilation"][0], x * fields["dilation"][1]
        yield padded[:, :, y : y + (rows - 1) * sy + 1 : sy, x : x + (columns - 1) * sx + 1 : sx]


def convolved(op: LibraryOp, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The sums of products of a convolution over images N,C,H,W."""
    groups = op.fields()["groups"]
    made, each = weight.shape[0] // groups, weight.shape[1]
    result = 0.0
    places = list(np.ndindex(*weight.shape[2:]))
    for (y, x), part in zip(places, seen(op, data, 0.0), strict=True):
        grouped = part.reshape(part.shape[0], groups, each, *part.shape[2:])
        factors = weight[:, :, y, x].reshape(groups, made, each)
        result = result + np.einsum("ngchw,goc->ngohw", grouped, factors)
    return np.asarray(result).reshape(data.shape[0], weight.shape[0], *result.shape[3:])


def first(data: np.ndarray) -> np.ndarray:
    """Turn images N,H,W,C into N,C,H,W."""
    return data.transpose(0, 3, 1, 2)


def last(data: np.ndarray) -> np.ndarray:
    """Turn images N,C,H,W into N,H,W,C."""
    return data.transpose(0, 2, 3, 1)
