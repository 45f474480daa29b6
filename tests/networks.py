"""The benchmark networks at small sizes for tests, and their inputs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

SMALL = {
    "inception_v3": 75,
    "randwire": 40,
    "nasnet_a": 24,
    "squeezenet": 64,
    "resnet50": 48,
    "googlenet": 48,
    "bert_base": 4,
    "t5_encoder": 12,
    "wide_deep": 50,
    "dlrm": 50,
    "task_heads": 24,
    "mixture_of_experts": 24,
}
"""The size of each network's input, in pixels, tokens, rows of a table or features."""

BATCH = {"wide_deep": 16, "dlrm": 16, "task_heads": 4, "mixture_of_experts": 4}
"""The batch sizes of networks with few output numbers for each input.

Other networks have batch size 1.
"""

_VALUES = {"token_type_ids": 2, "categories": 50, "crossed": 50}
"""The number of different values of each integer input. Other integer inputs are tokens."""


def feeds(model: onnx.ModelProto, seed: int = 1) -> dict[str, np.ndarray]:
    """Random inputs of a model. The last token of each sequence is padding."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type) == np.float32:
            arrays[value.name] = rng.standard_normal(shape).astype(np.float32)
        elif value.name == "attention_mask":
            arrays[value.name] = np.ones(shape, np.int64)
            arrays[value.name][:, -1] = 0
        else:
            arrays[value.name] = rng.integers(0, _VALUES.get(value.name, 30000), shape)
    return arrays
