"""Real architectures with seeded random weights, from the light models in the onnx wheel.

ONNX ships well-known networks for its own tests, with all weights replaced by one constant. This
module gives them random weights instead, of such a size that activations neither vanish nor
overflow. With random weights, a wrong computation changes the output.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import UnsupportedModelError

_RESIDUAL_GAIN = 0.25
"""Scale of a batch norm at the end of one branch of a residual sum, if the other branch does not
end in a batch norm. With a scale of 1, each such sum would double the variance of the
activations."""

_SHORTCUT_GAIN = 0.7
"""Scale of a batch norm if both branches of a sum end in a batch norm. With this scale, each branch
contributes about half the variance of the sum."""

_CLASSIFIER_GAIN = 0.3
"""Scale of the last layer's weights. It keeps logits so small that the softmax does not become
one-hot."""

_MATRICES = ("conv", "dense", "transposed dense")
_VIEWS = ("Unsqueeze", "Reshape")


def names() -> list[str]:
    """The sorted names of the models, such as `squeezenet`."""
    return sorted(path.stem.removeprefix("light_") for path in _folder().glob("light_*.onnx"))


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """The model `name` with weights drawn from `seed`. Equal seeds give equal models.

    Weights have the variance 2 / fan-in (He). The batch norms have such parameters that each
    changes its input little, and biases are small.

    Raises
    ------
    UnsupportedModelError
        There is no model of that name; the message lists all names.
    """
    if name not in names():
        raise UnsupportedModelError(
            f"there is no light model `{name}`: there are {', '.join(names())}"
        )
    model = onnx.load(_folder() / f"light_{name}.onnx")
    graph = model.graph
    weights = _weight_shapes(graph)
    roles = _roles(graph, weights)
    rng = np.random.default_rng(seed)
    drawn = {weight: _draw(rng, role, weights[weight]) for weight, role in roles.items()}
    drawn[[weight for weight, role in roles.items() if role in _MATRICES][-1]] *= _CLASSIFIER_GAIN

    kept = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type != onnx.TensorProto.FLOAT
    }
    nodes = [node for node in graph.node if node.output[0] not in weights]
    used = {value for node in nodes for value in node.input}
    listed = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in listed]

    model.ir_version = 8  # Since IR version 4 of ONNX, weights need not be inputs.
    _replace(graph.node, nodes)
    _replace(graph.input, inputs)
    initializers = [numpy_helper.from_array(array, weight) for weight, array in drawn.items()]
    initializers += [tensor for weight, tensor in kept.items() if weight in used]
    _replace(graph.initializer, initializers)
    onnx.checker.check_model(model)
    return model


def _folder() -> Path:
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def _weight_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Shapes of the float weights: initializers, and the outputs of `ConstantOfShape` nodes."""
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {
        tensor.name: tuple(tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
    }
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            dims = numpy_helper.to_array(initializers[node.input[0]])
            shapes[node.output[0]] = tuple(int(dim) for dim in dims)
    return shapes


def _roles(graph: onnx.GraphProto, weights: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """The role of each weight in the operator that reads it, such as `conv`, `bias` or `scale`.

    The weights are in the order in which operators read them.
    """
    producers = {node.output[0]: node for node in graph.node}
    scales = _residual_scales(graph, producers)
    roles: dict[str, str] = {}
    for node in graph.node:
        for position, value in enumerate(node.input):
            producer = producers.get(value)
            if producer is not None and producer.op_type in _VIEWS:
                value = producer.input[0]
            if value in weights and node.op_type not in _VIEWS:
                roles[value] = _role(node, position, scales.get(node.output[0], "scale"))
    return roles


def _residual_scales(
    graph: onnx.GraphProto, producers: dict[str, onnx.NodeProto]
) -> dict[str, str]:
    """Map the output of each batch norm that a sum reads to the role of the norm's scale.

    The role is `residual scale` if the norm is the only batch norm that the sum reads; otherwise
    `shortcut scale`.
    """
    roles = {}
    for node in graph.node:
        if node.op_type == "Sum":
            norms = [v for v in node.input if producers[v].op_type == "BatchNormalization"]
            role = "residual scale" if len(norms) == 1 else "shortcut scale"
            roles.update(dict.fromkeys(norms, role))
    return roles


def _role(node: onnx.NodeProto, position: int, scale: str) -> str:
    if node.op_type == "Conv":
        return ("input", "conv", "bias")[position]
    if node.op_type == "Gemm":
        transposed = any(attr.name == "transB" and attr.i for attr in node.attribute)
        return ("input", "transposed dense" if transposed else "dense", "bias")[position]
    if node.op_type == "BatchNormalization":
        return ("input", scale, "bias", "bias", "variance")[position]
    return "scale" if node.op_type == "Mul" else "bias"


def _draw(rng: np.random.Generator, role: str, shape: tuple[int, ...]) -> np.ndarray:
    array: np.ndarray
    if role in _MATRICES:
        # A dense weight may have leading dimensions of 1, which a `Reshape` in the model drops.
        sizes = {"conv": shape[1:], "dense": shape[-2:-1], "transposed dense": shape[-1:]}[role]
        array = rng.standard_normal(shape, np.float32)
        array *= np.float32(np.sqrt(2.0 / np.prod(sizes)))
    elif role == "bias":
        array = rng.standard_normal(shape) * 0.05
    else:
        array = rng.uniform(0.8, 1.2, shape)
        array *= {"residual scale": _RESIDUAL_GAIN, "shortcut scale": _SHORTCUT_GAIN}.get(role, 1)
    return array.astype(np.float32, copy=False)


def _replace(field: Any, items: list[Any]) -> None:
    """Make the protobuf list `field` hold `items`."""
    items = list(items)
    del field[:]
    field.extend(items)
