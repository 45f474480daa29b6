"""Cases of attention."""

from __future__ import annotations

import numpy as np

from tests.kinds import Arrays, conforms
from tvm_interop.program.library_op import LibraryOp, library_op


def attend(
    heads: tuple[int, ...],
    queries: int,
    positions: int,
    depth: int,
    width: int | None = None,
    *,
    mask: tuple[int, ...] | None = None,
    by_position: bool = False,
    scale: float = 1.0,
) -> LibraryOp:
    width = width or depth
    keys = (*heads, positions, depth) if by_position else (*heads, depth, positions)
    masks = [] if mask is None else [mask]
    shapes = (
        (*heads, queries, depth),
        keys,
        (*heads, positions, width),
        *masks,
        (*heads, queries, width),
    )
    return library_op(
        op="attention",
        shapes=shapes,
        layouts=("plain",) * len(shapes),
        has_mask=mask is not None,
        keys_by_position=by_position,
        scale=scale,
    )


CASES = {
    "of one": attend((), 1, 1, 1),
    "prime": attend((3,), 13, 17, 7, 5, scale=0.3),
    "one query": attend((2, 3), 1, 40, 16, by_position=True),
    "one position": attend((5,), 11, 1, 8),
    "many positions": attend((), 5, 9001, 3, scale=0.5),
    "wide values": attend((2,), 37, 50, 64, 100, by_position=True),
    "deep": attend((2,), 14, 33, 300, 33),
    "more rows than fit at once": attend((1, 2), 230, 400, 24, mask=(1, 1, 1, 400)),
    "mask for each head": attend((2, 4), 20, 30, 16, mask=(1, 4, 20, 30)),
    "mask for each image": attend((3, 2), 20, 31, 16, mask=(3, 1, 1, 31), scale=0.25),
    "mask for each query": attend((2, 2), 20, 30, 16, mask=(2, 2, 20, 1)),
    "same mask": attend((2, 2), 9, 31, 8, mask=(1, 1, 1, 1)),
    "large": attend((1, 8), 100, 100, 32, by_position=True, mask=(1, 8, 100, 100)),
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    queries, keys, values, *mask = arrays
    fields = op.fields()
    if fields["keys_by_position"]:
        keys = keys.swapaxes(-1, -2)
    scores = queries @ keys * fields["scale"]
    scores = scores + (mask[0] if mask else 0)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True) @ values)


conforms("attention", CASES, reference)
