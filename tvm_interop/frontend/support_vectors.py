"""Converts support vector machines.

Source: the definitions of `SVMClassifier` and `SVMRegressor` in the ONNX specification. The
specification does not fully define the scores. For these, the source is onnxruntime's kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import known_shape
from .class_scores import (
    Scores,
    check_transform_of_one,
    labels_of,
    rows_of,
    transform_of,
    transformed,
)
from .constants import number_like, text_of
from .coupling import coupling_kernel, scores_kernel

_MOST_FACTORS = 16
"""The largest supported degree of a polynomial kernel. The powers are computed by multiplications.
"""
_LEAST_SHARE = 1e-7
"""The smallest probability for either class of a pair."""


def import_svm_regressor(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the result for each row, shape (rows, 1).

    Raises
    ------
    UnsupportedModelError
        The kernel is a polynomial of an unusual degree, or the results are transformed.
    """
    x = rows_of(bb, inputs[0])
    check_transform_of_one(transform_of(attrs))
    factors = np.asarray(attrs["coefficients"], np.float32)
    number = int(attrs.get("n_supports", 0))
    if number:
        x = _kernel_values(bb, x, number, attrs)
    total = bb.emit(relax.op.matmul(x, relax.const(factors.reshape(-1, 1))))
    rho = np.asarray(attrs.get("rho", (0.0,)), np.float32)[:1]
    total = bb.emit(relax.op.add(total, relax.const(rho)))
    if attrs.get("one_class", 0):
        is_inside = bb.emit(relax.op.greater(total, number_like(total, 0.0)))
        return relax.op.where(is_inside, number_like(total, 1.0), number_like(total, -1.0))
    return total


