"""Converts to ONNX the operators of programs that PyTorch has quantised (PT2E)."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from onnx import TensorProto
from onnxscript import ir
from onnxscript import opset18 as op

_MODULE = "torch.ao.quantization.fx._decomposed"
"""The module that defines the operators."""


def define() -> None:
    """Define the operators in this process. PyTorch cannot read a program with them otherwise."""
    with contextlib.suppress(ImportError):
        importlib.import_module(_MODULE)


def conversions() -> Mapping[Any, Callable[..., Any]]:
    """Return the conversions of the operators, if they are defined."""
    packet = getattr(torch.ops.quantized_decomposed, "quantize_per_tensor", None)
    return {} if packet is None else {packet.default: _quantised}


def _quantised(
    x: Any, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: int
) -> Any:
    """Convert the rounding to integers. The exporter ignores their range, which may be smaller than
    that of the type.
    """

    def number(value: Any, of: int) -> Any:
        return op.Constant(value=ir.tensor(value, dtype=ir.DataType(of)))

    numbers = op.QuantizeLinear(x, number(scale, x.dtype), number(zero_point, dtype))
    info = ir.DataType(dtype)
    if (quant_min, quant_max) == (info.min, info.max):
        return numbers
    low, high = number(quant_min, dtype), number(quant_max, dtype)
    if dtype in (TensorProto.INT8, TensorProto.UINT8):
        return op.Clip(numbers, low, high)
    return op.Min(op.Max(numbers, low), high)
