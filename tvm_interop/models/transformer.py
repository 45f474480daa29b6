"""Attention and normalisation, for the encoders of BERT and T5."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from .onnx_net import OnnxNet

_MASKED = -1e4
"""Value added to attention scores of padding: finite, and so low that the softmax weight is 0."""


def keep_mask(net: OnnxNet, mask: str, name: str) -> str:
    """A mask to add to attention scores [batch, heads, tokens, tokens]: 0 for tokens, else -1e4."""
    batch, length = net.shape(mask)
    shape = (batch, 1, 1, length)
    axes = net.constant(f"{name}/axes", np.array([1, 2], np.int64))
    one = net.constant(f"{name}/one", np.array(1, np.float32))
    low = net.constant(f"{name}/low", np.array(_MASKED, np.float32))
    x = net.op("Cast", [mask], f"{name}/cast", (batch, length), 1.0, to=TensorProto.FLOAT)
    x = net.op("Sub", [one, x], f"{name}/invert", (batch, length), 0.0)
    x = net.op("Mul", [x, low], f"{name}/scale", (batch, length), 0.0)
    return net.op("Unsqueeze", [x, axes], f"{name}/unsqueeze", shape, 0.0)


def attention(
    net: OnnxNet,
    x: str,
    name: str,
    heads: int,
    width: int,
    bias_to_scores: str,
    *,
    bias: bool,
    scaled: bool,
) -> str:
    """Attention with `heads` heads of `width`. The result is the concatenated outputs of the heads,
    before any projection.

    Parameters
    ----------
    bias_to_scores: a tensor that is added to the scores: a mask, and in T5 also a bias that depends
        on the distance of the tokens.
    bias: whether the projections of query, key and value have a bias.
    scaled: whether to divide the scores by the square root of `width`. If False, the weights that
        compute the query are divided by this root, which gives scores of the same size.
    """
    batch, length, _ = net.shape(x)
    split = net.constant(f"{name}/split", np.array([batch, length, heads, width], np.int64))

    def projected(what: str, perm: tuple[int, ...], gain: float = 1.0) -> str:
        y = net.linear(x, f"{name}/{what}", heads * width, bias=bias, gain=gain)
        sizes = (batch, length, heads, width)
        y = net.op("Reshape", [y, split], f"{name}/{what}/split", sizes)
        shape = [sizes[axis] for axis in perm]
        return net.op("Transpose", [y], f"{name}/{what}/heads", shape, perm=perm)

    query = projected("query", (0, 2, 1, 3), 1.0 if scaled else width**-0.5)
    key = projected("key", (0, 2, 3, 1))
    value = projected("value", (0, 2, 1, 3))
    square = (batch, heads, length, length)
    scores = net.op("MatMul", [query, key], f"{name}/scores", square, 1.0)
    if scaled:
        root = net.constant(f"{name}/root", np.array(width**0.5, np.float32))
        scores = net.op("Div", [scores, root], f"{name}/scaled", square)
    scores = net.add([scores, bias_to_scores], f"{name}/scores")
    weights = net.op("Softmax", [scores], f"{name}/softmax", square, 1.0, axis=-1)
    # The last argument estimates the mean square of the result. It is about the sum of the squared
    # attention weights of one query, which is about 2 / length.
    mean = net.op(
        "MatMul", [weights, value], f"{name}/context", (batch, heads, length, width), 2.0 / length
    )
    shape = (batch, length, heads, width)
    mean = net.op("Transpose", [mean], f"{name}/context/tokens", shape, perm=(0, 2, 1, 3))
    merged = (batch, length, heads * width)
    join = net.constant(f"{name}/join", np.array(merged, np.int64))
    return net.op("Reshape", [mean, join], f"{name}/context/joined", merged)


def layer_norm(net: OnnxNet, x: str, name: str) -> str:
    """Layer normalisation over the last dimension, with a scale and a shift."""
    features = net.shape(x)[-1]
    scale = _near_one(net, f"{name}.weight", features)
    shift = net.weight(f"{name}.bias", (features,), 0.05)
    attributes = {"axis": -1, "epsilon": 1e-12}
    return net.op("LayerNormalization", [x, scale, shift], name, net.shape(x), 1.0, **attributes)


def rms_norm(net: OnnxNet, x: str, name: str) -> str:
    """T5's normalisation: divide by the root mean square over the last dimension, and scale."""
    shape = net.shape(x)
    features = shape[-1]
    narrow = (*shape[:-1], 1)
    epsilon = net.constant(f"{name}/epsilon", np.array(1e-6, np.float32))
    scale = _near_one(net, f"{name}.weight", features)
    y = net.op("Mul", [x, x], f"{name}/square", shape)
    y = net.op("ReduceMean", [y], f"{name}/mean", narrow, axes=[-1], keepdims=1)
    y = net.op("Add", [y, epsilon], f"{name}/add", narrow)
    y = net.op("Sqrt", [y], f"{name}/root", narrow)
    y = net.op("Div", [x, y], f"{name}/div", shape, 1.0)
    return net.op("Mul", [y, scale], name, shape, 1.0)


def _near_one(net: OnnxNet, name: str, features: int) -> str:
    return net.weight(name, (features,), 0.1, mean=1.0)
