"""Converts onnxruntime's fused operators for attention, rotary embeddings and embeddings.

The operators belong to onnxruntime's own domain, `com.microsoft`. Some of these operators have the
same name as an ONNX operator, but take other inputs.

Source: onnxruntime's list of its operators, ContribOperators.md, and its kernels for CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .constants import number_like
from .misfit import MisfitError
from .pieces import parts_of

_FILTER = -10000.0
"""The number that is added to the scores of masked positions, unless an attribute of the node gives
another number.
"""


def import_attention(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Compute queries, keys and values from the input of the node, and return their attention.

    The inputs are: x (batch, length, channels); one matrix of weights, whose columns give the
    queries, keys and values of x; the bias of these columns; the mask; the keys and values of
    earlier runs (2, batch, heads, length, size); the bias of the scores. The results are the
    output, and the keys and values of all runs up to this one.
    """
    x, weights, bias, mask, past, on_scores, past_length = padded(inputs, 7)
    refuse_if(past_length is not None, "past keys and values in a shared buffer")
    refuse_if(bool(attrs.get("do_rotary", 0)), "a rotary embedding inside of attention")
    heads = int(attrs["num_heads"])
    columns = shape_of(weights)[1]
    widths = [int(width) for width in attrs.get("qkv_hidden_sizes", ())] or [columns // 3] * 3
    projected = bb.emit(relax.op.matmul(x, weights))
    if bias is not None:
        projected = bb.emit(relax.op.add(projected, bias))
    query, key, value = (by_heads(bb, part, heads) for part in parts_of(bb, projected, 2, widths))
    if past is not None:
        key, value = (
            bb.emit(relax.op.concat([bb.emit(relax.op.squeeze(old, [0])), new], 2))
            for old, new in zip(parts_of(bb, past, 0, [1, 1]), (key, value), strict=True)
        )
    before = 0 if past is None else shape_of(past)[3]
    result = _attended(bb, (query, key, value), (mask, on_scores), before, attrs)
    if number_of_results(attrs) == 1:
        return result
    return relax.Tuple([result, bb.emit(relax.op.stack([key, value], 0))])


def import_multi_head_attention(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Compute attention from queries, keys and values that are inputs of the node.

    The inputs are: the query (batch, length, channels); the key and the value, which both have the
    axes of the query, or both have the axes (batch, heads, length, size); one bias for query, key
    and value; the mask; the bias of the scores; the keys and the values of earlier runs (batch,
    heads, length, size). The bias is not added to a key or value with four axes. Queries, keys and
    values may also be packed (see `_unpacked`). The results are the output, and the keys and values
    of all runs up to this one.
    """
    query, key, value, bias, mask, on_scores, *past = padded(inputs, 10)
    refuse_if(past[2] is not None or past[3] is not None, "past keys and values in a shared buffer")
    refuse_if(number_of_results(attrs) > 3, "an output of its scores")
    heads = int(attrs["num_heads"])
    tensors = _unpacked(bb, query, key, value)
    if bias is not None:
        sizes = [shape_of(x)[-1] * (heads if len(shape_of(x)) == 4 else 1) for x in tensors]
        tensors = [
            bb.emit(relax.op.add(x, part)) if len(shape_of(x)) == 3 else x
            for x, part in zip(tensors, parts_of(bb, bias, 0, sizes), strict=True)
        ]
    query, key, value = (
        tensor if len(shape_of(tensor)) == 4 else by_heads(bb, tensor, heads) for tensor in tensors
    )
    if past[0] is not None and past[1] is not None:
        key, value = (
            bb.emit(relax.op.concat([old, new], 2))
            for old, new in zip(past[:2], (key, value), strict=True)
        )
    before = 0 if past[0] is None else shape_of(past[0])[2]
    result = _attended(bb, (query, key, value), (mask, on_scores), before, attrs)
    number = number_of_results(attrs)
    return result if number == 1 else relax.Tuple([result, key, value][:number])


def _unpacked(bb: relax.BlockBuilder, query: Any, key: Any, value: Any) -> list[Any]:
    """Return queries, keys and values, each with axes of its own.

    The node may have all three in the first input (batch, length, heads, 3, size), or keys and
    values in the second input (batch, length, heads, 2, size).
    """
    if key is not None and value is not None:
        return [query, key, value]
    packed, number = (query, 3) if key is None else (key, 2)
    shape = shape_of(packed)
    refuse_if(value is not None or len(shape) != 5 or shape[3] != number, "keys without values")
    parts = [
        bb.emit(relax.op.reshape(part, (*shape[:2], -1)))
        for part in parts_of(bb, packed, 3, [1] * number)
    ]
    return parts if key is None else [query, *parts]


def import_rotary_embedding(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Rotate pairs of channels by angles that depend on the position.

    The inputs are: x, of shape (batch, length, channels) or (batch, heads, length, size); the
    positions (batch, length), or only the first position (1,); and tables of cosines and sines,
    each with a row for each position and a column for each rotated pair of channels.
    """
    x, positions, cosines, sines = inputs[:4]
    refuse_if(float(attrs.get("scale", 1.0)) != 1, "a scale")
    refuse_if(bool(attrs.get("is_packed_batching", 0)), "sequences packed into one")
    shape, half = shape_of(x), shape_of(cosines)[1]
    width = 2 * half
    length = shape[1] if len(shape) == 3 else shape[2]
    if len(shape_of(positions)) == 1:
        steps = relax.const(np.arange(length), str(positions.ty.dtype))
        first = bb.emit(relax.op.reshape(positions, (1, 1)))
        positions = bb.emit(relax.op.add(bb.emit(relax.op.reshape(steps, (1, length))), first))
    if len(shape) == 3:
        size = shape[2] // int(attrs.get("num_heads", 0) or shape[2] // width)
        x = bb.emit(relax.op.reshape(x, (shape[0], length, -1, size)))
    angles = [
        bb.emit(relax.op.take(table, positions, 0, mode="clip")) for table in (cosines, sines)
    ]
    return _turned(bb, x, angles, shape, attrs)


def _turned(
    bb: relax.BlockBuilder,
    x: Any,
    angles: Sequence[Any],
    shape: tuple[int, ...],
    attrs: Mapping[str, Any],
) -> Any:
    """Rotate pairs of channels, and return the result in the shape `shape`.

    Parameters
    ----------
    x: four axes, of which the last has the channels.
    angles: cosines and sines (rows, length, pairs).
    shape: the shape of the node's input. Its heads are the second axis if it has four axes.
    """
    rows, length, half = shape_of(angles[0])
    around = (rows, length, 1, half) if len(shape) == 3 else (rows, 1, length, half)
    cosine, sine = (bb.emit(relax.op.reshape(each, around)) for each in angles)
    turned = rotated(bb, x, (cosine, sine), bool(attrs.get("interleaved", 0)))
    return relax.op.reshape(turned, shape)


def import_rotary_embedding_of_images(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Rotate pairs of channels by angles that depend on a time, a row and a column.

    The inputs are those of `import_rotary_embedding`, with positions of shape (3, batch, length).
    """
    x, positions, cosines, sines = inputs[:4]
    refuse_if(float(attrs.get("scale", 1.0)) != 1, "a scale")
    refuse_if(bool(attrs.get("is_packed_batching", 0)), "sequences packed into one")
    shape, half = shape_of(x), shape_of(cosines)[1]
    _, rows, columns = sections = [int(size) for size in attrs["mrope_section"]]
    # The position by which each pair of channels is rotated: its time, its row or its column.
    sources = np.repeat(np.arange(3), sections)
    if attrs.get("mrope_layout", 0):
        sources = np.zeros(half, int)
        sources[1 : 3 * rows : 3], sources[2 : 3 * columns : 3] = 1, 2
    if len(shape) == 3:
        size = shape[2] // int(attrs.get("num_heads", 0) or shape[2] // (2 * half))
        x = bb.emit(relax.op.reshape(x, (*shape[:2], -1, size)))
    angles = []
    for table in (cosines, sines):
        each = bb.emit(relax.op.take(table, positions, 0, mode="clip"))
        first, *others = (bb.emit(relax.op.squeeze(p, [0])) for p in parts_of(bb, each, 0, [1] * 3))
        for number, other in enumerate(others, 1):
            is_other = relax.const(sources == number, "bool")
            first = bb.emit(relax.op.where(is_other, other, first))
        angles.append(first)
    return _turned(bb, x, angles, shape, attrs)


def rotated(bb: relax.BlockBuilder, x: Any, angles: tuple[Any, Any], is_interleaved: bool) -> Any:
    """Rotate the first channels of `x`. It has four axes, and its last axis has the channels.

    Parameters
    ----------
    angles: cosines and sines, which broadcast to half of the channels that are rotated.
    is_interleaved: whether the two channels of a pair lie side by side. If not, the first channel
        of a pair lies in the first half of the rotated channels, and the second channel lies in the
        second half.
    """
    cosine, sine = angles
    whole, half = shape_of(x), shape_of(cosine)[3]
    width = 2 * half
    turned, *rest = parts_of(bb, x, 3, [width, whole[3] - width] if width < whole[3] else [width])
    if is_interleaved:
        pairs = bb.emit(relax.op.reshape(turned, (*whole[:3], half, 2)))
        first, second = (bb.emit(relax.op.squeeze(p, [4])) for p in parts_of(bb, pairs, 4, [1, 1]))
    else:
        first, second = parts_of(bb, turned, 3, [half, half])
    real = relax.op.subtract(_product(bb, first, cosine), _product(bb, second, sine))
    imaginary = relax.op.add(_product(bb, first, sine), _product(bb, second, cosine))
    results = [bb.emit(real), bb.emit(imaginary)]
    if is_interleaved:
        stacked = bb.emit(relax.op.stack(results, 4))
        results = [bb.emit(relax.op.reshape(stacked, (*whole[:3], width)))]
    return bb.emit(relax.op.concat([*results, *rest], 3))


def import_embeddings(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Add the embeddings of words, positions and segments, and normalise the sums.

    The inputs are: the numbers of the words (batch, length); the numbers of their segments; the
    tables of embeddings of words, positions and segments; the scale and the shift of the
    normalisation; the mask; the positions. The results are the output, the number of ones in each
    row of the mask, and the sums before the normalisation.
    """
    words, segments, of_words, of_positions, of_segments, scale, shift, mask, positions = padded(
        inputs, 9
    )
    batch, length = shape_of(words)
    total = bb.emit(relax.op.take(of_words, words, 0, mode="clip"))
    if positions is None:
        positions = relax.const(np.arange(length).reshape(1, length), "int32")
    total = bb.emit(
        relax.op.add(total, bb.emit(relax.op.take(of_positions, positions, 0, mode="clip")))
    )
    if segments is not None and of_segments is not None:
        looked_up = bb.emit(relax.op.take(of_segments, segments, 0, mode="clip"))
        total = bb.emit(relax.op.add(total, looked_up))
    epsilon = float(attrs.get("epsilon", 1e-12))
    result = bb.emit(relax.op.nn.layer_norm(total, scale, shift, [-1], epsilon))
    number = number_of_results(attrs)
    if number == 1:
        return result
    lengths = relax.const(np.zeros(batch, np.int32), "int32")
    if mask is not None:
        is_one = bb.emit(relax.op.equal(mask, number_like(mask, 1)))
        lengths = bb.emit(relax.op.sum(bb.emit(relax.op.astype(is_one, "int32")), [1]))
    return relax.Tuple([result, lengths, total][:number])


def _attended(
    bb: relax.BlockBuilder,
    tensors: tuple[Any, Any, Any],
    masks: tuple[Any, Any],
    before: int,
    attrs: Mapping[str, Any],
) -> Any:
    """Return attention as (batch, length, channels).

    Parameters
    ----------
    tensors: queries, keys and values, of shape (batch, heads, length, size).
    masks: the mask (see `_mask_by_keys`), and the bias of the scores; each may be None.
    before: the number of past keys. All queries attend to past keys, even with a causal mask.
    """
    (query, key, value), (mask, on_scores) = tensors, masks
    batch, _, queries, size = shape_of(query)
    keys, dtype = shape_of(key)[2], str(query.ty.dtype)
    scores = bb.emit(relax.op.matmul(query, bb.emit(relax.op.permute_dims(key, [0, 1, 3, 2]))))
    scale = float(attrs.get("scale", 0.0)) or 1 / math.sqrt(size)
    scores = bb.emit(relax.op.multiply(scores, number_like(scores, scale)))
    if mask is not None:
        least = float(attrs.get("mask_filter_value", _FILTER))
        counts = _mask_by_keys(bb, mask, batch, queries, keys)
        zero, filtered = (relax.const(number, dtype) for number in (0.0, least))
        scores = bb.emit(relax.op.add(scores, bb.emit(relax.op.where(counts, zero, filtered))))
    if on_scores is not None:
        scores = bb.emit(relax.op.add(scores, on_scores))
    if attrs.get("unidirectional", 0):
        # In onnxruntime, the last query attends to all keys even with a causal mask, also to keys
        # at later positions. That is not supported here.
        refuse_if(keys > before + queries, "a causal mask and keys after the last query")
        seen = np.tri(queries, keys, before, dtype=bool)
        lowest = relax.const(float(np.finfo(dtype).min), dtype)
        scores = bb.emit(relax.op.where(relax.const(seen, "bool"), scores, lowest))
    weights = bb.emit(relax.op.nn.softmax(scores, -1))
    heads = bb.emit(relax.op.matmul(weights, value))
    ordered = bb.emit(relax.op.permute_dims(heads, [0, 2, 1, 3]))
    return bb.emit(relax.op.reshape(ordered, (batch, queries, -1)))


def _mask_by_keys(bb: relax.BlockBuilder, mask: Any, batch: int, queries: int, keys: int) -> Any:
    """Return booleans that say which scores are used; their shape broadcasts to that of the scores.

    A mask with one axis holds, for each row of the batch, the position after the last key that is
    used. If the mask has two numbers for each row, its second half holds the position of the first
    key that is used.

    Raises
    ------
    UnsupportedModelError
        The mask has a shape that onnxruntime does not document for CPUs.
    """
    shape, dtype = shape_of(mask), str(mask.ty.dtype)
    if shape in ((batch, keys), (batch, queries, keys)):
        counts = bb.emit(relax.op.greater(mask, number_like(mask, 0)))
        return bb.emit(relax.op.reshape(counts, (batch, 1, -1 if len(shape) == 3 else 1, keys)))
    if shape not in ((batch,), (2 * batch,)):
        raise MisfitError(
            f"its mask of shape {shape} does not fit {batch} rows, {queries} queries and {keys} "
            "keys: save the model without the optimisation of onnxruntime that makes such nodes"
        )
    places = relax.const(np.arange(keys).reshape(1, 1, 1, keys), dtype)
    bounds = [
        bb.emit(relax.op.reshape(part, (batch, 1, 1, 1)))
        for part in parts_of(bb, mask, 0, [batch] * (shape[0] // batch))
    ]
    counts = bb.emit(relax.op.less(places, bounds[0]))
    if len(bounds) == 1:
        return counts
    after = bb.emit(relax.op.greater_equal(places, bounds[1]))
    return bb.emit(relax.op.logical_and(counts, after))


def by_heads(bb: relax.BlockBuilder, x: Any, heads: int) -> Any:
    """Reshape and transpose (batch, length, channels) to (batch, heads, length, size)."""
    batch, length, channels = shape_of(x)
    split = bb.emit(relax.op.reshape(x, (batch, length, heads, channels // heads)))
    return bb.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))


def _product(bb: relax.BlockBuilder, a: Any, b: Any) -> Any:
    return bb.emit(relax.op.multiply(a, b))


def shape_of(x: Any) -> tuple[int, ...]:
    shape = static_shape(x.ty)
    if shape is None:
        raise UnsupportedModelError(
            "the shape of an input is computed when the model runs: export the model with fixed "
            "shapes"
        )
    return tuple(shape)


def padded(inputs: Sequence[Any], number: int) -> list[Any]:
    """The inputs, with None for each input that the node leaves out at the end."""
    return [*inputs, *[None] * number][:number]


def number_of_results(attrs: Mapping[str, Any]) -> int:
    return int(attrs["tvm_custom"]["num_outputs"])


def refuse_if(is_so: bool, what: str) -> None:
    if is_so:
        raise UnsupportedModelError(
            f"it has {what}: save the model without the optimisation of onnxruntime that makes "
            "such nodes"
        )


ATTENTION = {
    "Attention": import_attention,
    "EmbedLayerNormalization": import_embeddings,
    "MRotaryEmbedding": import_rotary_embedding_of_images,
    "MultiHeadAttention": import_multi_head_attention,
    "RotaryEmbedding": import_rotary_embedding,
}
"""Maps the name of an operator of onnxruntime's domain to its converter."""
