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
    """Return the conversions of the operators, if they are defined, and of products of integers."""
    packet = getattr(torch.ops.quantized_decomposed, "quantize_per_tensor", None)
    products: dict[Any, Callable[..., Any]] = {
        torch.ops.aten._int_mm.default: lambda a, b: op.MatMulInteger(a, b),
        torch.ops.aten._weight_int8pack_mm.default: _product,
    }
    return products if packet is None else {packet.default: _quantised, **products}


def _product(x: Any, weight: Any, scales: Any) -> Any:
    """Convert the product of floats and a transposed matrix of int8.

    The rows of the matrix have scales.
    """
    return op.Mul(op.MatMul(x, op.CastLike(op.Transpose(weight, perm=[1, 0]), x)), scales)


def _quantised(
    x: Any, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: int
) -> Any:
    """Convert the rounding to integers.

    The exporter ignores the range of the integers, which may be smaller than the range of their
    type.
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


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of the operators whose scales are tensors, if they are defined.

    Programs use them where they choose a scale for each run, or for each row or group of columns.
    PyTorch's exporter has no form of them.
    """
    operators = torch.ops.quantized_decomposed
    if not hasattr(operators, "choose_qparams"):
        return {}
    return {
        operators.choose_qparams.tensor: _chosen,
        operators.choose_qparams_per_token_asymmetric.default: _chosen_of_rows,
        operators.choose_qparams_symmetric.tensor: _chosen_without_zero,
        operators.dequantize_per_channel_group.default: _floats_of_groups,
        operators.dequantize_per_tensor.tensor: _floats,
        operators.dequantize_per_token.default: _floats_of_rows,
        operators.quantize_per_tensor.tensor: _integers,
        operators.quantize_per_token.default: _integers_of_rows,
    }


def _chosen(x: Any, low: int, high: int, eps: float, dtype: torch.dtype) -> tuple[Any, Any]:
    """Choose the scale and the zero point for all numbers of `x`, so that 0 is exact."""
    del dtype
    least, most = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = ((most - least) / (high - low)).float().clamp(min=eps)
    zero = (low - (least / scale).round()).clamp(low, high)
    return scale.double().reshape(1), zero.to(torch.int64).reshape(1)


def _chosen_without_zero(
    x: Any, low: int, high: int, eps: float, dtype: torch.dtype
) -> tuple[Any, Any]:
    """Choose the scale for all numbers of `x`; 0 becomes the middle of the range."""
    largest = torch.maximum(-x.amin().clamp(max=0), x.amax().clamp(min=0))
    scale = (largest / ((high - low) / 2)).float().clamp(min=eps)
    zero = 128 if dtype == torch.uint8 else 0
    return scale.double().reshape(1), torch.full((1,), zero, dtype=torch.int64)


def _chosen_of_rows(x: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    del dtype
    least, most = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((most - least) / 255.0).clamp(min=torch.finfo(torch.float32).eps)
    below, above = -128 - least / scale, 127 - most / scale
    is_nearer = (-128 + least / scale) + (127 + most / scale) > 0
    zero = torch.where(is_nearer, below, above).clamp(-128, 127).round()
    return scale.double(), zero.to(torch.int64)


def _integers(
    x: Any, scale: Any, zero: Any, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    inverse = (1.0 / scale.double()).float().reshape(())
    return ((x.float() * inverse).round() + zero.reshape(())).clamp(low, high).to(dtype)


def _floats(
    x: Any,
    scale: Any,
    zero: Any,
    low: int,
    high: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    del low, high, dtype
    numbers = x.to(out_dtype or torch.float32)
    return (numbers - zero.reshape(()).to(numbers.dtype)) * scale.reshape(()).to(numbers.dtype)


def _integers_of_rows(
    x: Any, scales: Any, zeros: Any, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    return (x * (1.0 / scales) + zeros).round().clamp(low, high).to(dtype)


def _floats_of_rows(
    x: Any,
    scales: Any,
    zeros: Any,
    low: int,
    high: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype,
) -> torch.Tensor:
    del low, high, dtype
    return ((x - zeros) * scales).to(output_dtype)


def _floats_of_groups(
    x: Any,
    scales: Any,
    zeros: Any,
    low: int,
    high: int,
    dtype: torch.dtype,
    group_size: int,
    output_dtype: torch.dtype,
) -> torch.Tensor:
    """Return the floats of integers that have a scale for each group of columns."""
    del low, high, dtype
    groups = x.reshape(-1, min(group_size, x.shape[-1]))
    zero = 0 if zeros is None else zeros.reshape(-1, 1)
    return ((groups - zero) * scales.reshape(-1, 1)).reshape(x.shape).to(output_dtype)
