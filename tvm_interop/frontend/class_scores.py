"""Turns the scores of classes into labels and probabilities, for classical classifiers.

Source: the definitions of the classifiers of the domain `ai.onnx.ml` in the ONNX specification. The
specification does not fully define the results for two classes. For these, the source is
onnxruntime's kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import known_shape
from .constants import number_like, text_of

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
"""The names, as in ONNX, of the supported transforms of scores."""


def floats(bb: relax.BlockBuilder, x: Any) -> Any:
    """Return `x` in float32, the dtype that classical operators compute in."""
    return x if str(x.ty.dtype) == "float32" else bb.emit(relax.op.astype(x, "float32"))


def rows_of(bb: relax.BlockBuilder, x: Any) -> Any:
    """Return `x` in float32, shape (rows, features). An `x` with a single axis is one row."""
    x = floats(bb, x)
    return x if len(known_shape(x)) != 1 else bb.emit(relax.op.expand_dims(x, 0))


def transform_of(attrs: Mapping[str, Any]) -> str:
    """Return ONNX's name for the transform of a node's scores."""
    return text_of(attrs.get("post_transform", b"NONE"))


def labels_of(attrs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the labels of the classes of a node.

    Raises
    ------
    UnsupportedModelError
        The labels are strings, or there are fewer than two labels.
    """
    for name in ("classlabels_strings", "class_labels_strings"):
        if len(attrs.get(name, ())):
            raise UnsupportedModelError(
                "its labels are strings, and a compiled model computes numbers: train the model "
                "with integers as labels"
            )
    labels = attrs.get("classlabels_int64s", attrs.get("classlabels_ints", ()))
    if len(labels) < 2:
        raise UnsupportedModelError(
            f"it has {len(labels)} labels of classes: train the model with two classes or more"
        )
    return np.asarray(labels, "int64")


def check_transform_of_one(transform: str) -> None:
    """Refuse a node that transforms a single result, such as the result of a regression.

    ONNX defines transforms of a single result, but onnxruntime does not compute them.

    Raises
    ------
    UnsupportedModelError
        The node has a transform.
    """
    if transform != "NONE":
        raise UnsupportedModelError(
            f"its `post_transform` is {transform} and it has a single result, which onnxruntime "
            "does not transform: set it to NONE, and put an operator such as Sigmoid after it"
        )


def transformed(bb: relax.BlockBuilder, scores: Any, transform: str) -> Any:
    """Return the scores after a transform along the last axis, given the transform's ONNX name."""
    if transform == "NONE":
        return scores
    if transform == "LOGISTIC":
        return relax.op.sigmoid(scores)
    if transform == "SOFTMAX":
        return relax.op.nn.softmax(scores, -1)
    if transform == "SOFTMAX_ZERO":
        largest = bb.emit(relax.op.max(scores, -1, keepdims=True))
        powers = bb.emit(relax.op.exp(bb.emit(relax.op.subtract(scores, largest))))
        size = bb.emit(relax.op.abs(scores))
        is_zero = bb.emit(relax.op.less_equal(size, number_like(size, 1e-7)))
        kept = bb.emit(relax.op.where(is_zero, number_like(scores, 0.0), powers))
        return relax.op.divide(kept, bb.emit(relax.op.sum(kept, -1, keepdims=True)))
    raise UnsupportedModelError(
        f"its `post_transform` is {transform}: only {', '.join(TRANSFORMS)} are supported"
    )


@dataclass(frozen=True)
class Scores:
    """How a classifier turns scores into labels and probabilities.

    Attributes
    ----------
    labels: the labels of the classes.
    transform: ONNX's name for the transform of the scores.
    limit: the score above which the second of two classes is chosen.
    adds_to_one: how the score of one class gives that of the other class. If True, the other score
        is 1 minus this score. Otherwise it is the negative of this score.
    """

    labels: np.ndarray[Any, Any]
    transform: str
    limit: float = 0.0
    adds_to_one: bool = False

    def of_two(self, bb: relax.BlockBuilder, total: Any) -> Any:
        """Return the labels of two classes, and their scores, shape (rows, 2).

        Parameters
        ----------
        total: the scores of both classes, or only the scores of the second class.
        """
        limit = number_like(total, self.limit)
        if int(total.ty.shape[1]) == 2:
            # onnxruntime compares the score of the second class with a limit, not with the first
            # score.
            second = bb.emit(relax.op.take(total, relax.const(1, "int64"), 1, mode="clip"))
            is_second = bb.emit(relax.op.greater(second, limit))
            return self._result(bb, self._label_of_two(bb, is_second), self._transformed(bb, total))
        is_second = bb.emit(relax.op.greater(total, limit))
        found = self._label_of_two(bb, bb.emit(relax.op.squeeze(is_second, [1])))
        return self._result(bb, found, self.pair(bb, total))

    def pair(self, bb: relax.BlockBuilder, total: Any) -> Any:
        """Return the scores of both classes, shape (rows, 2), given the scores of the second
        class.
        """
        if self.transform not in TRANSFORMS:
            return self._transformed(bb, total)
        negative = bb.emit(relax.op.negative(total))
        if self.transform == "LOGISTIC":
            return bb.emit(relax.op.sigmoid(bb.emit(relax.op.concat([negative, total], 1))))
        rest = bb.emit(relax.op.subtract(number_like(total, 1.0), total))
        return bb.emit(relax.op.concat([rest if self.adds_to_one else negative, total], 1))

    def of_largest(self, bb: relax.BlockBuilder, total: Any, is_given: Any = None) -> Any:
        """Return the label of the largest score of each row, and the transformed scores.

        Parameters
        ----------
        is_given: booleans in the shape of `total`, which say whether a score can decide the label.
            By default all scores can.
        """
        counted = total
        if is_given is not None:
            counted = bb.emit(relax.op.where(is_given, total, number_like(total, -np.inf)))
        place = bb.emit(relax.op.argmax(counted, 1))
        if not (self.labels == np.arange(len(self.labels))).all():
            labels = relax.const(self.labels, "int64")
            place = bb.emit(relax.op.take(labels, place, 0, mode="clip"))
        return self._result(bb, place, self._transformed(bb, total))

    def _label_of_two(self, bb: relax.BlockBuilder, is_second: Any) -> Any:
        first, second = (relax.const(value, "int64") for value in self.labels[:2])
        return bb.emit(relax.op.where(is_second, second, first))

    def _transformed(self, bb: relax.BlockBuilder, total: Any) -> Any:
        return bb.emit(transformed(bb, total, self.transform))

    def _result(self, bb: relax.BlockBuilder, label: Any, scores: Any) -> Any:
        return relax.Tuple([label, bb.emit(relax.op.astype(scores, "float32"))])
