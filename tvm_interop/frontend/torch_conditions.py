"""The conditions under which a program of `torch.export` may run.

A program holds only the code that its example and its ranges needed: a branch for odd batches may
be missing. PyTorch keeps what it assumed about the sizes in two forms: as guards, which are texts
such as `L['x'].size()[0] % 2 == 0`, and as nodes of the graph that check an expression. It refuses
to run the program if one of them does not hold, and so does this package.

This module does not execute the texts of guards. It evaluates their syntax trees, with the
operations of `_OPERATIONS` and `_FUNCTIONS` only.
"""

from __future__ import annotations

import ast
import logging
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_LOG = logging.getLogger("tvm_interop")

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


class _Input(NamedTuple):
    """A tensor among the arguments of a program."""

    name: str


def broken_condition(program: Any, shapes: Mapping[str, Sequence[Any]], origin: str) -> str | None:
    """Return the text of a condition that does not hold for these shapes, or None if all hold.

    A guard that cannot be evaluated here is left out, with a warning. A check of numbers that
    depend on data is left out.

    Parameters
    ----------
    program: the `torch.export.ExportedProgram`.
    shapes: the shape of each input, by name. Names of dimensions stand for sizes that are not
        given.
    origin: the program's description in the warning, such as its path.
    """
    arguments: dict[str, Any] = {}
    # Programs of PyTorch before 2.9 have no guards.
    for text in getattr(program, "_guards_code", None) or ():
        words = re.sub(r"L\['(\w+)'\]", r"\1", text)  # Users know inputs by their names.
        arguments = arguments or _arguments(program)
        try:
            holds = _value(ast.parse(text, mode="eval").body, arguments, shapes)
        except ZeroDivisionError:
            holds = False
        except (KeyError, IndexError, TypeError, ValueError, SyntaxError):
            _LOG.warning(
                "%s was exported under the condition `%s`, which is not checked: its results are "
                "only right for sizes that meet it",
                origin,
                words,
            )
            continue
        if not holds:
            return words
    symbols = _symbols(program, shapes)
    return next((str(each) for each in _checks(program) if not _holds(each, symbols)), None)


def _value(tree: ast.AST, arguments: Any, shapes: Mapping[str, Sequence[Any]]) -> Any:
    def value(inner: ast.AST) -> Any:
        return _value(inner, arguments, shapes)

    match tree:
        case ast.Constant():
            return tree.value
        case ast.Name(id="L"):
            return arguments
        case ast.Subscript():
            return value(tree.value)[value(tree.slice)]
        case ast.Call(func=ast.Attribute(attr=method, value=of), args=[]):
            return _result(value(of), method, shapes)
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


def _result(tensor: Any, method: str, shapes: Mapping[str, Sequence[Any]]) -> Any:
    """Return the result of a method of an input, which is a contiguous tensor."""
    if not isinstance(tensor, _Input):
        raise TypeError(tensor)
    shape = tuple(shapes[tensor.name])
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


def _arguments(program: Any) -> dict[str, Any]:
    """Return the program's arguments by name; tensors keep their places in lists and dictionaries.

    An argument that is a number stays a number.
    """
    from torch.utils import _pytree

    signature: Any = program.module_call_graph[0].signature
    leaves = [
        _Input(each) if isinstance(each, str) else each
        for each in program.graph_signature.user_inputs
    ]
    args, kwargs = _pytree.tree_unflatten(leaves, signature.in_spec)
    return {**dict(zip(signature.forward_arg_names or (), args, strict=False)), **kwargs}


def _symbols(program: Any, shapes: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """Return the size of each dimension of the inputs that is a symbol, by the symbol's name."""
    return {
        str(dim): size
        for node in program.graph.nodes
        if node.op == "placeholder" and hasattr(node.meta.get("val"), "shape")
        for dim, size in zip(node.meta["val"].shape, shapes.get(node.name, ()), strict=False)
        if isinstance(size, int)
    }


def _checks(program: Any) -> Iterator[Any]:
    """Yield the expressions of sympy that nodes of the program check."""
    for node in program.graph.nodes:
        if "_assert_scalar" in str(node.target):
            value: Any = getattr(node.args[0], "meta", {}).get("val")
            if hasattr(value, "node"):
                yield value.node.expr


def _holds(expression: Any, symbols: Mapping[str, int]) -> bool:
    """Return whether an expression is true, or depends on a number that is not known here."""
    if any(str(symbol) not in symbols for symbol in expression.free_symbols):
        return True
    sizes = {each: symbols[str(each)] for each in expression.free_symbols}
    try:
        return bool(expression.subs(sizes))
    except (ZeroDivisionError, TypeError):  # The remainder of a division by 0 has no value.
        return False
