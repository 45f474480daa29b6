"""Rewrites operators that ONNX once had as experiments, and that onnxruntime still runs.

Old converters, such as that of Core ML's models, write these operators. ONNX has removed their
definitions, so they are rewritten before ONNX's checker reads the model.

Source: the definitions of these operators in onnxruntime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from .rewriter import Rules, Writer

_END = 2**31 - 1
"""The end of a slice that goes up to the last element."""


def _affine(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    scaled = _times(w, node.input[0], attrs.get("alpha", 1.0))
    w.op("Add", [scaled, w.constant(np.float32(attrs.get("beta", 0.0)))], node.output[0])


def _crop(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    """Cut borders off an image (left, top, right, bottom), or keep a part of a given size."""
    left, top, right, bottom = attrs["border"]
    ends = [-bottom or _END, -right or _END]
    if attrs.get("scale"):
        ends = [top + attrs["scale"][0], left + attrs["scale"][1]]
    w.op("Slice", node.input, node.output[0], axes=[2, 3], starts=[top, left], ends=ends)


def _image_scaler(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    """Multiply an image by a number, and add a number to each channel."""
    scaled = _times(w, node.input[0], attrs.get("scale", 1.0))
    bias = np.asarray(attrs["bias"], np.float32).reshape(1, -1, 1, 1)
    w.op("Add", [scaled, w.constant(bias)], node.output[0])


def _parametric_softplus(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    soft = w.op("Softplus", [_times(w, node.input[0], attrs.get("beta", 1.0))])
    w.op("Mul", [soft, w.constant(np.float32(attrs.get("alpha", 1.0)))], node.output[0])


def _scaled_tanh(w: Writer, node: onnx.NodeProto, attrs: dict[str, Any]) -> None:
    bent = w.op("Tanh", [_times(w, node.input[0], attrs.get("beta", 1.0))])
    w.op("Mul", [bent, w.constant(np.float32(attrs.get("alpha", 1.0)))], node.output[0])


def _times(w: Writer, x: str, factor: float) -> str:
    return w.op("Mul", [x, w.constant(np.float32(factor))])


ON_TRIAL: Rules = {
    ("", "Affine"): _affine,
    ("", "Crop"): _crop,
    ("", "ImageScaler"): _image_scaler,
    ("", "ParametricSoftplus"): _parametric_softplus,
    ("", "ScaledTanh"): _scaled_tanh,
}
"""Maps the domain and name of an operator to the function that rewrites it."""