def import_svm_classifier(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the label of each row, and its scores.

    If the model gives probabilities, or if there are two classes, each class has a score, shape
    (rows, classes). Otherwise each pair of classes has a score.

    Raises
    ------
    UnsupportedModelError
        The labels are strings, there are no support vectors, or the kernel is a polynomial of an
        unusual degree.
    """
    labels, sizes = labels_of(attrs), [int(n) for n in attrs.get("vectors_per_class", ())]
    if len(sizes) != len(labels):
        raise UnsupportedModelError(
            f"it has support vectors of {len(sizes)} classes, and labels of {len(labels)}: export "
            "a model without support vectors as `LinearClassifier`"
        )
    values = _kernel_values(bb, rows_of(bb, inputs[0]), sum(sizes), attrs)
    factors, pairs = _factors_of_pairs(attrs, sizes)
    rho = np.asarray(attrs["rho"], np.float32)[: len(pairs)]
    rows = known_shape(values)[0]
    kernel = bb.add_func(scores_kernel(rows, *factors.shape), "scores")
    of_pairs = relax.TensorType((rows, len(pairs)), "float32")
    given = [values, relax.const(factors), relax.const(rho)]
    total = bb.emit(relax.call_tir(kernel, given, of_pairs))
    label = _most_voted(bb, total, pairs, labels)
    transform = transform_of(attrs)
    if len(attrs.get("prob_a", ())):
        shares = _shares_of_pairs(bb, total, attrs, len(pairs))
        kernel = bb.add_func(coupling_kernel(rows, len(labels)), "coupling")
        of_classes = relax.TensorType((rows, len(labels)), "float32")
        total = bb.emit(relax.call_tir(kernel, [shares], of_classes))
    elif len(labels) == 2:
        scores = Scores(labels, transform, adds_to_one=transform != "NONE")
        return relax.Tuple([label, scores.pair(bb, total)])
    return relax.Tuple([label, bb.emit(transformed(bb, total, transform))])


def _kernel_values(bb: relax.BlockBuilder, x: Any, number: int, attrs: Mapping[str, Any]) -> Any:
    """Return the value of the kernel function for each row of `x` and each of `number` support
    vectors.
    """
    array = np.asarray(attrs["support_vectors"], np.float32).reshape(number, -1)
    vectors = relax.const(array)
    gamma, coef, degree = (*map(float, attrs.get("kernel_params", ())), 0.0, 0.0, 0.0)[:3]
    kind = text_of(attrs.get("kernel_type", b"LINEAR"))
    if kind == "RBF":
        rows, others = (
            bb.emit(relax.op.expand_dims(each, axis)) for each, axis in ((x, 1), (vectors, 0))
        )
        apart = bb.emit(relax.op.subtract(rows, others))
        squares = bb.emit(relax.op.sum(bb.emit(relax.op.multiply(apart, apart)), [2]))
        return bb.emit(relax.op.exp(bb.emit(relax.op.multiply(squares, number_like(x, -gamma)))))
    products = bb.emit(relax.op.matmul(x, relax.const(np.ascontiguousarray(array.T))))
    if kind == "LINEAR":
        return products
    scaled = bb.emit(relax.op.multiply(products, number_like(x, gamma)))
    moved = bb.emit(relax.op.add(scaled, number_like(x, coef)))
    if kind == "SIGMOID":
        return bb.emit(relax.op.tanh(moved))
    if kind != "POLY" or degree != int(degree) or not 0 < degree <= _MOST_FACTORS:
        raise UnsupportedModelError(
            f"its kernel is {kind} of degree {degree}: only LINEAR, RBF, SIGMOID, and POLY of a "
            f"whole degree from 1 to {_MOST_FACTORS} are supported"
        )
    power = moved
    for _ in range(int(degree) - 1):
        power = bb.emit(relax.op.multiply(power, moved))
    return power


def _factors_of_pairs(
    attrs: Mapping[str, Any], sizes: Sequence[int]
) -> tuple[np.ndarray[Any, Any], list[tuple[int, int]]]:
    """Return the factor of each support vector for each pair of classes, and the pairs.

    The factors have the shape (vectors, pairs). In the attribute `coefficients`, a vector has one
    row for each class other than its own. Row `i` is for class `i`, or for class `i + 1` if the
    vector's own class is at most `i`.
    """
    given = np.asarray(attrs["coefficients"], np.float32).reshape(len(sizes) - 1, -1)
    ends = np.cumsum(sizes)
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    factors = np.zeros((given.shape[1], len(pairs)), np.float32)
    for column, (i, j) in enumerate(pairs):
        for own, row in ((i, j - 1), (j, i)):
            vectors = slice(ends[own] - sizes[own], ends[own])
            factors[vectors, column] = given[row, vectors]
    return factors, pairs


def _most_voted(
    bb: relax.BlockBuilder, total: Any, pairs: Sequence[tuple[int, int]], labels: Any
) -> Any:
    """Return the label of the class that wins the most pairs; the first of equally good classes."""
    wins, losses = np.zeros((2, len(pairs), len(labels)), np.float32)
    for k, (i, j) in enumerate(pairs):
        wins[k, i] = losses[k, j] = 1
    is_first = bb.emit(relax.op.greater(total, number_like(total, 0.0)))
    first = bb.emit(relax.op.astype(is_first, "float32"))
    # Begin with one vote of each pair for its second class. If the first class wins, the vote moves
    # to it.
    votes = bb.emit(relax.op.matmul(first, relax.const(wins - losses)))
    votes = bb.emit(relax.op.add(votes, relax.const(losses.sum(0))))
    place = bb.emit(relax.op.argmax(votes, 1))
    return bb.emit(relax.op.take(relax.const(labels, "int64"), place, 0, mode="clip"))


def _shares_of_pairs(
    bb: relax.BlockBuilder, total: Any, attrs: Mapping[str, Any], number: int
) -> Any:
    """Return the probability that the first class of each pair wins, by Platt's sigmoid
    function.
    """
    slopes, offsets = (
        relax.const(np.asarray(attrs[name], np.float32)[:number]) for name in ("prob_a", "prob_b")
    )
    place = bb.emit(relax.op.add(bb.emit(relax.op.multiply(total, slopes)), offsets))
    share = bb.emit(relax.op.sigmoid(bb.emit(relax.op.negative(place))))
    return bb.emit(relax.op.clip(share, _LEAST_SHARE, 1 - _LEAST_SHARE))
