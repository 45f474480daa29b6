"""Writes a network as an ONNX graph, operator by operator, and draws its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..errors import InputError

_OPSET = 17
_IR_VERSION = 8
_BIAS_STD = 0.05

Size = int | tuple[int, int]


class OnnxNet:
    """Builds an ONNX model, operator by operator.

    Each method adds one or more operators under a given name, and returns the name of the value
    they compute. A convolution `mixed_5b/branch1x1` is the node `mixed_5b/branch1x1/conv`.

    Weights are drawn as in He et al.: their variance is chosen so that the mean square of an
    operator's result is about 1. For this, the mean square of every value is estimated when the
    value is added. The weights of each output channel of a convolution or classifier sum up to
    zero, except in depthwise convolutions. Without this, the mean of the activations, which ReLUs
    increase, would be much larger than the differences between inputs.

    Parameters
    ----------
    name: name of the graph.
    seed: seed of the weights. If it is None, weights have shapes but no values.
    """

    def __init__(self, name: str, seed: int | None) -> None:
        self._name = name
        self._rng = None if seed is None else np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._power: dict[str, float] = {}

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the dimensions of a value or weight."""
        return self._shapes[value]

    def input(self, name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> str:
        """Add an input to the model."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return self._known(name, tuple(shape), 1.0)

    def output(self, value: str, name: str) -> None:
        """Make `value` an output of the model, and rename it to `name`. A node must compute the
        value.
        """
        producer = next(node for node in reversed(self._nodes) if value in node.output)
        producer.output[list(producer.output).index(value)] = name
        for node in self._nodes:
            for i, source in enumerate(node.input):
                if source == value:
                    node.input[i] = name
        shape = self._shapes[value]
        self._known(name, shape, self._power[value])
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def model(self) -> onnx.ModelProto:
        """Return the model built so far."""
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, self._initializers
        )
        opsets = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="tvm_interop"
        )

    def weight(
        self,
        name: str,
        shape: Sequence[int],
        std: float,
        *,
        mean: float = 0.0,
        centred: bool = False,
    ) -> str:
        """Add a normally distributed weight `w`. If `centred`, each slice `w[i]` sums up to 0."""
        shape = tuple(shape)
        if self._rng is None:
            empty = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
            self._initializers.append(empty)
            return self._known(name, shape, std**2 + mean**2)
        array = self._rng.standard_normal(shape, np.float32)
        if centred:
            array -= array.mean(axis=tuple(range(1, len(shape))), keepdims=True)
        return self.constant(name, array * np.float32(std) + np.float32(mean))

    def constant(self, name: str, array: np.ndarray) -> str:
        """Add a weight or another constant with the given values."""
        self._initializers.append(numpy_helper.from_array(array, name))
        return self._known(name, array.shape, float(np.square(array, dtype=np.float64).mean()))

    def op(
        self,
        kind: str,
        inputs: Sequence[str],
        name: str,
        shape: Sequence[int],
        power: float | None = None,
        **attributes: Any,
    ) -> str:
        """Add a node `name` of type `kind`, whose result has the given shape.

        `power` is the estimated mean square of the node's result. The default is the mean square of
        the node's first input.
        """
        self._nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return self._known(name, tuple(shape), self._power[inputs[0]] if power is None else power)

    def conv(
        self,
        x: str,
        name: str,
        channels: int,
        kernel: Size = 1,
        stride: int = 1,
        pad: Size | None = None,
        *,
        act: bool = True,
        gain: float = 1.0,
    ) -> str:
        """Add a convolution with a bias, and a ReLU unless `act` is off.

        `pad` is the padding on each side. By default it is half the kernel size.
        """
        y = self._conv(x, f"{name}/conv", channels, kernel, stride, pad, bias=True, gain=gain)
        return self.relu(y, f"{name}/relu") if act else y

    def relu_conv(self, x: str, name: str, channels: int, stride: int = 1) -> str:
        """Add a ReLU, then a 1x1 convolution."""
        x = self.relu(x, f"{name}/relu")
        return self._conv(x, f"{name}/conv", channels, 1, stride, None, bias=True)

    def relu_sep_conv(
        self, x: str, name: str, channels: int, kernel: int = 3, stride: int = 1
    ) -> str:
        """Add a ReLU, then a separable convolution: a depthwise and a 1x1 convolution."""
        x = self.relu(x, f"{name}/relu")
        same = self._shapes[x][1]
        x = self._conv(x, f"{name}/depthwise", same, kernel, stride, None, groups=same)
        return self._conv(x, f"{name}/pointwise", channels, 1, 1, None, bias=True)

    def relu(self, x: str, name: str) -> str:
        """A ReLU."""
        return self.op("Relu", [x], name, self._shapes[x], self._power[x] / 2)

    def max_pool(self, x: str, name: str, kernel: int, stride: int, pad: int = 0) -> str:
        """Add a max pooling: the maximum of each window."""
        return self._pool("MaxPool", x, name, kernel, stride, (pad,) * 4)

    def max_pool_ceil(self, x: str, name: str, kernel: int, stride: int) -> str:
        """Add a pooling like `max_pool`, but with the output size rounded up.

        Because the size is rounded up, the last pooling windows may reach over the edge of the
        image.
        """
        pads = [-(size - kernel) % stride for size in self._shapes[x][2:]]
        return self._pool("MaxPool", x, name, kernel, stride, (0, 0, *pads))

    def avg_pool(self, x: str, name: str, kernel: int, stride: int, pad: int) -> str:
        """Add an average pooling; padding does not count towards the mean of a pooling window."""
        return self._pool("AveragePool", x, name, kernel, stride, (pad,) * 4)

    def concat(self, values: Sequence[str], name: str) -> str:
        """Add a concatenation of the values along the channels."""
        batch, _, *rest = self._shapes[values[0]]
        channels = [self._shapes[value][1] for value in values]
        total = sum(channels)
        power = sum(self._power[v] * c for v, c in zip(values, channels, strict=True)) / total
        return self.op("Concat", values, f"{name}/concat", (batch, total, *rest), power, axis=1)

    def add(self, values: Sequence[str], name: str) -> str:
        """Add an operator that computes the sum of two values or more."""
        power = sum(self._power[value] for value in values)
        kind = "Add" if len(values) == 2 else "Sum"
        shape = np.broadcast_shapes(*(self._shapes[value] for value in values))
        return self.op(kind, values, f"{name}/add", shape, power)

    def classifier(self, x: str, name: str, classes: int | None = 1000) -> str:
        """Add a global average pooling, then a fully connected layer unless `classes` is None."""
        batch, channels = self._shapes[x][:2]
        pooled = self.op("GlobalAveragePool", [x], f"{name}/pool", (batch, channels, 1, 1))
        flat = self.op("Flatten", [pooled], f"{name}/flatten", (batch, channels))
        if classes is None:
            return flat
        weight = f"{name}/fc.weight"
        # The averages of a global pooling are small: their mean square is assumed to be 1/4. The
        # weights are centred because the averages of two images differ little.
        self.weight(weight, (classes, channels), (channels / 4) ** -0.5, centred=True)
        self.weight(f"{name}/fc.bias", (classes,), _BIAS_STD)
        inputs = [flat, weight, f"{name}/fc.bias"]
        return self.op("Gemm", inputs, f"{name}/fc", (batch, classes), 1.0, transB=1)

    def linear(
        self, x: str, name: str, features: int, *, bias: bool = True, gain: float = 1.0
    ) -> str:
        """Add a fully connected layer over the last dimension, with a bias by default."""
        *rest, fan_in = self._shapes[x]
        std = gain * (fan_in * self._power[x]) ** -0.5
        weight = self.weight(f"{name}.weight", (fan_in, features), std)
        y = self.op("MatMul", [x, weight], f"{name}/matmul", (*rest, features), gain**2)
        if not bias:
            return y
        shift = self.weight(f"{name}.bias", (features,), _BIAS_STD)
        return self.op("Add", [y, shift], f"{name}/bias", (*rest, features))

    def _conv(
        self,
        x: str,
        name: str,
        channels: int,
        kernel: Size,
        stride: int,
        pad: Size | None,
        *,
        groups: int = 1,
        bias: bool = False,
        gain: float = 1.0,
    ) -> str:
        batch, fan_in, *sizes = self._shapes[x]
        kernels = _pair(kernel)
        pads = tuple(k // 2 for k in kernels) if pad is None else _pair(pad)
        shape = (channels, fan_in // groups, *kernels)
        # Depthwise kernels are not centred: each has so few weights that centring would remove
        # much of their variance.
        std = gain * (np.prod(shape[1:]) * self._power[x]) ** -0.5
        inputs = [x, self.weight(f"{name}.weight", shape, float(std), centred=groups == 1)]
        if bias:
            inputs.append(self.weight(f"{name}.bias", (channels,), _BIAS_STD))
        out = self._windows(name, sizes, kernels, stride, (*pads, *pads))
        return self.op(
            "Conv",
            inputs,
            name,
            (batch, channels, *out),
            gain**2,
            kernel_shape=kernels,
            strides=(stride, stride),
            pads=(*pads, *pads),
            group=groups,
        )

    def _pool(
        self, kind: str, x: str, name: str, kernel: int, stride: int, pads: tuple[int, ...]
    ) -> str:
        batch, channels, *sizes = self._shapes[x]
        out = self._windows(name, sizes, (kernel, kernel), stride, pads)
        return self.op(
            kind,
            [x],
            f"{name}/pool",
            (batch, channels, *out),
            kernel_shape=(kernel, kernel),
            strides=(stride, stride),
            pads=pads,
        )

    def _windows(
        self,
        name: str,
        sizes: Sequence[int],
        kernels: tuple[int, int],
        stride: int,
        pads: tuple[int, ...],
    ) -> tuple[int, ...]:
        """The number of convolution or pooling windows along the height and the width of the
        image.
        """
        spans = [size + pads[i] + pads[i + 2] - kernels[i] for i, size in enumerate(sizes)]
        if min(spans) < 0:
            raise InputError(
                f"the image is too small for `{self._name}`: nothing is left of it at `{name}`; "
                "give a larger image_size"
            )
        return tuple(span // stride + 1 for span in spans)

    def _known(self, value: str, shape: tuple[int, ...], power: float) -> str:
        if value in self._shapes:
            raise ValueError(f"`{value}` is there already")
        self._shapes[value] = tuple(int(d) for d in shape)
        self._power[value] = power
        return value


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size
