"""Changes a model as the options and inputs of a session ask, as onnxruntime does."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..artifact.artifact import Artifact
from ..errors import InputError, did_you_mean
from .ort_memory import array_of_ortvalue
from .source import model_of_bytes, model_of_path

GIVEN = "given_initializers"
"""The attribute of session options that holds the weights, as values of `OrtValue` by name."""
FIXED = "fixed_dimensions"
"""The attribute of session options that holds sizes of open dimensions.

The keys are the field of ONNX's dimensions that has the name, such as `dim_param`, and the name.
"""


def with_options(model: Any, sess_options: Any) -> Any:
    """Return `model`, or an `onnx.ModelProto` that is changed as the session options say.

    They may give weights, and sizes of open dimensions. A size of a dimension that the model does
    not have is ignored, as in onnxruntime. An artifact keeps its sizes.

    Raises
    ------
    InputError
        The model has no weight of a given name, or a value has another type or shape.
    UnsupportedModelError
        The model cannot be read.
    """
    given: Mapping[str, Any] = getattr(sess_options, GIVEN, {})
    fixed: Mapping[tuple[str, str], int] = getattr(sess_options, FIXED, {})
    if not given and (not fixed or _is_artifact(model)):
        return model
    read, folder = _read(model)
    weights = {weight.name: weight for weight in read.graph.initializer}
    for name, value in given.items():
        if name not in weights:
            raise InputError(
                f"the session options give the weight `{name}`, and the model has no such "
                f"initializer{did_you_mean(name, list(weights))}: leave it out"
            )
        _replace(weights[name], name, value)
    _load_weights(read.graph, folder)
    _fix_dimensions(read.graph, fixed)
    return read


def with_weights_as_inputs(model: Any, names: Collection[str]) -> Any:
    """Return a model as an `onnx.ModelProto` in which the weights `names` are inputs only.

    Parameters
    ----------
    model: the path of a model, or an `onnx.ModelProto`, which is not changed.
    names: weights that are also inputs.
    """
    read, folder = _read(model)
    kept = [weight for weight in read.graph.initializer if weight.name not in names]
    del read.graph.initializer[:]
    read.graph.initializer.extend(kept)
    _load_weights(read.graph, folder)
    return read


def _is_artifact(model: Any) -> bool:
    if isinstance(model, (str, os.PathLike)):
        return Path(model).is_file() and tarfile.is_tarfile(model)
    return isinstance(model, Artifact)


def _read(model: Any) -> tuple[Any, str | None]:
    """Return a model as an `onnx.ModelProto` of its own, and the folder of its weights.

    The folder is None if the model is not in a file.
    """
    import onnx

    if isinstance(model, (str, os.PathLike)):
        return model_of_path(Path(model))[0], os.path.dirname(os.path.abspath(model))
    if not isinstance(model, onnx.ModelProto):
        return model_of_bytes(bytes(model)), None
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied, None


def _load_weights(graph: Any, folder: str | None) -> None:
    """Read the weights that are in other files."""
    import onnx
    from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

    for weight in graph.initializer:
        if folder is not None and uses_external_data(weight):
            load_external_data_for_tensor(weight, folder)
            weight.data_location = onnx.TensorProto.DEFAULT
            del weight.external_data[:]


def _replace(weight: Any, name: str, value: Any) -> None:
    import onnx

    new = onnx.numpy_helper.from_array(np.asarray(array_of_ortvalue(name, value)), name)
    if (weight.data_type, list(weight.dims)) != (new.data_type, list(new.dims)):
        raise InputError(
            f"the session options give the weight `{name}` as {_in_words(new)}, and the model "
            f"has it as {_in_words(weight)}"
        )
    weight.CopyFrom(new)


def _fix_dimensions(graph: Any, fixed: Mapping[tuple[str, str], int]) -> None:
    """Give sizes to open dimensions of the inputs, and to those of the same name elsewhere."""
    sizes = {name: size for (field, name), size in fixed.items() if field == "dim_param"}
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            size = fixed.get(("denotation", dim.denotation)) if dim.denotation else None
            if size is not None and not dim.HasField("dim_value"):
                sizes.setdefault(dim.dim_param, size)
                dim.dim_value = size
    for value in (*graph.input, *graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes and dim.dim_param:
                dim.dim_value = sizes[dim.dim_param]


def _in_words(tensor: Any) -> str:
    import onnx

    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return f"{dtype} of shape {tuple(tensor.dims)}"
