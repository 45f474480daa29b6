"""A PyTorch module that computes the same as an ONNX graph, with one PyTorch call for each node.

The module has functions for the operators of the networks in `tvm_interop.models`, including the
light networks. An unknown operator raises an error when the module is made. At that time, nodes
that depend only on constants are computed, as in other runtimes. Nothing else is folded or fused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional as F


class TorchTwin(torch.nn.Module):
    """A module that takes the inputs of an ONNX graph in order and returns a list of its outputs.

    Raises
    ------
    ValueError
        The operator of a node is not known. The message names it.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        graph = model.graph
        operators = _operators(model)
        constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self._inputs = [v.name for v in graph.input if v.name not in constants]
        self._outputs = [v.name for v in graph.output]
        self._steps: list[_Step] = []
        for node in graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            if node.op_type == "Constant":
                constants[node.output[0]] = numpy_helper.to_array(attributes["value"])
                continue
            if node.op_type not in operators:
                raise ValueError(f"node `{node.name}`: add `{node.op_type}` to the operators here")
            sources = [self._source(name, node.op_type, constants) for name in node.input]
            step = (operators[node.op_type], sources, list(node.output), attributes)
            if any(kind == "value" for kind, _ in sources):
                self._steps.append(step)
            else:
                folded = self._run(step, {})
                constants.update((name, found.numpy()) for name, found in folded.items())

    def _source(self, name: str, op_type: str, constants: dict[str, np.ndarray]) -> _Source:
        """The source of an argument: a computed value, a buffer of this module, or a literal."""
        if not name:
            return ("literal", None)
        if name not in constants:
            return ("value", name)
        array = constants[name]
        if op_type in _STEERED and array.dtype.kind == "i":
            return ("literal", [int(i) for i in array.reshape(-1)])
        if array.ndim == 0 and array.dtype.kind == "f":
            return ("literal", float(array))
        if not hasattr(self, _buffer(name)):
            self.register_buffer(_buffer(name), torch.from_numpy(np.array(array)))
        return ("buffer", _buffer(name))

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Run the graph."""
        values: dict[str, Any] = dict(zip(self._inputs, inputs, strict=True))
        for step in self._steps:
            values.update(self._run(step, values))
        return [values[name] for name in self._outputs]

    def _run(self, step: _Step, values: dict[str, Any]) -> dict[str, Any]:
        """Compute one node, and return its results by name."""
        call, sources, results, attributes = step
        args = []
        for kind, what in sources:
            if kind == "value":
                args.append(values[what])
            else:
                args.append(getattr(self, what) if kind == "buffer" else what)
        found = call(*args, **attributes)
        found = found if isinstance(found, (list, tuple)) else [found]
        return dict(zip(results, found, strict=False))


_Source = tuple[str, Any]
_Step = tuple[Callable[..., Any], list[_Source], list[str], dict[str, Any]]
_STEERED = ("Reshape", "Unsqueeze", "ReduceMean")
"""Operators whose integer constants are shapes or axes, not data."""


def _operators(model: onnx.ModelProto) -> dict[str, Callable[..., Any]]:
    """The PyTorch function of each operator, for the version of ONNX's operators in `model`."""
    versions = [opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")]
    return _OPERATORS if max(versions, default=1) >= 13 else {**_OPERATORS, **_BEFORE_13}


def _buffer(name: str) -> str:
    return "w_" + "".join(c if c.isalnum() else f"_{ord(c)}_" for c in name)


def _pads(pads: list[int] | None, rank: int) -> tuple[list[int], bool]:
    """The padding in ONNX's order (begins, then ends), and whether begins and ends are equal."""
    pads = list(pads or [0] * 2 * rank)
    return pads, pads[:rank] == pads[rank:]


def _pad(x: torch.Tensor, pads: list[int], value: float) -> torch.Tensor:
    rank = len(pads) // 2
    order = [p for i in reversed(range(rank)) for p in (pads[i], pads[rank + i])]
    return F.pad(x, order, value=value)


def _conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    strides: list[int] | None = None,
    pads: list[int] | None = None,
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
) -> torch.Tensor:
    rank = weight.ndim - 2
    pads, alike = _pads(pads, rank)
    if not alike:
        x, pads = _pad(x, pads, 0.0), [0] * 2 * rank
    conv = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return conv(x, weight, bias, strides or 1, pads[:rank], dilations or 1, group)


