"""Converts operators of classical machine learning, which are in ONNX's domain `ai.onnx.ml`.

Operators on strings are refused.

Source: the operators' definitions in the ONNX specification, and onnxruntime's kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import known_shape
from .class_scores import Scores, labels_of, transformed
from .constants import constant_array, number_like, text_of
from .microsoft import full_name
from .trees import import_classifier, import_regressor

DOMAIN = "ai.onnx.ml"


def is_classical(node: onnx.NodeProto) -> bool:
    """Whether this module converts an operator of the domain."""
    return full_name(node) in CLASSICAL


def _floats(bb: relax.BlockBuilder, x: Any) -> Any:
    """Return `x` in float32, the type of the results of these operators."""
    return x if str(x.ty.dtype) == "float32" else bb.emit(relax.op.astype(x, "float32"))


def _scaler(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    offset, scale = (np.asarray(attrs[name], np.float32) for name in ("offset", "scale"))
    moved = bb.emit(relax.op.subtract(_floats(bb, inputs[0]), relax.const(offset)))
    return relax.op.multiply(moved, relax.const(scale))


def _normalizer(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Divide each row by its norm; a row whose norm is 0 stays as it is."""
    x, norm = _floats(bb, inputs[0]), text_of(attrs.get("norm", b"MAX"))
    if norm == "MAX":
        is_nan, least = bb.emit(relax.op.isnan(x)), number_like(x, -np.inf)
        known = bb.emit(relax.op.where(is_nan, least, x))
        size = bb.emit(relax.op.max(known, -1, keepdims=True))
    elif norm == "L1":
        size = bb.emit(relax.op.sum(bb.emit(relax.op.abs(x)), -1, keepdims=True))
    else:
        squares = bb.emit(relax.op.multiply(x, x))
        size = bb.emit(relax.op.sqrt(bb.emit(relax.op.sum(squares, -1, keepdims=True))))
    is_zero = bb.emit(relax.op.equal(size, number_like(size, 0.0)))
    divisor = bb.emit(relax.op.where(is_zero, number_like(size, 1.0), size))
    return relax.op.divide(x, divisor)


