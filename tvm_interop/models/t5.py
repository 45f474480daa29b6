"""The encoder of T5 small (Raffel et al., 2020)."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from .onnx_net import OnnxNet
from .transformer import attention, keep_mask, rms_norm

_LAYERS = 6
_HIDDEN = 512
_HEADS = 8
_HEAD_WIDTH = 64
_FEED_FORWARD = 2048
_VOCABULARY = 32128
_BUCKETS = 32
_FARTHEST = 128


def t5_encoder(net: OnnxNet, batch: int, length: int) -> None:
    """T5 small's encoder: 6 layers of width 512, 8 heads; 128 tokens by default.

    The paper on Opara measures T5, but does not say which size. Inputs are int64 [batch, tokens].
    The buckets of distances depend only on the number of tokens, so they are constants in this
    model. In models that exporters write, operators compute the buckets instead.
    """
    ids = net.input("input_ids", (batch, length), TensorProto.INT64)
    mask = keep_mask(net, net.input("attention_mask", (batch, length), TensorProto.INT64), "mask")
    words = net.weight("embeddings.weight", (_VOCABULARY, _HIDDEN), 1.0)
    x = net.op("Gather", [words, ids], "embeddings", (batch, length, _HIDDEN))
    bias = net.add([_position_bias(net, length), mask], "position_bias")
    for i in range(_LAYERS):
        x = _layer(net, x, bias, f"layer_{i}")
    net.output(rms_norm(net, x, "norm"), "last_hidden_state")


def buckets(length: int) -> np.ndarray:
    """The bucket of the distance from each token to each token, int64 [length, length].

    Each direction has 16 buckets (section 2.1). Each distance below 8 has its own bucket. The
    distances from 8 on share 8 buckets on a logarithmic scale. All distances from 128 on are in the
    last bucket.
    """
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    per_direction = _BUCKETS // 2
    exact = per_direction // 2
    far = np.abs(distance)
    ratio = np.log(np.maximum(far, 1) / exact) / np.log(_FARTHEST / exact)
    shared = exact + (ratio * (per_direction - exact)).astype(np.int64)
    bucket = np.where(far < exact, far, np.minimum(shared, per_direction - 1))
    return np.asarray(bucket + per_direction * (distance > 0), np.int64)


def _position_bias(net: OnnxNet, length: int) -> str:
    table = net.weight("position_bias.weight", (_BUCKETS, _HEADS), 0.5)
    which = net.constant("position_bias/buckets", buckets(length))
    shape = (length, length, _HEADS)
    x = net.op("Gather", [table, which], "position_bias/gather", shape)
    shape = (_HEADS, length, length)
    x = net.op("Transpose", [x], "position_bias/heads", shape, perm=(2, 0, 1))
    axes = net.constant("position_bias/axes", np.array([0], np.int64))
    return net.op("Unsqueeze", [x, axes], "position_bias/unsqueeze", (1, *shape))


def _layer(net: OnnxNet, x: str, bias: str, layer: str) -> str:
    y = rms_norm(net, x, f"{layer}/attention/norm")
    y = attention(net, y, f"{layer}/attention", _HEADS, _HEAD_WIDTH, bias, bias=False, scaled=False)
    y = net.linear(y, f"{layer}/attention/output", _HIDDEN, bias=False)
    x = net.add([y, x], f"{layer}/attention")
    y = rms_norm(net, x, f"{layer}/feed_forward/norm")
    y = net.linear(y, f"{layer}/feed_forward/wide", _FEED_FORWARD, bias=False)
    y = net.relu(y, f"{layer}/feed_forward/relu")
    y = net.linear(y, f"{layer}/feed_forward/output", _HIDDEN, bias=False)
    return net.add([y, x], f"{layer}/feed_forward")