def _max_pool(
    x: torch.Tensor,
    *,
    kernel_shape: list[int],
    strides: list[int] | None = None,
    pads: list[int] | None = None,
    ceil_mode: int = 0,
) -> torch.Tensor:
    pads, alike = _pads(pads, len(kernel_shape))
    if not alike:
        x, pads = _pad(x, pads, -torch.inf), [0] * len(pads)
    half = pads[: len(kernel_shape)]
    return F.max_pool2d(x, kernel_shape, strides or 1, half, ceil_mode=bool(ceil_mode))


def _average_pool(
    x: torch.Tensor,
    *,
    kernel_shape: list[int],
    strides: list[int] | None = None,
    pads: list[int] | None = None,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> torch.Tensor:
    pads, alike = _pads(pads, len(kernel_shape))
    pool = functools.partial(
        F.avg_pool2d, kernel_size=kernel_shape, stride=strides or 1, ceil_mode=bool(ceil_mode)
    )
    if alike:
        half = pads[: len(kernel_shape)]
        return pool(x, padding=half, count_include_pad=bool(count_include_pad))
    if count_include_pad:
        return pool(_pad(x, pads, 0.0))
    inside = _pad(x.new_ones(x.shape[2:])[None, None], pads, 0.0)
    # The mean must count no padding. `pool(inside)` is the share of each window that is not
    # padding.
    return pool(_pad(x, pads, 0.0)) / pool(inside)


def _batch_norm(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
) -> torch.Tensor:
    return F.batch_norm(x, mean, variance, scale, bias, eps=epsilon)


def _gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> torch.Tensor:
    a, b = a.t() if transA else a, b.t() if transB else b
    if c is None:
        return alpha * (a @ b)
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


def _layer_norm(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> torch.Tensor:
    return F.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


def _reduce_mean(x: torch.Tensor, axes: list[int], keepdims: int) -> torch.Tensor:
    return x.mean(dim=axes, keepdim=bool(keepdims))


_OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": torch.add,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": lambda x, to: x.to(_TYPES[to]),
    "Concat": lambda *xs, axis: torch.cat(xs, axis),
    "Conv": _conv,
    "Div": torch.div,
    "Erf": torch.erf,
    "Flatten": lambda x, axis=1: x.reshape(int(np.prod(x.shape[:axis])), -1),
    "Gather": lambda x, i, axis=0: _gather(x, i, axis),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda x: x.mean(dim=(2, 3), keepdim=True),
    "Identity": lambda x: x,
    "Dropout": lambda x, *_, **__: x,  # Inference drops nothing.
    "LRN": lambda x, *, size, alpha=1e-4, beta=0.75, bias=1.0: F.local_response_norm(
        x, size, alpha, beta, bias
    ),
    "LayerNormalization": _layer_norm,
    "MatMul": torch.matmul,
    "MaxPool": _max_pool,
    "Mul": torch.mul,
    "Pow": torch.pow,
    "ReduceMean": lambda x, over=None, *, axes=None, keepdims=1: _reduce_mean(
        x, over if axes is None else axes, keepdims
    ),
    "Relu": F.relu,
    "Reshape": lambda x, shape: x.reshape(shape),
    "Sigmoid": torch.sigmoid,
    "Softmax": lambda x, axis=-1: F.softmax(x, axis),
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    "Sum": lambda *xs: functools.reduce(torch.add, xs),
    "Tanh": torch.tanh,
    "Transpose": lambda x, perm: x.permute(perm),
    "Unsqueeze": lambda x, axes: _unsqueezed(x, axes),
}

_BEFORE_13: dict[str, Callable[..., Any]] = {
    "Softmax": lambda x, axis=1: F.softmax(x.flatten(axis), -1).reshape(x.shape),
}
"""Operators that differ before version 13 of ONNX's operators. There, Softmax normalises over
`axis` and all later axes together."""

_TYPES = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.INT64: torch.int64,
    onnx.TensorProto.BOOL: torch.bool,
}


def _gather(x: torch.Tensor, index: torch.Tensor, axis: int) -> torch.Tensor:
    if axis == 0 and x.ndim == 2:
        return F.embedding(index, x)
    found = x.index_select(axis, index.reshape(-1))
    return found.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def _unsqueezed(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    for axis in sorted(axes):
        x = x.unsqueeze(axis)
    return x
