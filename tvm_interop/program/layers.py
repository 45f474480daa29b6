"""Describes each operator by its type, its shapes and the window that it slides over images.

The scheduler `gpg` of the paper "TOP" (Lin et al., TPDS 36(2), 2025, section V-B) learns from
descriptions of layers. The compiler makes these descriptions from a `Program`, and `models.layers`
makes them from an ONNX model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .library_op import LibraryOp

KINDS = ("conv", "product", "pool", "sum", "joined", "normalise")
ACTIVATIONS = ("identity", "relu", "sigmoid", "tanh")
POOLINGS = ("max", "avg", "global max", "global avg")
LAYER_FEATURES = len(KINDS) + len(ACTIVATIONS) + len(POOLINGS) + 15
"""Number of features of a layer, see `Layer.features`."""

_ACTIVATION_OF = {"none": "identity", "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh"}


@dataclass(frozen=True)
class Layer:
    """One operator as TOP's paper describes it.

    Attributes
    ----------
    kind: one of `KINDS`. Any other text stands for another kind.
    read: shape of each tensor that the operator reads, without weights.
    made: shape of the tensor that the operator makes.
    stride, kernel: height and width of a window; empty for an operator without a window.
    padding: two numbers of pixels: the sum of top and bottom, and the sum of left and right.
    groups: number of groups of a convolution.
    activation: one of `ACTIVATIONS`. Any other text stands for another activation, or for none.
    pooling: one of `POOLINGS`; empty for an operator that does not pool.
    """

    kind: str
    read: tuple[tuple[int, ...], ...]
    made: tuple[int, ...]
    stride: tuple[int, ...] = ()
    kernel: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    groups: int = 1
    activation: str = "identity"
    pooling: str = ""

    def features(self) -> list[float]:
        """Return `LAYER_FEATURES` numbers: names as one-hot vectors, and logarithms of sizes.

        If the operator reads several tensors, the features hold the sum of their channels, and all
        other sizes of the first tensor.
        """
        images, channels, *pixels = _sizes(self.read[0] if self.read else ())
        channels += sum(_sizes(shape)[1] for shape in self.read[1:])
        numbers = [
            images, channels, *pixels, *_sizes(self.made), *_pair(self.stride), *_pair(self.kernel),
            *_pair(self.padding), self.groups,
        ]  # fmt: skip
        return [
            *(float(self.kind == name) for name in KINDS),
            *(float(self.activation == name) for name in ACTIVATIONS),
            *(float(self.pooling == name) for name in POOLINGS),
            *(math.log1p(number) / 4 for number in numbers),
        ]


def layer_features(layers: Sequence[Layer]) -> npt.NDArray[np.float64]:
    """Return the features of layers: (len(layers), LAYER_FEATURES)."""
    return np.array([layer.features() for layer in layers]).reshape(-1, LAYER_FEATURES)


def layer_of(
    described: LibraryOp | None, read: Sequence[tuple[int, ...]], made: tuple[int, ...]
) -> Layer:
    """Describe an operator of a program.

    Parameters
    ----------
    described: the description of the operator for kernel libraries. If there is none, the layer has
        only shapes.
    read, made: see `Layer`.
    """
    read = tuple(read)
    if described is None:
        return Layer("", read, made)
    kind = described.layer
    window = getattr(described, "window", None)
    if window is None:
        return Layer(kind, read, made, activation=_ACTIVATION_OF.get(described.ends.activation, ""))
    top, left, bottom, right = window.padding or (0, 0, 0, 0)
    pooling = ""
    if described.pools:
        reads_all = read and tuple(window.size) == tuple(read[0][-2:])
        pooling = ("global " if reads_all else "") + described.pools
    return Layer(
        kind, read, made, tuple(window.strides), tuple(window.size), (top + bottom, left + right),
        getattr(described, "groups", 1), _ACTIVATION_OF.get(described.ends.activation, ""), pooling,
    )  # fmt: skip


def _sizes(shape: Sequence[int]) -> list[int]:
    """Return the numbers of images and channels, height and width; 1 for a size that is missing.

    The last axis of a matrix, or of rows of vectors, counts as the channels.
    """
    if len(shape) == 4:
        return list(shape)
    if len(shape) in (2, 3):
        return [shape[0], shape[-1], math.prod(shape[1:-1]), 1]
    return [1, math.prod(shape), 1, 1]


def _pair(sizes: Sequence[int]) -> list[int]:
    return list(sizes) if len(sizes) == 2 else [0, 0]
