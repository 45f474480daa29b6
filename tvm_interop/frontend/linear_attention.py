"""Converts onnxruntime's operators for linear attention, as in Qwen3.5 and Mamba.

Source: onnxruntime's list of its operators, ContribOperators.md, and its kernels for CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..errors import UnsupportedModelError
from ..kernels import loops
from .attention import number_of_results, padded, refuse_if, shape_of
from .class_scores import floats
from .constants import number_like, text_of

_DECAYING = ("gated", "gated_delta")
_CORRECTING = ("delta", "gated_delta")
_RULES = ("linear", *_DECAYING, "delta")
"""The values of the attribute `update_rule`."""


def import_causal_convolution(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Convolve each channel of a sequence with its own window, which ends at the current position.

    The inputs are: x (batch, channels, length); the weights (channels, 1, window); the bias of the
    channels; the positions before those of `x` (batch, channels, before), zeros if left out. With
    the attribute `channels_last`, the second axis of `x` and of the earlier positions has the
    positions, and all later axes have the channels. The results are the convolution, in the shape
    of `x`, and the last positions, which the next run needs.
    """
    x, weights, bias, past = padded(inputs, 4)
    refuse_if(int(attrs.get("ndim", 1)) != 1, "more than one axis of positions")
    refuse_if(bool(attrs.get("state_window", 0)), "a window of states")
    activation = text_of(attrs.get("activation", b"none"))
    if activation not in ("none", "silu", "swish"):
        raise UnsupportedModelError(f"its activation `{activation}` is not none, silu or swish")
    given, is_last = shape_of(x), bool(attrs.get("channels_last", 0))
    dilation, window = int(attrs.get("dilation", 1)), shape_of(weights)[2]
    before = (window - 1) * dilation
    refuse_if(before == 0, "a window of one position")

    def first_channels(values: Any, length: int) -> Any:
        if not is_last:
            return values
        rows = bb.emit(relax.op.reshape(values, (given[0], length, -1)))
        return bb.emit(relax.op.permute_dims(rows, [0, 2, 1]))

    def as_given(values: Any, length: int) -> Any:
        if not is_last:
            return values
        rows = bb.emit(relax.op.permute_dims(values, [0, 2, 1]))
        return bb.emit(relax.op.reshape(rows, (given[0], length, *given[2:])))

    length = given[1 if is_last else 2]
    x = first_channels(x, length)
    batch, channels, _ = shape_of(x)
    if past is None:
        past = relax.const(np.zeros((batch, channels, before)), str(x.ty.dtype))
    else:
        past = first_channels(past, before)
    whole = bb.emit(relax.op.concat([past, x], 2))
    result = bb.emit(relax.op.nn.conv1d(whole, weights, dilation=dilation, groups=channels))
    if bias is not None:
        result = bb.emit(relax.op.add(result, bb.emit(relax.op.reshape(bias, (1, channels, 1)))))
    if activation != "none":
        result = bb.emit(relax.op.multiply(result, bb.emit(relax.op.sigmoid(result))))
    result = as_given(result, length)
    if number_of_results(attrs) == 1:
        return result
    last = bb.emit(relax.op.strided_slice(whole, [2], [length], [length + before]))
    return relax.Tuple([result, as_given(last, before)])


