"""Converts operators of classical machine learning, which are in ONNX's domain `ai.onnx.ml`.

Strings are numbers here: `strings` has replaced them.

Source: the operators' definitions in the ONNX specification, and onnxruntime's kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import known_shape
from .class_scores import (
    Scores,
    check_transform_of_one,
    floats,
    labels_of,
    rows_of,
    transform_of,
    transformed,
)
from .constants import constant_array, number_like, text_of
from .lookup import looked_up
from .microsoft import full_name
from .support_vectors import import_svm_classifier, import_svm_regressor
from .trees import import_classifier, import_ensemble, import_regressor

_LOG = logging.getLogger("tvm_interop")
DOMAIN = "ai.onnx.ml"


def is_classical(node: onnx.NodeProto) -> bool:
    """Whether this module converts the node: its operator is in the domain `ai.onnx.ml` and
    supported.
    """
    return full_name(node) in CLASSICAL


def _scaler(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    # onnxruntime subtracts in float64 if the input is float64, such as a time in seconds.
    x = inputs[0] if str(inputs[0].ty.dtype) == "float64" else floats(bb, inputs[0])
    dtype = str(x.ty.dtype)
    offset, scale = (
        relax.const(np.asarray(attrs[name], np.float32).astype(dtype), dtype)
        for name in ("offset", "scale")
    )
    moved = bb.emit(relax.op.subtract(x, offset))
    return floats(bb, bb.emit(relax.op.multiply(moved, scale)))


def _normalizer(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Divide each row by its norm; a row whose norm is 0 does not change."""
    x, norm = floats(bb, inputs[0]), text_of(attrs.get("norm", b"MAX"))
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
    shape = known_shape(x)
    if len(values) > 1 and (len(shape) > 2 or len(values) != shape[-1]):
        raise UnsupportedModelError(
            f"it has {len(values)} replacements for an input of shape {shape}: give one "
            "replacement, or one for each column of an input of shape (rows, columns)"
        )
    missing = attrs.get(f"replaced_value_{kind}", 0)
    if missing != missing:
        is_missing = bb.emit(relax.op.isnan(x))
    else:
        is_missing = bb.emit(relax.op.equal(x, number_like(x, missing)))
    return relax.op.where(is_missing, relax.const(values, dtype), x)


_MOST_COMPARED = 64
"""The largest number of keys with which each number is compared. A number is looked up among more
keys by bisection.
"""
_KINDS = {"int64s": "int64", "floats": "float32"}
"""The names of the list attributes of a `LabelEncoder` end with the type of the elements, as in
`keys_int64s`. This maps these ends to dtypes.
"""


