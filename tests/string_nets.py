"""Small models whose outputs are strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.classical import DOMAIN

LABELS = ["no", "perhaps", "Käse 🧀", "no"]
"""The labels of four classes. Two of them are equal, and one is not ASCII."""
FEATURES = 4
CATEGORIES = ["low", "Hoch ↑"]


def graph(
    nodes: Sequence[onnx.NodeProto],
    x: np.ndarray | Sequence[Any],
    outputs: dict[str, int],
    constants: Sequence[onnx.TensorProto] = (),
    *,
    version: int = 3,
) -> onnx.ModelProto:
    """A model that reads `x`, an array or the sizes of rows of float32.

    Parameters
    ----------
    outputs: the type of each output, by name.
    version: the opset of `ai.onnx.ml`.
    """
    is_array = isinstance(x, np.ndarray)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype) if is_array else TensorProto.FLOAT
    given = helper.make_tensor_value_info("x", kind, x.shape if is_array else x)
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    made = helper.make_graph(nodes, "g", [given], results, constants)
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(made, opset_imports=opsets, ir_version=9)


def ml(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> onnx.NodeProto:
    """A node of the domain `ai.onnx.ml`, named after its first output."""
    return helper.make_node(kind, inputs, outputs, outputs[0], domain=DOMAIN, **attrs)


def texts(name: str, values: Sequence[str]) -> onnx.TensorProto:
    """A constant of strings with one axis."""
    return helper.make_tensor(name, TensorProto.STRING, [len(values)], values)


def classifier(rows: int | str = 5) -> onnx.ModelProto:
    """A linear classifier of four classes with the outputs `label` and `scores`."""
    weights = np.random.default_rng(8).standard_normal((len(LABELS), FEATURES))
    node = ml(
        "LinearClassifier",
        ["x"],
        ["label", "scores"],
        coefficients=weights.ravel().tolist(),
        intercepts=[0.5, 0.0, -0.5, 0.1],
        post_transform="SOFTMAX",
        classlabels_strings=LABELS,
    )
    outputs = {"label": TensorProto.STRING, "scores": TensorProto.FLOAT}
    return graph([node], [rows, FEATURES], outputs)


def features(rows: int = 5) -> np.ndarray:
    """Rows of features that `classifier` gives several labels for."""
    return np.random.default_rng(1).standard_normal((rows, FEATURES)).astype(np.float32)


def encoder(rows: int | str = 5) -> onnx.ModelProto:
    """A model that reads categories as strings, `x`, and numbers, `n`, and gives a label, `label`.

    Unknown categories become a row of zeros.
    """
    nodes = [
        ml("OneHotEncoder", ["x"], ["ones"], cats_strings=CATEGORIES, zeros=1),
        helper.make_node("Flatten", ["ones"], ["flat"]),
        helper.make_node("Concat", ["flat", "n"], ["all"], axis=1),
        *classifier(rows).graph.node,
    ]
    nodes[-1].input[0] = "all"
    model = graph(nodes, [rows, 1], {"label": TensorProto.STRING})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    n = helper.make_tensor_value_info("n", TensorProto.FLOAT, [rows, FEATURES - len(CATEGORIES)])
    model.graph.input.append(n)
    return model
