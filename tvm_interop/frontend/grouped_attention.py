"""Converts `GroupQueryAttention`, in which several heads of queries share one head of keys.

Source: onnxruntime's list of its operators, ContribOperators.md, and its kernel for CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ..errors import UnsupportedModelError
from .attention import by_heads, number_of_results, padded, refuse_if, rotated, shape_of
from .constants import constant_array, number_like
from .pieces import parts_of


def import_grouped_attention(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Compute attention with fewer heads for keys and values than for queries.

    The inputs are: queries (batch, length, channels), or queries, keys and values joined along the
    channels; keys; values; the keys and the values of earlier runs (batch, heads of keys, past
    length, size); the index of the last position of each row; the length of the longest row;
    cosines; sines; positions; bias of the scores; an additional score for each head (see
    `_weights`). The results are the output, and the keys and values of all runs up to this one.

    Rows of the batch may have different lengths. In a row that is shorter than the longest row, the
    new keys directly follow the past keys of this row, and zeros fill the rest.
    """
    query, key, value, old_key, old_value, last, total, cosines, sines, places, on_scores, sinks = (
        padded(inputs, 12)
    )
    refuse_if(any(each is not None for each in inputs[12:14]), "a quantised past")
    refuse_if(any(each is not None for each in inputs[14:]), "normalised queries and keys")
    refuse_if(bool(attrs.get("sliding_window_cache", 0)), "a past that is as long as a window")
    refuse_if(number_of_results(attrs) > 3, "an output of its scores")
    refuse_if((key is None) != (value is None), "keys without values")
    longest = constant_array(total)
    if longest is None:
        raise UnsupportedModelError(
            "its `total_sequence_length` is computed when the model runs: it must be a constant or "
            "follow from the shapes of the inputs"
        )
    heads, groups = int(attrs["num_heads"]), int(attrs["kv_num_heads"])
    if key is None:
        size = shape_of(query)[2] // (heads + 2 * groups)
        widths = [heads * size, groups * size, groups * size]
        query, key, value = parts_of(bb, query, 2, widths)
    batch, length, _ = shape_of(query)
    # The position of the first new key in each row. It is 0 if there are no past keys. Otherwise
    # the new keys end at the last position of the row.
    begins = relax.const(np.zeros(batch, np.int32), "int32")
    is_new = int(longest.item()) == length
    if not is_new:
        begins = bb.emit(relax.op.add(last, number_like(last, 1 - length)))
    new = [by_heads(bb, x, n) for x, n in ((query, heads), (key, groups), (value, groups))]
    if attrs.get("do_rotary", 0):
        places = _positions(bb, places, None if is_new else begins, last, length)
        angles = _angles(bb, (cosines, sines), places, length)
        is_interleaved = bool(attrs.get("rotary_interleaved", 0))
        new[:2] = [rotated(bb, x, angles, is_interleaved) for x in new[:2]]
    room = max(int(longest.item()), 0 if old_key is None else shape_of(old_key)[2])
    keys, values = (
        _joined(bb, None if is_new else old, each, begins, room)
        for old, each in ((old_key, new[1]), (old_value, new[2]))
    )
    scores = _scores(bb, new[0], keys, attrs)
    if on_scores is not None:
        on_scores = _filled_up(bb, on_scores, room)
        scores = bb.emit(relax.op.add(scores, on_scores))
    if attrs.get("causal", 1):
        counts = _seen(bb, begins, length, room, int(attrs.get("local_window_size", -1)))
    else:
        counts = _filled(bb, last, room)
    lowest = relax.const(float(np.finfo(str(scores.ty.dtype)).min), str(scores.ty.dtype))
    scores = bb.emit(relax.op.where(counts, scores, lowest))
    if sinks is None and int(attrs.get("smooth_softmax", 0)) == 1:
        sinks = relax.const(np.zeros(heads), str(scores.ty.dtype))
    weights = _weights(bb, scores, sinks)
    result = _weighed(bb, weights, values, groups)
    return relax.Tuple([result, keys, values][: max(number_of_results(attrs), 1)])


def _angles(
    bb: relax.BlockBuilder, tables: tuple[Any, Any], places: Any, length: int
) -> tuple[Any, Any]:
    """The cosines and sines of each position, as (batch, 1, length, half of the rotated size)."""
    if any(table is None for table in tables):
        raise UnsupportedModelError("it rotates without `cos_cache` and `sin_cache`: add both")
    around = (shape_of(places)[0], 1, length, shape_of(tables[0])[1])
    cosine, sine = (
        bb.emit(relax.op.reshape(bb.emit(relax.op.take(table, places, 0, mode="clip")), around))
        for table in tables
    )
    return cosine, sine


def _positions(bb: relax.BlockBuilder, given: Any, begins: Any, last: Any, length: int) -> Any:
    """The position of each query, as (batch, length), or (1, length) if it is the same for all
    rows.

    Parameters
    ----------
    given: the input of the node with the positions; None if the node lacks it. If all keys are new,
        onnxruntime reads only the first position, and counts up from it.
    begins: the position of the first query of each row; None if all keys are new.
    last: the last position of each row. A query after that position gets position 1, as in
        onnxruntime.
    """
    dtype = "int32" if given is None else str(given.ty.dtype)
    steps = relax.const(np.arange(length).reshape(1, length), dtype)
    if begins is None and given is None:
        return steps
    if begins is None:
        flat = bb.emit(relax.op.reshape(given, (1, -1)))
        return bb.emit(relax.op.add(bb.emit(relax.op.strided_slice(flat, [1], [0], [1])), steps))
    if given is not None:
        return given
    places = bb.emit(relax.op.add(bb.emit(relax.op.expand_dims(begins, [1])), steps))
    ends = bb.emit(relax.op.expand_dims(last, [1]))
    is_within = bb.emit(relax.op.less_equal(places, ends))
    return bb.emit(relax.op.where(is_within, places, number_like(places, 1)))


