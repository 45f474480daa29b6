"""Makes small ONNX networks for tests, with seeded weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    """Builds an ONNX model operator by operator.

    The name of an operator is the name of its first output.
    """

    def __init__(self, *, name_nodes: bool = True) -> None:
        self._rng = np.random.default_rng(0)
        self._name_nodes = name_nodes
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._initializers: list[onnx.TensorProto] = []

    def input(
        self, name: str, shape: Sequence[int | str] | None, dtype: int = TensorProto.FLOAT
    ) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def weight(self, *shape: int, scale: float = 0.2) -> str:
        return self.constant((self._rng.standard_normal(shape) * scale).astype(np.float32))

    def positive(self, *shape: int) -> str:
        return self.constant(self._rng.uniform(0.5, 1.5, shape).astype(np.float32))

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self._initializers)}"
        self._initializers.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, inputs: Sequence[str], *outputs: str, **attrs: object) -> str:
        name = f"{outputs[0]}/{kind}" if self._name_nodes else ""
        self._nodes.append(helper.make_node(kind, inputs, outputs, name=name, **attrs))
        return outputs[0]

    def conv(self, x: str, out: str, channels: tuple[int, int], size: int, group: int = 1) -> str:
        weights = [
            self.weight(channels[1], channels[0] // group, size, size),
            self.weight(channels[1]),
        ]
        pads = [size // 2] * 4
        return self.op("Conv", [x, *weights], out, kernel_shape=[size] * 2, pads=pads, group=group)

    def model(self, *outputs: str, opset: int = 17, check: bool = True) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes,
            "net",
            self._inputs,
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self._initializers,
        )
        opsets = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        if check:
            model = onnx.shape_inference.infer_shapes(model)
            onnx.checker.check_model(model)
        return model


def branches(*, name_nodes: bool = True, batch: int | str = 1) -> onnx.ModelProto:
    """Five branches of an image network, two of them alike, and a classifier."""
    net = Net(name_nodes=name_nodes)
    x = net.input("x", [batch, 8, 8, 8])
    pooled = net.op("MaxPool", [x], "pool", kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    convs = [
        net.conv(x, "c1", (8, 6), 1),
        net.conv(x, "c2", (8, 6), 1),
        net.conv(net.op("Relu", [net.conv(x, "c3a", (8, 4), 1)], "r3a"), "c3", (4, 6), 3),
        net.conv(x, "dw", (8, 8), 3, group=8),
        net.conv(pooled, "c4", (8, 6), 1),
    ]
    relus = [net.op("Relu", [conv], f"{conv}_relu") for conv in convs]
    net.op("Concat", relus, "cat", axis=1)
    net.op("GlobalAveragePool", ["cat"], "gap")
    net.op("Flatten", ["gap"], "flat")
    net.op("Gemm", ["flat", net.weight(10, 32), net.weight(10)], "logits", transB=1)
    net.op("Softmax", ["logits"], "y", axis=-1)
    return net.model("y")


def attention() -> onnx.ModelProto:
    """A block as in BERT: attention of two heads and a feed-forward layer, both residual."""
    net = Net()
    x = net.input("hidden.states", [1, 6, 16])
    heads = {}
    for name in ("q", "k", "v"):
        net.op("MatMul", [x, net.weight(16, 16)], f"{name}_mm")
        net.op("Add", [f"{name}_mm", net.weight(16)], f"{name}_add")
        shape = net.constant(np.array([1, 6, 2, 8], np.int64))
        net.op("Reshape", [f"{name}_add", shape], f"{name}_heads")
        perm = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        heads[name] = net.op("Transpose", [f"{name}_heads"], name, perm=perm)
    net.op("MatMul", [heads["q"], heads["k"]], "scores")
    net.op("Div", ["scores", net.constant(np.array(8**0.5, np.float32))], "scaled")
    net.op("Softmax", ["scaled"], "probs", axis=-1)
    net.op("MatMul", ["probs", heads["v"]], "context")
    net.op("Transpose", ["context"], "context_t", perm=[0, 2, 1, 3])
    net.op("Reshape", ["context_t", net.constant(np.array([1, 6, 16], np.int64))], "merged")
    net.op("Add", ["merged", x], "residual")
    net.op("LayerNormalization", ["residual", net.positive(16), net.weight(16)], "norm", axis=-1)
    net.op("MatMul", ["norm", net.weight(16, 32)], "up")
    net.op("Relu", ["up"], "up_relu")
    net.op("MatMul", ["up_relu", net.weight(32, 16)], "down")
    net.op("Add", ["down", "norm"], "out")
    return net.model("out", "probs")


def norms() -> onnx.ModelProto:
    """Batch norms after a convolution with a bias, after a shared convolution, and on an input."""
    net = Net()
    x = net.input("x", [1, 4, 5, 5])

    def norm(source: str, out: str) -> str:
        values = [net.positive(4), net.weight(4), net.weight(4), net.positive(4)]
        return net.op("BatchNormalization", [source, *values], out, epsilon=1e-3)

    net.conv(norm(x, "bn_in"), "conv", (4, 4), 3)
    norm("conv", "bn")
    net.op("Mul", ["bn", net.positive(4, 1, 1)], "scaled")
    net.op("Add", [net.weight(1, 4, 1, 1), "scaled"], "shifted")
    net.op("Relu", ["shifted"], "relu")
    net.conv("relu", "shared", (4, 4), 1)
    norm("shared", "bn_a")
    net.op("Sum", ["bn_a", "shared", "relu"], "out")
    return net.model("out")


def split() -> onnx.ModelProto:
    """An operator with three outputs, of which two are used.

    Some outputs of the model are inputs or views.
    """
    net = Net()
    x, other = net.input("x", [2, 6]), net.input("other", [2, 2])
    sizes = net.constant(np.array([1, 2, 3], np.int64))
    net.op("Split", [x, sizes], "a", "b", "c", axis=1)
    net.op("Add", ["b", other], "sum")
    net.op("Reshape", ["sum", net.constant(np.array([4], np.int64))], "flat")
    net.op("Identity", [other], "same")
    net.op("Relu", ["c"], "relu")
    net.op("Identity", ["relu"], "relu_again")
    net.op("Unsqueeze", [x, net.constant(np.array([0], np.int64))], "x_view")
    return net.model("flat", "same", "relu", "relu_again", "x_view", "a")


def inception_like(size: int = 14, channels: int = 16) -> onnx.ModelProto:
    """Two blocks of four branches, and a classifier.

    Schedulers that run operators side by side are made for such models.
    """
    net = Net()
    x, c = net.input("x", [1, 8, size, size]), 8

    def conv(source: str, out: str, c_in: int, c_out: int, kernel: int = 1) -> str:
        return net.op("Relu", [net.conv(source, out, (c_in, c_out), kernel)], f"{out}_relu")

    for block in ("a", "b"):
        one = conv(x, f"{block}1", c, channels)
        three = conv(conv(x, f"{block}3r", c, channels), f"{block}3", channels, channels, 3)
        five = conv(conv(x, f"{block}5r", c, 8), f"{block}5", 8, channels, 5)
        window = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [1, 1]}
        pooled = net.op("MaxPool", [x], f"{block}p", **window)
        pool = conv(pooled, f"{block}pp", c, channels)
        x = net.op("Concat", [one, three, five, pool], f"{block}out", axis=1)
        c = 4 * channels
    net.op("GlobalAveragePool", [x], "mean")
    net.op("Flatten", ["mean"], "flat")
    net.op("Gemm", ["flat", net.weight(10, c), net.weight(10)], "logits", transB=1)
    net.op("Softmax", ["logits"], "y", axis=-1)
    return net.model("y")


def two_inputs() -> onnx.ModelProto:
    """A model with two inputs of different shapes and two outputs.

    One output is a reshaped tensor.
    """
    net = Net()
    image, vector = net.input("image", [1, 4, 2, 2]), net.input("vector", [1, 6])
    left = net.op("Relu", [net.conv(image, "left", (4, 4), 3)], "left_relu")
    net.op("Flatten", [left], "features")
    net.op("MatMul", [vector, net.weight(6, 16)], "product")
    net.op("Relu", ["product"], "scores")
    return net.model("features", "scores")


def two_inputs_feed(seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of the model `two_inputs`."""
    return feeds(two_inputs(), seed)


def chain(length: int = 6, batch: int | str = 1) -> onnx.ModelProto:
    """A chain of convolutions, in which no two operators can run side by side."""
    net = Net()
    x = net.input("x", [batch, 4, 4, 4])
    for i in range(length):
        x = net.conv(x, f"c{i}", (4, 4), 1)
    return net.model(x)


ALL = {"branches": branches, "attention": attention, "norms": norms, "split": split}


def in_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with float16 in place of float32. Weights are rounded."""
    half = onnx.ModelProto()
    half.CopyFrom(model)
    constants = list(half.graph.initializer)
    constants += [a.t for node in half.graph.node for a in node.attribute if a.HasField("t")]
    for tensor in constants:
        if tensor.data_type == TensorProto.FLOAT:
            rounded = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    for value in [*half.graph.input, *half.graph.output, *half.graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    onnx.checker.check_model(half)
    return half


def feeds(model: onnx.ModelProto, seed: int = 1) -> dict[str, np.ndarray]:
    """Random float inputs of the shapes that `model` declares."""
    rng = np.random.default_rng(seed)
    return {
        value.name: rng.standard_normal(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in model.graph.input
    }
