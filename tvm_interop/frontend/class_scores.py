"""Turns the scores of classes into labels and probabilities, for classical classifiers.

Source: the definitions of the classifiers of the domain `ai.onnx.ml` in the ONNX specification, and
onnxruntime's kernels where the specification leaves the results of two classes open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..errors import UnsupportedModelError
from .constants import number_like


def labels_of(attrs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the labels of the classes of a node.

    Raises
    ------
    UnsupportedModelError
        The labels are strings.
    """
    for name in ("classlabels_strings", "class_labels_strings"):
        if len(attrs.get(name, ())):
            raise UnsupportedModelError(
                "its labels are strings, and a compiled model computes numbers: train the model "
                "with integers as labels"
            )
    return np.asarray(attrs.get("classlabels_int64s", attrs.get("classlabels_ints", ())), "int64")


def transformed(bb: relax.BlockBuilder, scores: Any, transform: str) -> Any:
    """Return the scores of the last axis after a transform that ONNX names."""
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
        f"its `post_transform` is {transform}: only NONE, LOGISTIC, SOFTMAX and SOFTMAX_ZERO are "
        "supported"
    )


@dataclass(frozen=True)
class Scores:
    """How a classifier turns scores into labels and probabilities.

    Attributes
    ----------
    labels: the labels of the classes.
    transform: the transform of the scores, by ONNX's name.
    is_positive: whether no leaf has a negative weight. A single score is then a probability.
    """

    labels: np.ndarray[Any, Any]
    transform: str
    is_positive: bool

    def of_trees(self, bb: relax.BlockBuilder, total: Any) -> Any:
        """Return the labels, and the scores of the classes, shape (rows, classes)."""
        if int(total.ty.shape[1]) > 2:
            return self.of_largest(bb, total)
        if int(total.ty.shape[1]) == 2:
            # onnxruntime compares the score of the second class with 0, not with the first score.
            second = bb.emit(relax.op.take(total, relax.const(1, "int64"), 1, mode="clip"))
            is_second = bb.emit(relax.op.greater(second, number_like(total, 0.0)))
            return self._result(bb, self._of_two(bb, is_second), self._transformed(bb, total))
        limit = number_like(total, 0.5 if self.is_positive else 0.0)
        is_second = bb.emit(relax.op.greater(total, limit))
        found = self._of_two(bb, bb.emit(relax.op.squeeze(is_second, [1])))
        negative = bb.emit(relax.op.negative(total))
        if self.transform == "LOGISTIC":
            pair = bb.emit(relax.op.sigmoid(bb.emit(relax.op.concat([negative, total], 1))))
        else:
            rest = bb.emit(relax.op.subtract(number_like(total, 1.0), total))
            pair = bb.emit(relax.op.concat([rest if self.is_positive else negative, total], 1))
        return self._result(bb, found, pair)

    def of_largest(self, bb: relax.BlockBuilder, total: Any) -> Any:
        """Return the label of the largest score of each row, and the transformed scores."""
        place = bb.emit(relax.op.argmax(total, 1))
        if not (self.labels == np.arange(len(self.labels))).all():
            labels = relax.const(self.labels, "int64")
            place = bb.emit(relax.op.take(labels, place, 0, mode="clip"))
        return self._result(bb, place, self._transformed(bb, total))

    def _of_two(self, bb: relax.BlockBuilder, is_second: Any) -> Any:
        first, second = (relax.const(value, "int64") for value in self.labels[:2])
        return bb.emit(relax.op.where(is_second, second, first))

    def _transformed(self, bb: relax.BlockBuilder, total: Any) -> Any:
        return bb.emit(transformed(bb, total, self.transform))

    def _result(self, bb: relax.BlockBuilder, label: Any, scores: Any) -> Any:
        return relax.Tuple([label, bb.emit(relax.op.astype(scores, "float32"))])
