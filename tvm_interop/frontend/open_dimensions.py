"""Finds the open dimensions of an ONNX model: those without a fixed size, such as the batch.

One error message lists all open dimensions. Users can set dimensions by their names.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from ..errors import CannotFillUpError, InputError, UnsupportedModelError, did_you_mean
from ..models.source import read_for_import
from ..program.row_axis import UNNAMED, unnamed_dimension
from .declared_dims import Dims, declared_dims
from .torch_program import as_onnx, is_exported_program

_IMAGE_SIZE, _LENGTH = 224, 64
"""Example sizes for the error message.

The first size is for the height and width of an image. The second size is for any other dimension
except the batch, whose size in the example is 1.
"""


def is_open(dims: Dims) -> bool:
    """Whether the rank of an input is unknown, or one of its dimensions has no fixed size."""
    return dims is None or not all(isinstance(dim, int) for dim in dims)


def open_dimensions_error(inputs: Mapping[str, Dims], note: str = "") -> UnsupportedModelError:
    """Return the error for open dimensions, with an example of how to set all dimensions.

    Parameters
    ----------
    note: a text that is added at the end of the message.
    """
    sizes = _example_sizes(inputs)
    shapes = {name: _example_shape(dims, sizes) for name, dims in inputs.items()}
    told = " and ".join(f"`{name}` has {_in_words(dims)}" for name, dims in inputs.items())
    typed = " ".join(f"{name}:[{','.join(map(str, s))}]" for name, s in shapes.items())
    given = ", ".join(f'"{name}": {shape}' for name, shape in shapes.items())
    by_name = ""
    if sizes and all(dims is not None and UNNAMED not in dims for dims in inputs.values()):
        listed = ",".join(f"{name}={size}" for name, size in sizes.items())
        by_name = f'by name, --dim "{listed}" on the command line, or by shape, '
    return UnsupportedModelError(
        f"input {told}, and a schedule needs every dimension: give them, for example {by_name}"
        f'input_shapes={{{given}}}, or on the command line --input-shapes "{typed}"{note}'
    )


def shapes_of_dims(
    model: str | os.PathLike[str] | onnx.ModelProto, sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of those inputs whose open dimensions all have a size in `sizes`.

    Parameters
    ----------
    sizes: the sizes of dimensions, by the dimensions' names in the model.

    Raises
    ------
    InputError
        `sizes` names a dimension that the model lacks or that is not open, or a size is below 1.
    UnsupportedModelError
        The model cannot be read, as for `models.source.read_onnx`.
    """
    inputs = _inputs_of(model)
    known = list(dict.fromkeys(name for dims in inputs.values() for name in _names_in(dims)))
    for name, size in sizes.items():
        if name not in known:
            told = f"; input `{name}` has {_in_words(inputs[name])}" if name in inputs else ""
            raise InputError(
                f"the model has no open dimension `{name}`{did_you_mean(name, known)}; it has "
                f"{', '.join(f'`{each}`' for each in known) or 'none that has a name'}{told}"
            )
        if size < 1:
            raise InputError(f"dimension `{name}` is given the size {size}: sizes start at 1")
    shapes = {}
    for input_name, dims in inputs.items():
        found = [size_of(dim, sizes) for dim in dims or ()]
        if is_open(dims) and found and all(size is not None for size in found):
            shapes[input_name] = tuple(size for size in found if size is not None)
    return shapes


def shapes_in_words(model: str | os.PathLike[str] | onnx.ModelProto, names: Sequence[str]) -> str:
    """Return the inputs `names` and their shapes as a text for an error message."""
    inputs = _inputs_of(model)
    return " and ".join(f"input `{name}`, which has {_in_words(inputs[name])}" for name in names)