def _binarizer(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x = inputs[0]
    limit = number_like(x, float(attrs.get("threshold", 0.0)))
    return relax.op.astype(bb.emit(relax.op.greater(x, limit)), str(x.ty.dtype))


def _imputer(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Replace the missing numbers of each column."""
    x, dtype = inputs[0], str(inputs[0].ty.dtype)
    kind = "float" if "float" in dtype else "int64"
    values = np.asarray(attrs[f"imputed_value_{kind}s"], dtype)
    missing = attrs.get(f"replaced_value_{kind}", 0)
    if missing != missing:
        is_missing = bb.emit(relax.op.isnan(x))
    else:
        is_missing = bb.emit(relax.op.equal(x, number_like(x, missing)))
    return relax.op.where(is_missing, relax.const(values, dtype), x)


def _encoder(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Replace numbers by other numbers; a number that is not listed becomes the default."""
    x = inputs[0]
    kinds = {"int64s": "int64", "floats": "float32"}
    tables = {
        side: [(kind, attrs[f"{side}_{kind}"]) for kind in kinds if f"{side}_{kind}" in attrs]
        for side in ("keys", "values")
    }
    if not all(tables.values()) or str(x.ty.dtype) != kinds[tables["keys"][0][0]]:
        raise UnsupportedModelError(
            "its keys or values are strings or tensors, and only lists of integers and floats are "
            "supported: encode strings before the model runs"
        )
    (_, keys), (kind, values) = tables["keys"][0], tables["values"][0]
    default = attrs.get(f"default_{kind[:-1]}", -1 if kind == "int64s" else -0.0)
    dtype = kinds[kind]
    shape = known_shape(x)
    listed = relax.const(np.asarray(keys, str(x.ty.dtype)), str(x.ty.dtype))
    wide = bb.emit(relax.op.expand_dims(x, len(shape)))
    is_key = bb.emit(relax.op.equal(wide, listed))
    if "float" in str(x.ty.dtype) and np.isnan(listed.value.numpy()).any():
        both = bb.emit(relax.op.logical_and(bb.emit(relax.op.isnan(wide)), relax.op.isnan(listed)))
        is_key = bb.emit(relax.op.logical_or(is_key, both))
    found = bb.emit(relax.op.astype(is_key, "int64"))
    # `argmax` returns the first of several largest numbers. So the first of equal keys counts, and
    # a row without a key gets position 0.
    place = bb.emit(relax.op.argmax(found, -1))
    is_listed = bb.emit(relax.op.max(found, -1))
    taken = bb.emit(
        relax.op.take(relax.const(np.asarray(values, dtype), dtype), place, 0, mode="clip")
    )
    is_listed = bb.emit(relax.op.astype(is_listed, "bool"))
    return relax.op.where(is_listed, taken, relax.const(default, dtype))


def _one_hot(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    categories = attrs.get("cats_int64s", ())
    if not len(categories) or not attrs.get("zeros", 1):
        raise UnsupportedModelError(
            "its categories are strings, or it refuses unknown categories as the model "
            "runs: encode categories as integers, with zeros for unknown ones"
        )
    x = bb.emit(relax.op.astype(inputs[0], "int64"))
    wide = bb.emit(relax.op.expand_dims(x, len(known_shape(x))))
    is_one = bb.emit(relax.op.equal(wide, relax.const(np.asarray(categories, "int64"), "int64")))
    return relax.op.astype(is_one, "float32")


def _features(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    rows = []
    for x in inputs:
        shape = known_shape(x)
        flat = x if len(shape) == 2 else bb.emit(relax.op.reshape(x, (shape[0], -1)))
        rows.append(_floats(bb, flat))
    sizes = [int(size) for size in attrs.get("inputdimensions", ())]
    if sizes and sizes != [int(row.ty.shape[1]) for row in rows]:
        raise UnsupportedModelError(
            f"its inputs have other sizes than its `inputdimensions`, {sizes}: export it again"
        )
    return relax.op.concat(rows, 1)


def _extractor(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, places = inputs
    shape, known = known_shape(x), constant_array(places)
    flat = bb.emit(relax.op.reshape(places, (-1,)))
    if known is not None:
        wrong = [i for i in known.ravel().tolist() if not 0 <= i < shape[-1]]
        if wrong:
            raise UnsupportedModelError(
                f"its index {wrong[0]} is out of range: there are {shape[-1]} elements"
            )
    taken = bb.emit(relax.op.take(x, flat, len(shape) - 1, mode="clip"))
    return taken if len(shape) > 1 else relax.op.expand_dims(taken, 0)


def _products(bb: relax.BlockBuilder, x: Any, attrs: Mapping[str, Any], outputs: int) -> Any:
    """Return the sums of features times coefficients, plus the intercepts."""
    x = _floats(bb, x)
    if len(known_shape(x)) == 1:
        x = bb.emit(relax.op.expand_dims(x, 0))
    factors = np.asarray(attrs["coefficients"], np.float32).reshape(outputs, -1).T
    total = bb.emit(relax.op.matmul(x, relax.const(np.ascontiguousarray(factors))))
    added = np.asarray(attrs.get("intercepts", ()), np.float32)
    return bb.emit(relax.op.add(total, relax.const(added))) if len(added) else total


def _transform(attrs: Mapping[str, Any]) -> str:
    return text_of(attrs.get("post_transform", b"NONE"))


def _linear_regressor(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    total = _products(bb, inputs[0], attrs, int(attrs.get("targets", 1)))
    return transformed(bb, total, _transform(attrs))


def _linear_classifier(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    labels = labels_of(attrs)
    outputs = max(len(attrs.get("intercepts", ())), 1)
    total = _products(bb, inputs[0], attrs, outputs)
    scores = Scores(labels, _transform(attrs), is_positive=False)
    return scores.of_largest(bb, total) if outputs > 1 else scores.of_trees(bb, total)


def _kernel_values(bb: relax.BlockBuilder, x: Any, vectors: Any, attrs: Mapping[str, Any]) -> Any:
    """Return the kernel of a support vector machine for each row and vector."""
    gamma, coef, degree = (*map(float, attrs.get("kernel_params", ())), 0.0, 0.0, 0.0)[:3]
    kind = text_of(attrs.get("kernel_type", b"LINEAR"))
    if kind == "RBF":
        rows, others = (
            bb.emit(relax.op.expand_dims(each, axis)) for each, axis in ((x, 1), (vectors, 0))
        )
        apart = bb.emit(relax.op.subtract(rows, others))
        squares = bb.emit(relax.op.sum(bb.emit(relax.op.multiply(apart, apart)), [2]))
        return bb.emit(relax.op.exp(bb.emit(relax.op.multiply(squares, number_like(x, -gamma)))))
    products = bb.emit(relax.op.matmul(x, bb.emit(relax.op.permute_dims(vectors))))
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


_MOST_FACTORS = 16
"""The largest degree of a polynomial kernel, which is written as products."""


def _svm_regressor(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x = _floats(bb, inputs[0])
    if len(known_shape(x)) == 1:
        x = bb.emit(relax.op.expand_dims(x, 0))
    factors = np.asarray(attrs["coefficients"], np.float32)
    number = int(attrs.get("n_supports", 0))
    if number:
        vectors = np.asarray(attrs["support_vectors"], np.float32).reshape(number, -1)
        x = _kernel_values(bb, x, relax.const(vectors), attrs)
    total = bb.emit(relax.op.matmul(x, relax.const(factors.reshape(-1, 1))))
    rho = np.asarray(attrs.get("rho", (0.0,)), np.float32)[:1]
    total = bb.emit(relax.op.add(total, relax.const(rho)))
    if attrs.get("one_class", 0):
        is_inside = bb.emit(relax.op.greater(total, number_like(total, 0.0)))
        return relax.op.where(is_inside, number_like(total, 1.0), number_like(total, -1.0))
    return transformed(bb, total, _transform(attrs))


CLASSICAL = {
    f"{DOMAIN}.{name}": converter
    for name, converter in {
        "ArrayFeatureExtractor": _extractor,
        "Binarizer": _binarizer,
        "FeatureVectorizer": _features,
        "Imputer": _imputer,
        "LabelEncoder": _encoder,
        "LinearClassifier": _linear_classifier,
        "LinearRegressor": _linear_regressor,
        "Normalizer": _normalizer,
        "OneHotEncoder": _one_hot,
        "SVMRegressor": _svm_regressor,
        "Scaler": _scaler,
        "TreeEnsembleClassifier": import_classifier,
        "TreeEnsembleRegressor": import_regressor,
    }.items()
}
"""Maps the domain and name of an operator to its converter."""
