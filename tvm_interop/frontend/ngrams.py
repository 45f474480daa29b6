"""Converts ONNX's `TfIdfVectorizer`, which counts sequences of words, called n-grams, in each row.

Words are integers here: `strings` has replaced strings.

Source: the operator's definition in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import known_shape
from .constants import number_like, text_of

Numbers = npt.NDArray[np.int64]


def import_ngrams(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the number of times that each n-gram of the node occurs in each row, or its weight.

    The shape is (n-grams,) or (rows, n-grams), in float32. The words of an n-gram lie next to each
    other, or there are gaps of equally many other words between them. A gap has at most
    `max_skip_count` words.

    Raises
    ------
    UnsupportedModelError
        The n-grams are strings and the input is not, or two n-grams have the same place.
    """
    if not len(attrs.get("pool_int64s", ())):
        raise UnsupportedModelError(
            "its n-grams are strings, and its input is not: export it again with n-grams of the "
            "input's type"
        )
    places = np.asarray(attrs["ngram_indexes"], np.int64)
    if len(np.unique(places)) < len(places):
        raise UnsupportedModelError(
            "two of its n-grams are counted at the same place: give each n-gram a place of its own"
        )
    x = inputs[0]
    shape = known_shape(x)
    rows = shape[0] if len(shape) > 1 else 1
    words = bb.emit(relax.op.reshape(x, (rows, -1))) if len(shape) < 2 else x
    number, size = int(places.max()) + 1, known_shape(words)[1]
    columns, counts = [], []
    for grams, at in _grams(attrs):
        steps = 1 if grams.shape[1] == 1 else int(attrs["max_skip_count"]) + 1
        fitting = (step for step in range(1, steps + 1) if (grams.shape[1] - 1) * step < size)
        each = [_counted(bb, words, grams, step) for step in fitting]
        for more in each[1:]:
            each[0] = bb.emit(relax.op.add(each[0], more))
        if each:
            columns.append(places[at])
            counts.append(each[0])
    result = _at_places(bb, counts, columns, (rows, number))
    weighted = _weighted(bb, result, attrs, places)
    return weighted if len(shape) > 1 else relax.op.reshape(weighted, (number,))


def _grams(attrs: Mapping[str, Any]) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the n-grams of each length that is counted, and their positions among all n-grams.

    If several n-grams are equal, only the last of them is counted.
    """
    pool = np.asarray(attrs["pool_int64s"], np.int64)
    begins = [int(begin) for begin in attrs["ngram_counts"]]
    lengths = range(int(attrs["min_gram_length"]), int(attrs["max_gram_length"]) + 1)
    first = 0
    ends = [*begins[1:], len(pool)]
    for length, (begin, end) in enumerate(zip(begins, ends, strict=True), 1):
        grams = pool[begin : begin + (end - begin) // length * length].reshape(-1, length)
        at = first + np.arange(len(grams))
        first += len(grams)
        if length in lengths and len(grams):
            last = len(grams) - 1 - np.unique(grams[::-1], axis=0, return_index=True)[1]
            yield grams[last], at[last]


def _counted(bb: relax.BlockBuilder, words: Any, grams: Numbers, step: int) -> Any:
    """Return how often each n-gram occurs in each row with words at a distance of `step`."""
    size, length, dtype = known_shape(words)[1], grams.shape[1], str(words.ty.dtype)
    begins = size - (length - 1) * step
    found = None
    for i in range(length):
        part = bb.emit(relax.op.strided_slice(words, [1], [i * step], [i * step + begins]))
        wide = bb.emit(relax.op.expand_dims(part, 2))
        listed = relax.const(np.ascontiguousarray(grams[:, i]).astype(dtype), dtype)
        same = bb.emit(relax.op.equal(wide, listed))
        found = same if found is None else bb.emit(relax.op.logical_and(found, same))
    return bb.emit(relax.op.sum(bb.emit(relax.op.astype(found, "float32")), [1]))


def _at_places(
    bb: relax.BlockBuilder, counts: Sequence[Any], columns: Sequence[Numbers], shape: Sequence[int]
) -> Any:
    """Return the counts, each at its column, and 0 in all other columns."""
    none = relax.const(np.zeros((shape[0], 1), np.float32))
    together = bb.emit(relax.op.concat([*counts, none], 1))
    source = np.full(shape[1], sum(map(len, columns)), np.int64)
    if columns:
        source[np.concatenate(columns)] = np.arange(sum(map(len, columns)))
    return bb.emit(relax.op.take(together, relax.const(source, "int64"), 1, mode="clip"))


def _weighted(
    bb: relax.BlockBuilder, counts: Any, attrs: Mapping[str, Any], places: Numbers
) -> Any:
    mode = text_of(attrs["mode"])
    given = np.asarray(attrs.get("weights", ()), np.float32)
    if mode == "TF":
        return counts
    if mode not in ("IDF", "TFIDF") or len(given) not in (0, len(places)):
        raise UnsupportedModelError(
            f"its mode is {mode}, and it has {len(given)} weights for {len(places)} n-grams: the "
            "modes TF, IDF and TFIDF are defined, with a weight for each n-gram"
        )
    if mode == "IDF":
        occurs = bb.emit(relax.op.greater(counts, number_like(counts, 0.0)))
        counts = bb.emit(relax.op.astype(occurs, "float32"))
    if not len(given):
        return counts
    factors = np.zeros(int(places.max()) + 1, np.float32)
    factors[places] = given
    return bb.emit(relax.op.multiply(counts, relax.const(factors)))
