"""Weights that a model keeps in other files: the large ones are read one by one.

`onnx.load` reads all at once, and the importer copies each: twice the model would be in memory.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper

from ..errors import UnsupportedModelError

_LARGE_BYTES = 2**20
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
"""Values of other types decide how a model is imported, so they are read with it."""


def read_all_but_large(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """The model at `path`, whose large weights stay in their files: see `array_of`.

    Raises
    ------
    UnsupportedModelError
        A file of weights is not there, or is too short.
    Exception
        As `onnx.load`.
    """
    model = onnx.load(path, format="protobuf", load_external_data=False)
    folder = folder_of(path)
    large = [tensor for tensor in model.graph.initializer if _is_large(tensor)]
    for tensor in large:
        tensor.data_location = TensorProto.DEFAULT  # So that it is passed over.
    try:
        external_data_helper.load_external_data_for_model(model, str(folder))
    except ValueError as error:
        raise UnsupportedModelError(
            f"`{path}` keeps weights in other files that cannot be read: {error}"
        ) from error
    for tensor in large:
        tensor.data_location = TensorProto.EXTERNAL
        _place_of(tensor, folder)
    return model


def folder_of(path: str | os.PathLike[str]) -> Path:
    """The folder that a model's other files lie in."""
    return Path(path).parent.resolve()


def is_outside(tensor: onnx.TensorProto) -> bool:
    """Whether the values of a weight are still in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def array_of(tensor: onnx.TensorProto, folder: Path) -> np.ndarray:
    """The values of a weight that is outside, read now.

    Parameters
    ----------
    folder: the model's, as `folder_of` gives it.

    Raises
    ------
    UnsupportedModelError
        Its file is not there any more, or is too short.
    """
    path, offset = _place_of(tensor, folder)
    shape, dtype = tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type)
    try:
        flat = np.fromfile(path, dtype.newbyteorder("<"), math.prod(shape), offset=offset)
        return flat.reshape(shape)
    except (OSError, ValueError) as error:
        raise _unreadable(tensor, str(error)) from error


def _is_large(tensor: onnx.TensorProto) -> bool:
    return is_outside(tensor) and tensor.data_type in _FLOATS and _nbytes_of(tensor) >= _LARGE_BYTES


def _nbytes_of(tensor: onnx.TensorProto) -> int:
    itemsize = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(math.prod(tensor.dims) * itemsize)


def _place_of(tensor: onnx.TensorProto, folder: Path) -> tuple[Path, int]:
    """The file of a weight and where in it that begins; both are looked at."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    path = (folder / told.get("location", "")).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        raise _unreadable(tensor, f"there is no file `{told.get('location')}` beside the model")
    offset, length = told.get("offset", "0"), told.get("length", str(_nbytes_of(tensor)))
    if not (offset.isdigit() and length.isdigit()) or int(length) < _nbytes_of(tensor):
        raise _unreadable(tensor, f"it is to have {length} bytes from {offset} on, and its shape "
                          f"needs {_nbytes_of(tensor)}")  # fmt: skip
    if int(offset) + _nbytes_of(tensor) > path.stat().st_size:
        raise _unreadable(tensor, f"`{path.name}` ends before it: export the model again")
    return path, int(offset)


def _unreadable(tensor: onnx.TensorProto, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the model keeps weight `{tensor.name}` in another file, and it cannot be read: {why}"
    )
