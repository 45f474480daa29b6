"""Compiles a model for inputs without elements, by making these inputs constants of the model.

The shape and the type of a tensor without elements determine it fully. Examples are an empty batch,
and the cache of a transformer at its first step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CannotFillUpError, InputError
from ..execution.arrays import shape_of
from ..plain_data import is_whole
from .source import Source, check_unchanged, source_of_message

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of inputs, by name."""
Ranges = Mapping[str, tuple[int, int]]
"""The least and the greatest size of each dimension with a range, by the dimension's name."""


def ranges_from_1(options: Mapping[str, Any]) -> tuple[dict[str, Any], Ranges]:
    """Return the options for `compile`, and all ranges in them as they were given.

    A range from 0 begins at 1 in the returned options, because inputs without elements are not
    compiled for a range.
    """
    shapes = options.get("shapes")
    if not isinstance(shapes, Mapping):
        return dict(options), {}
    ranges = {name: (given[0], given[1]) for name, given in shapes.items() if _is_range(given)}
    if not any(least == 0 < most for least, most in ranges.values()):
        return dict(options), ranges
    from_1 = {name: (1, most) for name, (least, most) in ranges.items() if least == 0 < most}
    return {**options, "shapes": {**shapes, **from_1}}, ranges


def _is_range(given: Any) -> bool:
    is_pair = isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2
    return is_pair and all(map(is_whole, given))


def why_not_padded(
    source: Source | None, feed: Mapping[str, Any], ranges: Ranges
) -> CannotFillUpError | None:
    """Return the error for inputs without elements, whose sizes fit each other and `ranges`.

    Return None for all other inputs.

    Parameters
    ----------
    source: the model, if it can be compiled here.
    """
    # Each run calls this function, and few inputs are empty.
    if source is None or not ranges or all(0 not in shape_of(array) for array in feed.values()):
        return None
    sizes: dict[str, int] = {}
    for info in source.inputs:
        shape = shape_of(feed[info.name]) if info.name in feed else ()
        pairs = zip(info.dimensions, shape, strict=False)
        for name, size in ((str(name), size) for name, size in pairs if name in ranges):
            least, most = ranges[name]
            if not least <= size <= most or sizes.setdefault(name, size) != size:
                return None
    if 0 not in sizes.values():
        return None
    return CannotFillUpError("inputs without elements are not padded", "")


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