def _encoder(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Replace numbers by other numbers; a number that is not listed becomes the default."""
    x = inputs[0]
    keys, values = (_table(attrs, side) for side in ("keys", "values"))
    if keys is None or values is None or str(x.ty.dtype) != str(keys.dtype):
        raise UnsupportedModelError(
            "its keys, its values and its input are of types that are not supported together: "
            "export it with keys of the input's type, and with values that are numbers or strings"
        )
    dtype = str(values.dtype)
    given = attrs.get("default_tensor")
    if given is not None:
        default = numpy_helper.to_array(given).item()
    else:
        name = "default_float" if "float" in dtype else "default_int64"
        default = attrs.get(name, -0.0 if "float" in dtype else -1)
    shape = known_shape(x)
    if len(keys) > _MOST_COMPARED and not (keys != keys).any():
        return looked_up(bb, x, keys, values, default)
    listed = relax.const(keys, str(keys.dtype))
    wide = bb.emit(relax.op.expand_dims(x, len(shape)))
    is_key = bb.emit(relax.op.equal(wide, listed))
    if "float" in str(x.ty.dtype) and np.isnan(listed.value.numpy()).any():
        both = bb.emit(relax.op.logical_and(bb.emit(relax.op.isnan(wide)), relax.op.isnan(listed)))
        is_key = bb.emit(relax.op.logical_or(is_key, both))
    found = bb.emit(relax.op.astype(is_key, "int64"))
    # If several numbers are the largest, `argmax` returns the position of the first of them. So the
    # first of equal keys is used. A number without a key gets position 0.
    place = bb.emit(relax.op.argmax(found, -1))
    is_listed = bb.emit(relax.op.max(found, -1))
    taken = bb.emit(relax.op.take(relax.const(values, dtype), place, 0, mode="clip"))
    is_listed = bb.emit(relax.op.astype(is_listed, "bool"))
    return relax.op.where(is_listed, taken, relax.const(default, dtype))


def _table(attrs: Mapping[str, Any], side: str) -> np.ndarray[Any, Any] | None:
    """Return the keys or the values of a `LabelEncoder`, or None if they are strings."""
    for kind, dtype in _KINDS.items():
        if f"{side}_{kind}" in attrs:
            return np.asarray(attrs[f"{side}_{kind}"], dtype)
    tensor = attrs.get(f"{side}_tensor")
    array = None if tensor is None else numpy_helper.to_array(tensor).ravel()
    return None if array is None or array.dtype.kind not in "fiu" else array


def _one_hot(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    categories = attrs.get("cats_int64s", ())
    if not len(categories):
        raise UnsupportedModelError("its categories are strings: encode categories as integers")
    x = bb.emit(relax.op.astype(inputs[0], "int64"))
    wide = bb.emit(relax.op.expand_dims(x, len(known_shape(x))))
    listed = np.asarray(categories, "int64")
    is_one = bb.emit(relax.op.equal(wide, relax.const(listed, "int64")))
    # If the list of categories holds a category twice, only its last place gets the 1.
    counts = np.array([each not in listed[i + 1 :] for i, each in enumerate(listed)])
    if not counts.all():
        is_one = bb.emit(relax.op.logical_and(is_one, relax.const(counts, "bool")))
    ones = bb.emit(relax.op.astype(is_one, "float32"))
    if attrs.get("zeros", 1):
        return ones
    _LOG.warning(
        "node `%s` (`OneHotEncoder`) should fail for a category that is not in its list, which a "
        "compiled model cannot do: its results for such a category are NaN",
        attrs["tvm_custom"]["name"],
    )
    found = bb.emit(relax.op.max(ones, -1, keepdims=True))
    is_known = bb.emit(relax.op.greater(found, number_like(found, 0.0)))
    return relax.op.where(is_known, ones, number_like(ones, np.nan))


def _features(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    rows = []
    for x in inputs:
        shape = known_shape(x)
        flat = x if len(shape) == 2 else bb.emit(relax.op.reshape(x, (shape[0], -1)))
        rows.append(floats(bb, flat))
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
    """Multiply the features by the coefficients, add the products up, and add the intercepts."""
    x = rows_of(bb, x)
    factors = np.asarray(attrs["coefficients"], np.float32).reshape(outputs, -1).T
    total = bb.emit(relax.op.matmul(x, relax.const(np.ascontiguousarray(factors))))
    added = np.asarray(attrs.get("intercepts", ()), np.float32)
    return bb.emit(relax.op.add(total, relax.const(added))) if len(added) else total


def _linear_regressor(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    targets, transform = int(attrs.get("targets", 1)), transform_of(attrs)
    if targets == 1:
        check_transform_of_one(transform)
    return transformed(bb, _products(bb, inputs[0], attrs, targets), transform)


def _linear_classifier(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    labels = labels_of(attrs)
    outputs = len(attrs.get("intercepts", ())) or 1
    if outputs not in (1, len(labels)) or (outputs == 1 and len(labels) != 2):
        raise UnsupportedModelError(
            f"it has {outputs} intercepts for {len(labels)} classes: export it with an intercept "
            "for each class"
        )
    total = _products(bb, inputs[0], attrs, outputs)
    scores = Scores(labels, transform_of(attrs), adds_to_one=True)
    return scores.of_largest(bb, total) if outputs > 1 else scores.of_two(bb, total)


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
        "SVMClassifier": import_svm_classifier,
        "SVMRegressor": import_svm_regressor,
        "Scaler": _scaler,
        "TreeEnsemble": import_ensemble,
        "TreeEnsembleClassifier": import_classifier,
        "TreeEnsembleRegressor": import_regressor,
    }.items()
}
"""Maps the domain and name of an operator to its converter."""
