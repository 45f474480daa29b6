"""Checks the sizes of inputs for an ONNX model converted from a program of `torch.export`.

An exported program holds only the code for the sizes in its example and its ranges. A branch for
odd batch sizes, for example, may be missing. PyTorch stores the conditions that it assumed for the
sizes, and refuses to run the program if one is not met. This package does the same:
`torch_program.py` writes the conditions as texts into the metadata of the ONNX model, and this
module checks them.

The conditions are texts in Python, but they are not executed as Python code. This module evaluates
their syntax trees, and supports only the operations in `_OPERATIONS` and `_FUNCTIONS`.
"""

from __future__ import annotations

import ast
import functools
import json
import logging
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import onnx

from ..errors import InputError, UnsupportedModelError
from .declared_dims import declared_dims

_LOG = logging.getLogger("tvm_interop")
_USUAL = 2
"""The smallest size that PyTorch assumes for a dimension, unless the dimension has a fixed size.
"""
_KEY = "tvm_interop.sizes"
"""The key of the entry in the model's metadata that holds a `SizeConditions` as JSON."""

_OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "max": max,
    "Max": max,
    "min": min,
    "Min": min,
}

Shapes = Mapping[str, Sequence[Any]]


class SizeConditions(NamedTuple):
    """The sizes for which a converted program may run.

    Attributes
    ----------
    origin: the program's description in messages, such as its path.
    conditions
        Texts in Python that are true for allowed sizes. A text calls methods of inputs, such as
        `x.size()[0] % 2 == 0`, or names dimensions, such as `s77 % 2 == 0`.
    ranges: the smallest and the largest size of each named dimension or sum, by its text. The
        largest size is None if there is no limit.
    outputs: the type and the dimensions of each output. A dimension is a size, or a text in Python
        that computes it from named dimensions, such as `2*s77`.
    """

    origin: str
    conditions: list[str]
    ranges: dict[str, tuple[int, int | None]]
    outputs: Sequence[tuple[str, Sequence[int | str]]] = ()


def attach(model: onnx.ModelProto, sizes: SizeConditions) -> None:
    """Write `sizes` into the metadata of the model."""
    model.metadata_props.add(key=_KEY, value=json.dumps(sizes._asdict()))


def attached(model: onnx.ModelProto) -> SizeConditions | None:
    """Return the conditions that `attach` wrote; None if the model has no conditions."""
    text = next((each.value for each in model.metadata_props if each.key == _KEY), None)
    return None if text is None else _read(text)


@functools.lru_cache(maxsize=4)
def _read(text: str) -> SizeConditions:
    return SizeConditions(**json.loads(text))


@functools.lru_cache(maxsize=64)
def _parsed(condition: str) -> ast.AST:
    """Parse a condition. The result is cached, because a condition is checked for each size of a
    range.
    """
    return ast.parse(condition, mode="eval").body


def check_sizes(model: onnx.ModelProto, shapes: Shapes) -> None:
    """Refuse shapes of inputs with sizes that the program was not exported for.

    A condition that cannot be evaluated is not checked, and a warning says so. If the program's
    smallest size is 2, the sizes 0 and 1 are allowed too. PyTorch writes 2 if it was given no
    smallest size, and then runs the program for 0 and 1 too.

    Parameters
    ----------
    shapes: the shapes of the inputs that have open dimensions.

    Raises
    ------
    InputError
        The message names the dimension or the condition.
    """
    sizes = attached(model)
    if sizes is None:
        return
    dims = {value.name: declared_dims(value) or () for value in model.graph.input}
    if all(isinstance(dim, int) for each in dims.values() for dim in each):
        return
    shapes = {**dims, **shapes}
    by_name: dict[str, int] = {}
    for name, dim, size in _named_sizes(model, shapes):
        _check_range(name, dim, size, sizes.ranges)
        by_name.setdefault(dim, size)
    for condition in sizes.conditions:
        if not _holds(condition, shapes, by_name, sizes.origin):
            given = ", ".join(f"`{n}` {tuple(s)}" for n, s in shapes.items())
            raise InputError(
                f"{sizes.origin} does not run for the input shapes {given}: it was exported under "
                f"the condition `{condition}`. Give sizes that meet it, or export the program for "
                "these sizes"
            )


def ranges_in_words(model: onnx.ModelProto) -> str:
    """The ranges that a program was exported for, as the end of an error message about sizes.

    Dimensions without a largest size and sums are left out. The text is empty if all dimensions are
    left out.
    """
    sizes = attached(model)
    if sizes is None:
        return ""
    dims = {dim for value in model.graph.input for dim in declared_dims(value) or ()}
    ends = {
        name: (max(1, least), most)
        for name, (least, most) in sizes.ranges.items()
        if name in dims and name.isidentifier() and most
    }
    if not ends:
        return ""
    told = " and ".join(f"`{name}` from {least} to {most}" for name, (least, most) in ends.items())
    if not all(isinstance(dim, int) or dim.isidentifier() for dim in dims):
        return f". The program was exported for {told}"  # A sum such as `s77 + 1` has no range.
    typed = ",".join(f"{name}={least}..{most}" for name, (least, most) in ends.items())
    return f'. The program was exported for {told}, which --shapes "{typed}" compiles'


