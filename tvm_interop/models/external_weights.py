"""Reads models without their large weights, which are read one by one when they are needed.

`onnx.load` reads all weights at once, and the importer copies each weight. Memory would then hold
the model twice. Large weights may be in separate files, or in the file of the model itself.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper

from ..errors import UnsupportedModelError
from ..program.host_memory import aligned_empty
from .weights_in_place import read_without

_LARGE_BYTES = 2**20
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
"""Data types of large weights that stay in their files until `array_of` reads them. Weights of
other types are read with the model, because the importer may need their values, such as the sizes
for a reshape."""
_ITEMSIZES = {kind: helper.tensor_dtype_to_np_dtype(kind).itemsize for kind in _FLOATS}
_WHOLE_BYTES = (
    *_FLOATS,
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    TensorProto.BOOL,
)
"""Data types whose values each take a whole number of bytes."""
_STORED_TYPE = "tvm_interop.stored_type"
"""The key under which a weight names the type that its values have in their file, if the weight
itself has another type."""


def read_all_but_large(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """The model at `path` without its large weights, which `array_of` reads from their files.

    The file of a weight must be in the model's folder. All symbolic links are followed before this
    is checked. If the model's file is a link, as in Hugging Face's cache, a weight may also be in
    the folder of the file to which the link points.

    Raises
    ------
    UnsupportedModelError
        A file of weights is missing, is too short, or is in a folder that is not allowed.
    Exception
        Any exception that `onnx.load` raises.
    """
    light = read_without(Path(path), _ITEMSIZES, _LARGE_BYTES)
    return _with_outside(path, light or _loaded(path), _is_large)


def read_whole(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """The model at `path` with all its weights; raises the errors of `read_all_but_large`."""
    return _with_outside(path, _loaded(path), lambda tensor: False)


def _loaded(path: str | os.PathLike[str]) -> onnx.ModelProto:
    return onnx.load(path, format="protobuf", load_external_data=False)


def _with_outside(
    path: str | os.PathLike[str],
    model: onnx.ModelProto,
    is_left: Callable[[onnx.TensorProto], bool],
) -> onnx.ModelProto:
    """Read the weights of `model` that are in other files, except the weights that `is_left`
    selects.
    """
    outside = [
        tensor
        for tensor in model.graph.initializer
        if is_outside(tensor) and tensor.data_type in _WHOLE_BYTES
    ]
    left = []
    for tensor in outside:
        if is_left(tensor):
            _place_of(tensor, Path(path))
            left.append(tensor)
        else:
            tensor.raw_data = array_of(tensor, Path(path)).tobytes()
            del tensor.external_data[:]
        # `load_external_data_for_model` skips a tensor whose location is `DEFAULT`.
        tensor.data_location = TensorProto.DEFAULT
    try:
        external_data_helper.load_external_data_for_model(model, str(Path(path).parent))
    except ValueError as error:
        raise UnsupportedModelError(
            f"`{path}` keeps weights in other files that cannot be read: {error}"
        ) from error
    for tensor in left:
        tensor.data_location = TensorProto.EXTERNAL
    return model


def is_outside(tensor: onnx.TensorProto) -> bool:
    """Whether the values of a weight are still in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def widen_outside(tensor: onnx.TensorProto) -> None:
    """Give a weight of bfloat16 the type float32; its values in the other file stay bfloat16."""
    tensor.external_data.add(key=_STORED_TYPE, value=str(tensor.data_type))
    tensor.data_type = TensorProto.FLOAT


def _stored_dtype(tensor: onnx.TensorProto) -> np.dtype:
    """The type that the values of a weight have in their file."""
    told = (entry.value for entry in tensor.external_data if entry.key == _STORED_TYPE)
    is_narrow = next(told, None) == str(TensorProto.BFLOAT16)
    kind = TensorProto.BFLOAT16 if is_narrow else tensor.data_type
    dtype: np.dtype = helper.tensor_dtype_to_np_dtype(kind)
    return dtype


def array_of(tensor: onnx.TensorProto, model: Path) -> np.ndarray:
    """Read the values of a weight that is in another file, without a temporary copy.

    Parameters
    ----------
    model: the path of the model's own file.

    Raises
    ------
    UnsupportedModelError
        The file of the weight is missing, or is too short.
    """
    path, offset = _place_of(tensor, model)
    shape, stored = tuple(tensor.dims), _stored_dtype(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    try:
        array = aligned_empty(shape, stored)
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            _read_into(array.reshape(-1).view(np.uint8).data, file)
    except (OSError, ValueError) as error:
        raise _unreadable(tensor, model, str(error)) from error
    return array.astype(dtype, copy=False)


def _read_into(memory: memoryview, file: io.RawIOBase) -> None:
    """Fill `memory` from `file`. Linux reads at most 2 GiB in one call.

    Raises
    ------
    ValueError
        The file ends too early.
    """
    done = 0
    while done < memory.nbytes:
        read = file.readinto(memory[done:])
        if not read:
            raise ValueError("the file ends before the end of the weight")
        done += read


def _is_large(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _FLOATS and _nbytes_of(tensor) >= _LARGE_BYTES


def _nbytes_of(tensor: onnx.TensorProto) -> int:
    return int(math.prod(tensor.dims) * _stored_dtype(tensor).itemsize)


def _place_of(tensor: onnx.TensorProto, model: Path) -> tuple[Path, int]:
    """Check and return the file of a weight, and the offset of the weight in bytes."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    path = (model.parent / told.get("location", "")).resolve()
    folders = (model.parent.resolve(), model.resolve().parent)
    if not path.is_file() or not any(path.is_relative_to(folder) for folder in folders):
        raise _unreadable(
            tensor, model, f"there is no file `{told.get('location')}` beside the model"
        )
    offset, length = told.get("offset", "0"), told.get("length", str(_nbytes_of(tensor)))
    if not (offset.isdigit() and length.isdigit()) or int(length) < _nbytes_of(tensor):
        needed = _nbytes_of(tensor)
        why = (
            f"the model gives it {length} bytes at offset {offset}, and its shape needs "
            f"{needed} bytes"
        )
        raise _unreadable(tensor, model, why)
    if int(offset) + _nbytes_of(tensor) > path.stat().st_size:
        raise _unreadable(
            tensor,
            model,
            f"`{path.name}` ends before the end of the weight: export the model again",
        )
    return path, int(offset)


def _unreadable(tensor: onnx.TensorProto, model: Path, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"`{model}` keeps weight `{tensor.name}` in another file, and it cannot be read: {why}"
    )
