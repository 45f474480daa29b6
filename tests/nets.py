"""Small networks for tests, as ONNX models with seeded weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class NetBuilder:
    """Puts an ONNX graph together; every node is named after its output."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, *shape: int) -> str:
        scale = 1 / np.sqrt(max(np.prod(shape[1:]), 1))
        array = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op_type: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
        return output

    def conv(self, x: str, output: str, c_in: int, c_out: int, kernel: int = 1) -> str:
        """Convolution with bias and ReLU that keeps height and width."""
        weight = self.weight(f"{output}_w", c_out, c_in, kernel, kernel)
        bias = self.weight(f"{output}_b", c_out)
        pads = [kernel // 2] * 4
        before_relu = self.node("Conv", [x, weight, bias], f"{output}_conv", pads=pads)
        return self.node("Relu", [before_relu], output)

    def model(
        self, inputs: dict[str, list[int | str]], outputs: dict[str, list[int]]
    ) -> onnx.ModelProto:
        def infos(shapes: dict[str, list]) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()
            ]

        graph = helper.make_graph(
            self.nodes, "net", infos(inputs), infos(outputs), initializer=self.weights
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        onnx.checker.check_model(model)
        return model


def inception_like(size: int = 14, channels: int = 16) -> onnx.ModelProto:
    """Two blocks of four branches, then a classifier: what inter-operator scheduling is for."""
    net = NetBuilder()
    x, c = "x", 8
    for block in ("a", "b"):
        one = net.conv(x, f"{block}1", c, channels)
        three = net.conv(net.conv(x, f"{block}3r", c, channels), f"{block}3", channels, channels, 3)
        five = net.conv(net.conv(x, f"{block}5r", c, 8), f"{block}5", 8, channels, 5)
        pooled = net.node(
            "MaxPool", [x], f"{block}p", kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1]
        )
        pool = net.conv(pooled, f"{block}pp", c, channels)
        x = net.node("Concat", [one, three, five, pool], f"{block}out", axis=1)
        c = 4 * channels
    mean = net.node("GlobalAveragePool", [x], "mean")
    flat = net.node("Flatten", [mean], "flat")
    logits = net.node(
        "Gemm", [flat, net.weight("fc_w", 10, c), net.weight("fc_b", 10)], "logits", transB=1
    )
    net.node("Softmax", [logits], "y", axis=-1)
    return net.model({"x": [1, 8, size, size]}, {"y": [1, 10]})


def two_inputs() -> onnx.ModelProto:
    """Two inputs of different shapes, two outputs, one of which is a reshaped intermediate."""
    net = NetBuilder()
    left = net.conv("image", "left", 4, 4, 3)
    flat = net.node("Flatten", [left], "flat")
    right = net.node("MatMul", ["vector", net.weight("m", 6, 16)], "right")
    net.node("Relu", [right], "scores")
    net.node("Identity", [flat], "features")
    return net.model(
        {"image": [1, 4, 2, 2], "vector": [1, 6]}, {"features": [1, 16], "scores": [1, 16]}
    )