def check_results(
    model: onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]],
    results: Sequence[tuple[str, tuple[int, ...] | None]],
) -> None:
    """Refuse results whose types or shapes differ from those of the program's outputs.

    Parameters
    ----------
    shapes: the shapes of the inputs.
    results: the type and the shape of each result; None for a shape that is not fixed.

    Raises
    ------
    UnsupportedModelError
        PyTorch's exporter to ONNX has changed the meaning of an operator.
    """
    sizes = attached(model)
    if sizes is None:
        return
    by_name = {dim: size for _, dim, size in _named_sizes(model, shapes)}
    if any(size < _USUAL for size in by_name.values()):
        return  # The output shapes that PyTorch gives hold only for sizes from `_USUAL` on.
    pairs = zip(sizes.outputs, results, strict=False)
    for i, ((dtype, dims), (found_dtype, found)) in enumerate(pairs):
        shape = tuple(_size(dim, by_name) for dim in dims)
        known = shape if found is None or None in shape else found
        if (dtype, shape) != (found_dtype, known):
            raise UnsupportedModelError(
                f"output {i} of {sizes.origin} is {dtype} of shape {shape}, and becomes "
                f"{found_dtype} of shape {found} in PyTorch's exporter to ONNX: report this as a "
                "fault, with the program"
            )


def _named_sizes(model: onnx.ModelProto, shapes: Shapes) -> Iterator[tuple[str, str, int]]:
    """Yield the input's name, the text and the size of each open dimension with a known size.

    The text of a dimension is its name, or a sum such as `past + 1`.
    """
    for value in model.graph.input:
        dims = declared_dims(value) or ()
        for dim, size in zip(dims, shapes.get(value.name, ()), strict=False):
            if isinstance(dim, str) and isinstance(size, int):
                yield value.name, dim, size


def _size(dim: int | str, by_name: Mapping[str, int]) -> int | None:
    """Return a dimension's size; None if it cannot be computed from the sizes of inputs."""
    if isinstance(dim, int):
        return dim
    try:
        return int(_value(_parsed(dim), {}, by_name))
    except (KeyError, IndexError, TypeError, ValueError, SyntaxError, ZeroDivisionError):
        return None


def _check_range(
    name: str, dim: str, size: int, ranges: Mapping[str, tuple[int, int | None]]
) -> None:
    least, most = ranges.get(dim, (0, None))
    if (most is None or size <= most) and not 2 < least > size:
        return
    raise InputError(
        f"input `{name}` has {size} where the exported program has the dimension `{dim}` with "
        f"sizes from {max(1, least)} {'on' if most is None else f'to {most}'}: give such a size, "
        "or export the program for a larger range, by `torch.export.Dim` in `dynamic_shapes`"
    )


def _holds(condition: str, shapes: Shapes, by_name: Mapping[str, int], origin: str) -> bool:
    try:
        return bool(_value(_parsed(condition), shapes, by_name))
    except ZeroDivisionError:
        return False
    except (KeyError, IndexError, TypeError, ValueError, SyntaxError):
        _warn(origin, condition)
        return True


@functools.lru_cache(maxsize=64)  # Warn once for each condition, not for each size of a range.
def _warn(origin: str, condition: str) -> None:
    _LOG.warning(
        "%s was exported under the condition `%s`, which is not checked: its results are only "
        "right for sizes that meet it",
        origin,
        condition,
    )


def _value(tree: ast.AST, shapes: Shapes, by_name: Mapping[str, int]) -> Any:
    def value(inner: ast.AST) -> Any:
        return _value(inner, shapes, by_name)

    match tree:
        case ast.Constant():
            return tree.value
        case ast.Name(id=name):
            return by_name[name]
        case ast.Subscript():
            return value(tree.value)[value(tree.slice)]
        case ast.Call(func=ast.Attribute(attr=method, value=ast.Name(id=name)), args=[]):
            return _result(tuple(shapes[name]), method)
        case ast.Call(func=ast.Name(id=name)):
            return _FUNCTIONS[name](*map(value, tree.args))
        case ast.BinOp():
            return _OPERATIONS[type(tree.op)](value(tree.left), value(tree.right))
        case ast.UnaryOp():
            return _OPERATIONS[type(tree.op)](value(tree.operand))
        case ast.BoolOp(op=ast.And()):
            return all(map(value, tree.values))
        case ast.BoolOp(op=ast.Or()):
            return any(map(value, tree.values))
        case ast.Compare():
            each = [value(tree.left), *map(value, tree.comparators)]
            if not all(isinstance(side, int | float) for side in each):
                raise TypeError("only numbers are compared")
            pairs = zip(tree.ops, each, each[1:], strict=False)
            return all(_OPERATIONS[type(op)](a, b) for op, a, b in pairs)
    raise ValueError(ast.dump(tree))


def _result(shape: tuple[Any, ...], method: str) -> Any:
    """Return the result of a method of a contiguous tensor with this shape."""
    match method:
        case "size":
            return shape
        case "stride":
            return tuple(math.prod(max(1, d) for d in shape[i + 1 :]) for i in range(len(shape)))
        case "storage_offset":
            return 0
        case "dim":
            return len(shape)
        case "numel":
            return math.prod(shape)
    raise ValueError(method)