def _joined(bb: relax.BlockBuilder, old: Any, new: Any, begins: Any, room: int) -> Any:
    """The past keys or values followed by those of this run, padded with zeros to the length
    `room`.

    In each row, the keys or values of this run begin at position `begins`.
    """
    batch, groups, length, size = shape_of(new)
    before = 0 if old is None else shape_of(old)[2]
    if not before:
        pads = [0, 0, 0, 0, 0, room - length, 0, 0]
        return new if room == length else bb.emit(relax.op.nn.pad(new, pads, "constant", 0.0))

    def kernel(old: te.Tensor, new: te.Tensor, begins: te.Tensor) -> te.Tensor:
        def at(b: Any, g: Any, t: Any, d: Any) -> Any:
            moved = tirx.Cast("int32", t) - begins[b]
            inside = tirx.min(tirx.max(moved, 0), length - 1)
            past = old[b, g, tirx.min(t, before - 1), d]
            run = tirx.Select(moved < length, new[b, g, inside, d], tirx.const(0, new.dtype))
            return tirx.Select(moved < 0, past, run)

        return te.compute((batch, groups, room, size), at)

    return bb.emit(bb.call_te(kernel, old, new, begins, primfunc_name_hint="join_past"))


def _scores(bb: relax.BlockBuilder, query: Any, keys: Any, attrs: Mapping[str, Any]) -> Any:
    """The attention scores as (batch, heads, length, keys)."""
    batch, heads, length, size = shape_of(query)
    groups, room = shape_of(keys)[1:3]
    rows = bb.emit(relax.op.reshape(query, (batch, groups, heads // groups * length, size)))
    turned = bb.emit(relax.op.permute_dims(keys, [0, 1, 3, 2]))
    scores = bb.emit(relax.op.matmul(rows, turned))
    scores = bb.emit(relax.op.reshape(scores, (batch, heads, length, room)))
    scale = float(attrs.get("scale", 0.0)) or 1 / math.sqrt(size)
    scores = bb.emit(relax.op.multiply(scores, number_like(scores, scale)))
    cap = float(attrs.get("softcap", 0.0))
    if cap > 0:
        part = bb.emit(relax.op.tanh(bb.emit(relax.op.divide(scores, number_like(scores, cap)))))
        scores = bb.emit(relax.op.multiply(part, number_like(scores, cap)))
    return scores


def _filled_up(bb: relax.BlockBuilder, on_scores: Any, room: int) -> Any:
    """Pad the bias of the scores with zeros along the keys, up to `room` keys."""
    missing = room - shape_of(on_scores)[3]
    if not missing:
        return on_scores
    return bb.emit(relax.op.nn.pad(on_scores, [0] * 7 + [missing], "constant", 0.0))


def _seen(bb: relax.BlockBuilder, begins: Any, length: int, room: int, window: int) -> Any:
    """Whether each query attends to each key, as (batch, 1, length, keys).

    A query attends to the last `window` keys up to its own position. If `window` is negative, it
    attends to all keys up to its own position.
    """
    steps = relax.const(np.arange(length, dtype=np.int32).reshape(1, 1, length, 1), "int32")
    places = relax.const(np.arange(room, dtype=np.int32).reshape(1, 1, 1, room), "int32")
    begins = bb.emit(relax.op.reshape(begins, (-1, 1, 1, 1)))
    own = bb.emit(relax.op.add(begins, steps))
    counts = bb.emit(relax.op.less_equal(places, own))
    if window < 0:
        return counts
    first = bb.emit(relax.op.subtract(own, number_like(own, window - 1)))
    return bb.emit(relax.op.logical_and(counts, bb.emit(relax.op.greater_equal(places, first))))


def _filled(bb: relax.BlockBuilder, last: Any, room: int) -> Any:
    """Whether each key lies within its row, as (batch, 1, 1, keys).

    Without a causal mask, each query attends to all keys of its row.
    """
    places = relax.const(np.arange(room, dtype=np.int32).reshape(1, 1, 1, room), "int32")
    ends = bb.emit(relax.op.reshape(last, (-1, 1, 1, 1)))
    return bb.emit(relax.op.less_equal(places, ends))


def _weights(bb: relax.BlockBuilder, scores: Any, sinks: Any) -> Any:
    """The softmax of the scores over the keys.

    `sinks` has one additional score for each head, or is None. The softmax includes this score, but
    the resulting weight is dropped, because no value belongs to the score.
    """
    if sinks is None:
        return bb.emit(relax.op.nn.softmax(scores, -1))
    batch, heads, length, room = shape_of(scores)
    column = bb.emit(relax.op.reshape(sinks, (1, heads, 1, 1)))
    column = bb.emit(relax.op.broadcast_to(column, (batch, heads, length, 1)))
    weights = bb.emit(relax.op.nn.softmax(bb.emit(relax.op.concat([scores, column], 3)), -1))
    return bb.emit(relax.op.strided_slice(weights, [3], [0], [room]))


def _weighed(bb: relax.BlockBuilder, weights: Any, values: Any, groups: int) -> Any:
    """The weighted sums of the values, as (batch, length, channels)."""
    batch, heads, length, room = shape_of(weights)
    rows = bb.emit(relax.op.reshape(weights, (batch, groups, heads // groups * length, room)))
    sums = bb.emit(relax.op.matmul(rows, values))
    by_head = bb.emit(relax.op.reshape(sums, (batch, heads, length, -1)))
    ordered = bb.emit(relax.op.permute_dims(by_head, [0, 2, 1, 3]))
    return bb.emit(relax.op.reshape(ordered, (batch, length, -1)))