def check_all_given(
    model: str | os.PathLike[str] | onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise UnsupportedModelError if an input has open dimensions and no shape in `shapes`."""
    inputs = _inputs_of(model)
    missing = {n: dims for n, dims in inputs.items() if is_open(dims) and n not in shapes}
    if missing:
        raise open_dimensions_error(missing)


def axes_of_dim(model: str | os.PathLike[str] | onnx.ModelProto, name: str) -> dict[str, int]:
    """Return, for each input with the dimension `name`, the axis of this dimension.

    The keys of the result are the names of the inputs. The axis may have several indices for each
    index of the dimension, as in `2*name`.

    Raises
    ------
    CannotFillUpError
        An input has the dimension twice, or in a sum such as `past + 1`.
    UnsupportedModelError
        The model cannot be read, as for `models.source.read_onnx`.
    """
    axes: dict[str, int] = {}
    for input_name, dims in _inputs_of(model).items():
        found = [axis for axis, dim in enumerate(dims or ()) if name in _names_in((dim,))]
        if len(found) > 1 or not all(_is_multiple((dims or ())[axis], name) for axis in found):
            raise CannotFillUpError(
                f"input `{input_name}` has {_in_words(dims)}, and a dimension with a range may not "
                "occur twice in an input, or within a sum",
                f": give `{name}` one size",
            )
        axes.update((input_name, axis) for axis in found)
    return axes


def axes_by_name(
    model: str | os.PathLike[str] | onnx.ModelProto,
) -> dict[str, frozenset[int]]:
    """Return, for each name of a dimension, the axes of inputs that have this dimension.

    A name that occurs in a sum or product, such as `past + 1`, is left out.

    Raises
    ------
    UnsupportedModelError
        The model cannot be read, as for `models.source.read_onnx`.
    """
    axes: dict[str, set[int]] = {}
    in_sums: set[str] = set()
    for dims in _inputs_of(model).values():
        for axis, dim in enumerate(dims or ()):
            for name in _names_in((dim,)):
                axes.setdefault(name, set()).add(axis)
                if name != dim:
                    in_sums.add(name)
    return {name: frozenset(found) for name, found in axes.items() if name not in in_sums}


def may_be_onnx(model: Any) -> bool:
    """Whether `model` is an ONNX model, or something from which an ONNX model can be made."""
    return isinstance(model, str | os.PathLike | onnx.ModelProto) or is_exported_program(model)


def _inputs_of(model: str | os.PathLike[str] | onnx.ModelProto) -> dict[str, Dims]:
    """Return the dimensions of each input that is not a weight.

    Raises
    ------
    InputError
        The model is neither an ONNX model nor a program of `torch.export`.
    """
    if not may_be_onnx(model):
        raise InputError(
            "sizes by the names of dimensions can be given for ONNX models and for programs of "
            f"torch.export, and this is a `{type(model).__name__}`: give `input_shapes` (on the "
            "command line, --input-shapes), once for each size"
        )
    model = as_onnx(model)
    graph = (model if isinstance(model, onnx.ModelProto) else read_for_import(model)).graph
    weights = {tensor.name for tensor in graph.initializer}
    return {v.name: declared_dims(v) for v in graph.input if v.name not in weights}


def _names_in(dims: Dims) -> list[str]:
    """Return the names that occur in `dims`."""
    texts = [dim for dim in dims or () if isinstance(dim, str) and dim != UNNAMED]
    factors = (each for text in texts for term in _terms(text) for each in term)
    return [factor for factor in factors if not factor.isdigit()]


def _terms(text: str) -> list[list[str]]:
    """Return the factors of each term of a sum. Exporters write some dimensions as sums, such as
    `2*past + 1`.
    """
    return [[factor.strip() for factor in term.split("*")] for term in text.split("+")]


def _is_multiple(dim: int | str, name: str) -> bool:
    """Whether a dimension is `name`, or a product of `name` and numbers."""
    terms = _terms(str(dim))
    factors = [factor for factor in terms[0] if not factor.isdigit()]
    return len(terms) == 1 and factors == [name]


def size_of(dim: int | str, sizes: Mapping[str, int]) -> int | None:
    """The size of a dimension of an input; None if `sizes` lacks a name in the dimension."""
    if isinstance(dim, int):
        return dim
    total = 0
    for term in _terms(dim):
        factors = [int(each) if each.isdigit() else sizes.get(each) for each in term]
        known = [factor for factor in factors if factor is not None]
        if len(known) < len(factors):
            return None
        total += math.prod(known)
    return total


def _example_sizes(inputs: Mapping[str, Dims]) -> dict[str, int]:
    """Return an example size for each name, the same for all dimensions with that name."""
    sizes: dict[str, int] = {}
    for input_name, dims in inputs.items():
        for axis, dim in enumerate(dims or ()):
            is_unnamed = dim == unnamed_dimension(input_name, axis)
            for name in _names_in((dim,)):
                told = "" if is_unnamed else name
                sizes.setdefault(name, _example_size(told, axis, dims or ()))
    return sizes


def _example_shape(dims: Dims, sizes: Mapping[str, int]) -> tuple[int, ...]:
    if dims is None:
        return (1, 3, _IMAGE_SIZE, _IMAGE_SIZE)
    found = (size_of(dim, sizes) for dim in dims)
    return tuple(
        _example_size("", axis, dims) if size is None else size for axis, size in enumerate(found)
    )


def _example_size(name: str, axis: int, dims: Sequence[int | str]) -> int:
    if axis == 0 or "batch" in name.lower():
        return 1
    return _IMAGE_SIZE if len(dims) == 4 and axis >= 2 and dims[1] in (1, 3) else _LENGTH


def _in_words(dims: Dims) -> str:
    return "no shape at all" if dims is None else f"shape ({', '.join(map(str, dims))})"
