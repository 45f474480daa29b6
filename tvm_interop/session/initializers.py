"""Replaces weights of a model by those that the options of a session give, as onnxruntime does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, did_you_mean
from .ort_memory import array_of_ortvalue
from .source import model_of_bytes, model_of_path

GIVEN = "given_initializers"
"""The attribute of session options that holds the weights, as values of `OrtValue` by name."""


def with_initializers(model: Any, sess_options: Any) -> Any:
    """Return `model`, or an `onnx.ModelProto` with the weights that the session options give.

    Raises
    ------
    InputError
        The model has no weight of a given name, or a value has another type or shape.
    UnsupportedModelError
        The model cannot be read.
    """
    given: Mapping[str, Any] = getattr(sess_options, GIVEN, {})
    if not given:
        return model
    import onnx
    from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

    is_path = isinstance(model, (str, os.PathLike))
    read = model_of_path(Path(model))[0] if is_path else model_of_bytes(bytes(model))
    weights = {weight.name: weight for weight in read.graph.initializer}
    for name, value in given.items():
        if name not in weights:
            raise InputError(
                f"the session options give the weight `{name}`, and the model has no such "
                f"initializer{did_you_mean(name, list(weights))}: leave it out"
            )
        new = onnx.numpy_helper.from_array(np.asarray(array_of_ortvalue(name, value)), name)
        old = weights[name]
        if (old.data_type, list(old.dims)) != (new.data_type, list(new.dims)):
            raise InputError(
                f"the session options give the weight `{name}` as {_in_words(new)}, and the model "
                f"has it as {_in_words(old)}"
            )
        old.CopyFrom(new)
    for weight in weights.values():
        if is_path and uses_external_data(weight):
            load_external_data_for_tensor(weight, os.path.dirname(os.path.abspath(model)))
            weight.data_location = onnx.TensorProto.DEFAULT
            del weight.external_data[:]
    return read


def _in_words(tensor: Any) -> str:
    import onnx

    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return f"{dtype} of shape {tuple(tensor.dims)}"
