"""BERT base (Devlin et al., 2019)."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from .onnx_net import OnnxNet
from .transformer import attention, keep_mask, layer_norm

_LAYERS = 12
_HIDDEN = 768
_HEADS = 12
_FEED_FORWARD = 3072
_VOCABULARY = 30522
_POSITIONS = 512
_TOKEN_TYPES = 2


def bert_base(net: OnnxNet, batch: int, length: int) -> None:
    """BERT base, uncased: 12 layers of width 768, 12 heads and a pooler; 128 tokens by default.

    All inputs are int64 of shape [batch, tokens]. `attention_mask` holds 1 for a token and 0 for
    padding.
    """
    ids = net.input("input_ids", (batch, length), TensorProto.INT64)
    mask = net.input("attention_mask", (batch, length), TensorProto.INT64)
    types = net.input("token_type_ids", (batch, length), TensorProto.INT64)
    x = _embeddings(net, ids, types)
    mask = keep_mask(net, mask, "mask")
    for i in range(_LAYERS):
        x = _layer(net, x, mask, f"layer_{i}")
    first = net.constant("pooler/first", np.array(0, np.int64))
    cls = net.op("Gather", [x, first], "pooler/token", (batch, _HIDDEN), axis=1)
    pooled = net.linear(cls, "pooler", _HIDDEN)
    pooled = net.op("Tanh", [pooled], "pooler/tanh", (batch, _HIDDEN))
    net.output(x, "last_hidden_state")
    net.output(pooled, "pooler_output")


def _embeddings(net: OnnxNet, ids: str, types: str) -> str:
    batch, length = net.shape(ids)
    shape = (batch, length, _HIDDEN)
    words = net.weight("embeddings/words.weight", (_VOCABULARY, _HIDDEN), 1.0)
    positions = net.weight("embeddings/positions.weight", (_POSITIONS, _HIDDEN), 1.0)
    token_types = net.weight("embeddings/token_types.weight", (_TOKEN_TYPES, _HIDDEN), 1.0)
    first = net.constant("embeddings/position_ids", np.arange(length))
    parts = [
        net.op("Gather", [words, ids], "embeddings/words", shape),
        net.op("Gather", [positions, first], "embeddings/positions", (length, _HIDDEN)),
        net.op("Gather", [token_types, types], "embeddings/token_types", shape),
    ]
    x = net.add([parts[0], parts[2]], "embeddings/typed")
    return layer_norm(net, net.add([x, parts[1]], "embeddings"), "embeddings/norm")


def _layer(net: OnnxNet, x: str, mask: str, layer: str) -> str:
    context = attention(
        net, x, f"{layer}/attention", _HEADS, _HIDDEN // _HEADS, mask, bias=True, scaled=True
    )
    out = net.linear(context, f"{layer}/attention/output", _HIDDEN)
    x = layer_norm(net, net.add([out, x], f"{layer}/attention"), f"{layer}/attention/norm")
    y = _gelu(net, net.linear(x, f"{layer}/intermediate", _FEED_FORWARD), f"{layer}/intermediate")
    y = net.linear(y, f"{layer}/output", _HIDDEN)
    return layer_norm(net, net.add([y, x], f"{layer}/output"), f"{layer}/output/norm")


def _gelu(net: OnnxNet, x: str, name: str) -> str:
    """Gelu as single operators: x * (1 + erf(x / sqrt(2))) / 2. This version of ONNX has no
    Gelu.
    """
    shape = net.shape(x)

    def scalar(what: str, value: float) -> str:
        return net.constant(f"{name}/gelu_{what}", np.array(value, np.float32))

    scaled = net.op("Div", [x, scalar("sqrt_2", 2**0.5)], f"{name}/gelu_div", shape)
    erf = net.op("Erf", [scaled], f"{name}/gelu_erf", shape, 0.5)
    shifted = net.op("Add", [erf, scalar("one", 1.0)], f"{name}/gelu_add", shape, 1.5)
    product = net.op("Mul", [x, shifted], f"{name}/gelu_mul", shape)
    return net.op("Mul", [product, scalar("half", 0.5)], f"{name}/gelu", shape, 0.5)
