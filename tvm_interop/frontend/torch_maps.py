"""Converts PyTorch's `map` to ONNX: a function that is applied to each row of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.onnx._internal.exporter._torchlib.ops.hop import higher_order_scan


def conversions() -> Mapping[Any, Callable[..., Any]]:
    """Return the conversion of each operator of this module."""
    return {torch.ops.higher_order.map_impl: _mapped}


def _mapped(function: Any, rows: Sequence[Any], others: Sequence[Any]) -> Any:
    """Convert `map` to ONNX's `Scan`, which then keeps nothing from row to row."""
    return higher_order_scan(function, [], rows, others)
