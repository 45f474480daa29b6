"""Cases of resized images."""

from __future__ import annotations

import numpy as np

from tests.kinds import Arrays, OneNode, conforms
from tests.one_node import one_node
from tvm_interop.program.library_op import LibraryOp, library_op


def resize(data: tuple[int, int, int, int], made: tuple[int, int], mode: str) -> LibraryOp:
    return library_op(
        op="resize2d",
        shapes=(data, (*data[:2], *made)),
        layouts=("plain", "plain"),
        is_linear=mode == "linear",
    )


CASES = {
    "of one": resize((1, 1, 1, 1), (1, 1), "nearest"),
    "one to many": resize((1, 3, 1, 1), (5, 7), "linear"),
    "nearest, prime": resize((1, 7, 5, 3), (15, 9), "nearest"),
    "linear, prime": resize((1, 7, 5, 13), (11, 17), "linear"),
    "linear, smaller": resize((1, 19, 23, 29), (11, 7), "linear"),
    "nearest, large": resize((1, 64, 40, 40), (80, 80), "nearest"),
    "linear, large": resize((1, 64, 40, 40), (80, 80), "linear"),
    "images": resize((3, 32, 14, 14), (28, 28), "linear"),
}


def reference(op: LibraryOp, arrays: Arrays) -> np.ndarray:
    matrices = [
        _weights(op.shapes[0][axis], op.shapes[1][axis], op.fields()["is_linear"])
        for axis in (2, 3)
    ]
    return np.asarray(np.einsum("nchw,yh,xw->ncyx", arrays[0], *matrices, optimize=True))


def _weights(size: int, made: int, is_linear: bool) -> np.ndarray:
    """The weight of each source pixel in each result pixel, along one axis.

    The returned array has the shape (size of the result, size of the source).
    """
    places = (np.arange(made) + 0.5) * size / made - 0.5
    lower = np.floor(places if is_linear else places + 0.5).astype(int)
    above = places - lower if is_linear else np.zeros(made)
    weights = np.zeros((made, size))
    for neighbour, share in ((lower, 1 - above), (lower + 1, above)):
        np.add.at(weights, (np.arange(made), neighbour.clip(0, size - 1)), share)
    return weights


def node(
    made: tuple[int, int], mode: str, coordinates: str, is_taken: bool, rounding: str = "floor"
) -> OneNode:
    data = np.random.default_rng(0).standard_normal((1, 3, 6, 5)).astype(np.float32)
    sizes = np.array([1, 3, *made])
    how = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    model, feeds = one_node("Resize", [data, None, None, sizes], [3], **how)
    return model, feeds, is_taken


MODELS = {
    "nearest, doubled": node((12, 10), "nearest", "asymmetric", True),
    "nearest, from the middle": node((12, 10), "nearest", "half_pixel", True, "round_prefer_ceil"),
    "nearest, by 3 and 4": node((18, 20), "nearest", "half_pixel", True, "round_prefer_floor"),
    "nearest, rounded from the corner": node(
        (24, 20), "nearest", "asymmetric", False, "round_prefer_floor"
    ),
    "nearest, rounded down from the middle": node((12, 10), "nearest", "half_pixel", False),
    "nearest, halved": node((3, 5), "nearest", "asymmetric", False),
    "linear": node((12, 20), "linear", "half_pixel", True),
    "linear, as PyTorch": node((12, 15), "linear", "pytorch_half_pixel", True),
    "linear, as PyTorch to one": node((1, 5), "linear", "pytorch_half_pixel", False),
    "linear, corners": node((12, 10), "linear", "align_corners", False),
    "cubic": node((12, 10), "cubic", "half_pixel", False),
}

conforms("resize2d", CASES, reference, models=MODELS)
