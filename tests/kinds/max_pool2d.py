"""Cases of max pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kind_windows import seen, sliding
from tests.kinds import Arrays, conforms
from tvm_interop.program.library_op import LibraryOp, library_op


def pool(data: tuple[int, int, int, int], window: tuple[int, int], **slides: Any) -> LibraryOp:
    more = {name: slides.pop(name) for name in ("counts_padding",) if name in slides}
    fields, made = sliding(data[2:], window, **slides)
    shapes = (data, (*data[:2], *made))
    return library_op(op="max_pool2d", shapes=shapes, layouts=("plain", "plain"), **fields, **more)


CASES = {
    "of one": pool((1, 1, 1, 1), (1, 1)),
    "prime": pool((1, 7, 13, 11), (3, 2), stride=2, padding=(1, 0, 1, 1)),
    "large": pool((1, 64, 40, 40), (3, 3), padding=(1, 1, 1, 1)),
    "images": pool((3, 16, 28, 28), (2, 2), stride=2),
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    return np.maximum.reduce(list(seen(op, arrays[0], -np.inf)))


conforms("max_pool2d", CASES, reference)