def import_linear_attention(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Compute attention that keeps one matrix per head for the past, and no keys and values.

    The inputs are: queries, keys and values (batch, length, channels); the state after the earlier
    positions (batch, heads, key size, value size), zeros if left out; the logarithm of the factor
    by which the state decays at each position, with one number for each head or for each channel
    of the keys; how much of a value is written, with one number for each head or for all heads. The
    results are the output (batch, length, channels), and the state after the last position.
    """
    query, key, value, past, decay, rate = padded(inputs, 6)
    refuse_if(bool(attrs.get("state_window", 0)), "a window of states")
    rule = text_of(attrs.get("update_rule", b"gated_delta"))
    decay = decay if rule in _DECAYING else None
    rate = rate if rule in _CORRECTING else None
    is_whole = (decay is not None) == (rule in _DECAYING) and (rate is not None) == (
        rule in _CORRECTING
    )
    if rule not in _RULES or not is_whole:
        raise UnsupportedModelError(
            f"its `update_rule` is `{rule}`, which is unknown or needs an input that the node lacks"
        )
    sizes = _sizes(shape_of(query), shape_of(key), shape_of(value), attrs)
    dtype = str(query.ty.dtype)
    of_state = dtype if past is None else str(past.ty.dtype)
    if past is None:
        past = relax.const(np.zeros(sizes.of_state), "float32")
    wide = [floats(bb, each) for each in (query, key, value, past)]
    wide += [floats(bb, each) for each in (decay, rate) if each is not None]
    shapes = [None if each is None else shape_of(each) for each in (decay, rate)]
    kernel = bb.add_func(_Kernel(sizes, *shapes).build(), "linear_attention")
    types = [relax.TensorType(shape, "float32") for shape in (sizes.of_result, sizes.of_state)]
    both = bb.emit(relax.call_tir(kernel, wide, types))
    results = [bb.emit(relax.TupleGetItem(both, i)) for i in (0, 1)]
    narrow = [
        each if kind == "float32" else bb.emit(relax.op.astype(each, kind))
        for each, kind in zip(results, (dtype, of_state), strict=True)
    ]
    return narrow[0] if number_of_results(attrs) == 1 else relax.Tuple(narrow)


@dataclass(frozen=True)
class _Sizes:
    """The sizes of a `LinearAttention`.

    Attributes
    ----------
    queries, keys, heads: the number of heads of the queries, of the keys and of the values. Each
        head of values has its own state.
    size, width: the number of channels of a head of keys, and of a head of values.
    scale: the factor of the output.
    """

    batch: int
    length: int
    queries: int
    keys: int
    heads: int
    size: int
    width: int
    scale: float

    @property
    def of_state(self) -> tuple[int, ...]:
        return (self.batch, self.heads, self.size, self.width)

    @property
    def of_result(self) -> tuple[int, ...]:
        return (self.batch, self.length, max(self.queries, self.heads) * self.width)


def _sizes(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], attrs: Mapping[str, Any]
) -> _Sizes:
    queries, heads = int(attrs["q_num_heads"]), int(attrs["kv_num_heads"])
    size, width = query[2] // queries, value[2] // heads
    keys = key[2] // size
    if max(queries, heads) % min(queries, heads) or not keys or heads % keys:
        raise UnsupportedModelError(
            f"it has {queries} heads of queries, {keys} of keys and {heads} of values: one number "
            "must be a multiple of the other"
        )
    scale = float(attrs.get("scale", 0.0)) or 1 / math.sqrt(size)
    return _Sizes(query[0], query[1], queries, keys, heads, size, width, scale)


class _Kernel:
    """A kernel, with loops written by hand, that goes through the positions in order.

    Its inputs are queries, keys, values and the first state, then the decay and the rate, each only
    if the operator has it. Its outputs are the result and the last state. All are float32.
    """

    def __init__(
        self, sizes: _Sizes, of_decay: tuple[int, ...] | None, of_rate: tuple[int, ...] | None
    ) -> None:
        self._sizes = s = sizes
        row = (s.batch, s.length)
        self._query = _buffer("query", (*row, s.queries * s.size))
        self._key = _buffer("key", (*row, s.keys * s.size))
        self._value = _buffer("value", (*row, s.heads * s.width))
        self._past, self._state = _buffer("past", s.of_state), _buffer("state", s.of_state)
        self._decay = None if of_decay is None else _buffer("decay", of_decay)
        self._rate = None if of_rate is None else _buffer("rate", of_rate)
        self._result = _buffer("result", s.of_result)
        self._added = _buffer("added", (s.width,))
        self._has_decay_of_heads = of_decay == (*row, s.heads)
        self._has_one_rate = of_rate == (*row, 1)

    def build(self) -> tirx.PrimFunc:
        optional = [each for each in (self._decay, self._rate) if each is not None]
        parameters = [self._query, self._key, self._value, self._past, *optional]
        parameters += [self._result, self._state]
        attrs = {"op_pattern": loops.OPAQUE, loops.ROWS: [0] * len(parameters)}

        def each_row(b: Any) -> tirx.Stmt:
            return loops.loop(self._sizes.heads, lambda h: self._head(b, h))

        body = loops.loop(self._sizes.batch, each_row)
        return loops.kernel(parameters, body, [self._added], **attrs)

    def _over_state(self, body: Any) -> tirx.Stmt:
        s = self._sizes
        return loops.loop(s.size, lambda i: loops.loop(s.width, lambda j: body(i, j)))

    def _over_added(self, body: Any) -> tirx.Stmt:
        return loops.loop(self._sizes.width, lambda j: tirx.BufferStore(self._added, body(j), [j]))

    def _head(self, b: Any, h: Any) -> tirx.Stmt:
        def copy(i: Any, j: Any) -> tirx.Stmt:
            return tirx.BufferStore(self._state, self._past[b, h, i, j], [b, h, i, j])

        steps = loops.loop(self._sizes.length, lambda t: loops.in_turn(self._step(b, h, t)))
        return loops.in_turn([self._over_state(copy), steps])

    def _step(self, b: Any, h: Any, t: Any) -> list[tirx.Stmt]:
        s = self._sizes
        of_key = tirx.floordiv(h, s.heads // s.keys) * s.size

        def decayed(i: Any, j: Any) -> tirx.Stmt:
            at = h if self._has_decay_of_heads else h * s.size + i
            factor = tirx.exp(self._decay[b, t, at])  # type: ignore[index]
            return tirx.BufferStore(self._state, self._state[b, h, i, j] * factor, [b, h, i, j])

        def read(i: Any, j: Any) -> tirx.Stmt:
            found = self._added[j] + self._state[b, h, i, j] * self._key[b, t, of_key + i]
            return tirx.BufferStore(self._added, found, [j])

        def written(j: Any) -> Any:
            new = self._value[b, t, h * s.width + j]
            if self._rate is None:
                return new
            return self._rate[b, t, 0 if self._has_one_rate else h] * (new - self._added[j])

        def write(i: Any, j: Any) -> tirx.Stmt:
            new = self._state[b, h, i, j] + self._key[b, t, of_key + i] * self._added[j]
            return tirx.BufferStore(self._state, new, [b, h, i, j])

        statements = []
        if self._decay is not None:
            statements.append(self._over_state(decayed))
        if self._rate is not None:
            statements.append(self._over_added(lambda j: tirx.const(0, "float32")))
            statements.append(self._over_state(read))
        statements += [self._over_added(written), self._over_state(write)]
        if s.queries < s.heads:
            return [*statements, *self._answer(b, h, t, tirx.floordiv(h * s.queries, s.heads), h)]
        each = s.queries // s.heads
        for place in (h * each + g for g in range(each)):
            statements += self._answer(b, h, t, place, place)
        return statements

    def _answer(self, b: Any, h: Any, t: Any, asks: Any, answers: Any) -> list[tirx.Stmt]:
        """Compute one head of the result.

        Parameters
        ----------
        h: the head of the state.
        asks: the head of the queries.
        answers: the head of the result.
        """
        s = self._sizes

        def begin(j: Any) -> tirx.Stmt:
            zero = tirx.const(0, "float32")
            return tirx.BufferStore(self._result, zero, [b, t, answers * s.width + j])

        def add(i: Any, j: Any) -> tirx.Stmt:
            asked = self._query[b, t, asks * s.size + i] * tirx.const(s.scale, "float32")
            at = [b, t, answers * s.width + j]
            total = self._result[tuple(at)] + asked * self._state[b, h, i, j]
            return tirx.BufferStore(self._result, total, at)

        return [loops.loop(s.width, begin), self._over_state(add)]


def _buffer(name: str, shape: tuple[int, ...]) -> Any:
    return tirx.decl_buffer(shape, "float32", name)


def import_gated_norm(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Normalise each group of channels by its root mean square, and multiply by SiLU of a gate.

    The inputs are x (..., groups * channels), the scale (channels,), and the gate in the shape of
    `x`.
    """
    x, scale, gate = inputs[:3]
    shape, channels = shape_of(x), shape_of(scale)[0]
    groups = bb.emit(relax.op.reshape(floats(bb, x), (*shape[:-1], -1, channels)))
    epsilon = float(attrs.get("epsilon", 1e-5))
    squares = bb.emit(relax.op.mean(bb.emit(relax.op.multiply(groups, groups)), [-1], True))
    limited = bb.emit(relax.op.add(squares, number_like(squares, epsilon)))
    normal = bb.emit(relax.op.multiply(groups, bb.emit(relax.op.rsqrt(limited))))
    scaled = bb.emit(relax.op.multiply(normal, floats(bb, scale)))
    wide = floats(bb, gate)
    opened = bb.emit(relax.op.multiply(wide, bb.emit(relax.op.sigmoid(wide))))
    result = relax.op.multiply(bb.emit(relax.op.reshape(scaled, shape)), opened)
    return relax.op.astype(bb.emit(result), str(x.ty.dtype))


def import_gates(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Compute the decay and the rate that a `LinearAttention` reads.

    The inputs are a (batch, length, heads), the bias and the factor of each head, and b in the
    shape of a. The results are factor * softplus(a + bias), and the sigmoid of b.
    """
    a, bias, factor, b = padded(inputs, 4)
    moved = bb.emit(relax.op.add(floats(bb, a), bias))
    soft = bb.emit(relax.op.nn.softplus(moved))
    dtype = str(a.ty.dtype)
    decay = bb.emit(relax.op.astype(bb.emit(relax.op.multiply(soft, factor)), dtype))
    if number_of_results(attrs) == 1:
        return decay
    rate = bb.emit(relax.op.sigmoid(floats(bb, b)))
    return relax.Tuple([decay, bb.emit(relax.op.astype(rate, dtype))])


def import_gated_sum(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Add to a tensor another tensor times a gate (..., 1)."""
    x, y, gate = inputs[:3]
    return relax.op.add(x, bb.emit(relax.op.multiply(y, gate)))


LINEAR_ATTENTION = {
    "CausalConvWithState": import_causal_convolution,
    "GatedAdd": import_gated_sum,
    "GatedRMSNorm": import_gated_norm,
    "LinearAttention": import_linear_attention,
    "LinearAttentionGate": import_gates,
}
"""Maps the name of an operator of onnxruntime's domain to its converter."""
