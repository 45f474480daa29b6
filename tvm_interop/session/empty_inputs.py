"""Compiles a model for inputs without elements, by making these inputs constants of the model.

The shape and the type of a tensor without elements determine it fully. Examples are an empty batch,
and the cache of a transformer at its first step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from .source import Source, check_unchanged, source_of_message

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of inputs, by name."""


def without_empty(source: Source, shapes: Shapes) -> tuple[Source, dict[str, tuple[int, ...]]]:
    """Return the model with the empty inputs as constants, and the shapes of the other inputs.

    If no input is empty, the model is `source` itself.

    Parameters
    ----------
    shapes: the shapes of the inputs with open dimensions.

    Raises
    ------
    InputError
        The model is not an ONNX model.
    ExecutionError
        The model's file has changed since the session was made.
    """
    empty = {name: shape for name, shape in shapes.items() if 0 in shape}
    if not empty:
        return source, dict(shapes)
    check_unchanged(source)
    model = _with_constants(_message_of(source, empty), empty)
    rest = {name: shape for name, shape in shapes.items() if name not in empty}
    return source_of_message(model, source.name), rest


def _message_of(source: Source, empty: Shapes) -> Any:
    """Return a copy of the model as an `onnx.ModelProto` with all its weights."""
    import onnx

    model = source.model
    if isinstance(model, (str, os.PathLike)) and Path(model).suffix != ".pt2":
        from ..models.source import read_onnx

        return read_onnx(model)
    if not isinstance(model, onnx.ModelProto):
        name, shape = next(iter(empty.items()))
        raise InputError(
            f"input `{name}` has shape {shape} and so no elements, which only ONNX models can "
            "take: leave the run out"
        )
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied


def _with_constants(model: Any, empty: Shapes) -> Any:
    import numpy as np
    import onnx

    kept = []
    for value in model.graph.input:
        if value.name not in empty:
            kept.append(value)
            continue
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        array = np.empty(empty[value.name], dtype)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model
