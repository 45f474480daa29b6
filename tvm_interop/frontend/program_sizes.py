"""Reads the conditions that a program of `torch.export` sets for the sizes of its inputs."""

from __future__ import annotations

import ast
from typing import Any

from ..errors import UnsupportedModelError
from .size_conditions import SizeConditions

_GUARDS = "_guards_code"
"""The private attribute in which PyTorch, from version 2.9 on, keeps the guards of a program. A
guard is a condition under which the program may run.
"""


def size_conditions(program: Any, origin: str) -> SizeConditions:
    """Return the conditions and ranges of a program's input sizes, and the sizes of its outputs.

    Parameters
    ----------
    origin: the program's description in messages, such as its path.

    Raises
    ------
    UnsupportedModelError
        The program has open dimensions, and the guards that PyTorch keeps for it are not found.
    """
    return SizeConditions(origin, _conditions(program), _ranges(program), _outputs(program))


def input_names(program: Any) -> list[str | None]:
    """Return the name of each argument of a program of `torch.export`, in their order.

    For an argument with a fixed value, such as a text, the name is None. The compiled model has no
    such input.
    """
    from torch.export.graph_signature import ConstantArgument, InputKind

    specs = [s for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    return [None if isinstance(s.arg, ConstantArgument) else s.arg.name for s in specs]


def _ranges(program: Any) -> dict[str, tuple[int, int | None]]:
    """Return the least and the largest size of each dimension, by its name."""

    def whole(bound: Any) -> int | None:
        return int(bound) if bound.is_finite and abs(bound) < 1 << 62 else None

    return {
        str(name): (whole(each.lower) or 0, whole(each.upper))
        for name, each in program.range_constraints.items()
    }


def _outputs(program: Any) -> list[tuple[str, list[int | str]]]:
    """Return the type and the dimensions of each output, as `SizeConditions` holds them.

    A size that the program returns is an integer without dimensions.
    """
    import torch
    from torch.utils._sympy.printers import PythonPrinter

    def dimension(dim: Any) -> int | str:
        return dim if isinstance(dim, int) else str(PythonPrinter().doprint(dim.node.expr))

    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    outputs: list[Any] = [values.get(name) for name in program.graph_signature.user_outputs]
    numbers = {torch.SymInt: "int64", torch.SymFloat: "float32", torch.SymBool: "bool"}
    return [
        (str(value.dtype).removeprefix("torch."), [dimension(dim) for dim in value.shape])
        if hasattr(value, "shape")
        else (numbers[type(value)], [])
        for value in outputs
        if hasattr(value, "shape") or type(value) in numbers
    ]


def _conditions(program: Any) -> list[str]:
    """Return the conditions under which the program may run, as `SizeConditions` holds them.

    Some conditions come from guards, which are texts such as `L['x'].size()[0] % 2 == 0`. The other
    conditions come from nodes of the graph that check an expression of the sizes. Nodes that check
    numbers other than sizes are left out.

    Raises
    ------
    UnsupportedModelError: the guards are not found.
    """
    from torch.utils._sympy.printers import PythonPrinter

    guards = _guards(program)
    arguments = _arguments(program) if guards else {}
    texts = [_of_inputs(text, arguments) for text in guards]
    known = _symbols(program)
    for node in program.graph.nodes:
        if "_assert_scalar" in str(node.target):
            value: Any = getattr(node.args[0], "meta", {}).get("val")
            expression = value.node.expr if hasattr(value, "node") else None
            if expression is not None and {str(s) for s in expression.free_symbols} <= known:
                texts.append(PythonPrinter().doprint(expression))
    return list(dict.fromkeys(texts))


def _guards(program: Any) -> list[str]:
    """Return the program's guards: conditions for its inputs. PyTorch has no public name for them.

    Raises
    ------
    UnsupportedModelError
        The program has open dimensions, and PyTorch keeps its guards under another name.
    """
    if hasattr(program, _GUARDS):
        return list(getattr(program, _GUARDS) or ())
    import torch

    version = torch.__version__
    if torch.torch_version.TorchVersion(version) < (2, 9) or not _symbols(program):
        return []  # Programs of PyTorch before 2.9 have no guards.
    raise UnsupportedModelError(
        "the program has open dimensions, and this version of tvm_interop does not find the "
        f"conditions that PyTorch {version} sets for their sizes. Sizes that do not meet them "
        "could give wrong answers: use an older PyTorch or a newer tvm_interop, or export the "
        "program without `dynamic_shapes`"
    )


class _InputNames(ast.NodeTransformer):
    """Replaces `L['x']`, or an element such as `L['x'][0]`, by the input's name in a guard."""

    def __init__(self, arguments: Any) -> None:
        self._arguments = arguments

    def visit_Subscript(self, tree: ast.Subscript) -> ast.AST:
        try:
            found = self._element(tree)
        except (KeyError, IndexError, TypeError, ValueError):
            return self.generic_visit(tree)
        if isinstance(found, _Input):
            return ast.Name(found.name)
        return ast.Constant(found) if isinstance(found, int | float) else self.generic_visit(tree)

    def _element(self, tree: ast.AST) -> Any:
        if isinstance(tree, ast.Name) and tree.id == "L":
            return self._arguments
        if isinstance(tree, ast.Subscript):
            return self._element(tree.value)[ast.literal_eval(tree.slice)]
        raise ValueError(ast.dump(tree))


class _Input:
    """A tensor among the arguments of a program."""

    def __init__(self, name: str) -> None:
        self.name = name


def _of_inputs(guard: str, arguments: Any) -> str:
    try:
        return ast.unparse(_InputNames(arguments).visit(ast.parse(guard, mode="eval")))
    except SyntaxError:
        return guard


def _arguments(program: Any) -> dict[str, Any]:
    """Return the program's arguments by name, with the lists and dictionaries that hold tensors.

    An argument that is a number stays a number.
    """
    from torch.utils import _pytree

    signature: Any = program.module_call_graph[0].signature
    leaves = [
        value if name is None else _Input(name)
        for name, value in zip(
            input_names(program), program.graph_signature.user_inputs, strict=True
        )
    ]
    args, kwargs = _pytree.tree_unflatten(leaves, signature.in_spec)
    return {**dict(zip(signature.forward_arg_names or (), args, strict=False)), **kwargs}


def _symbols(program: Any) -> set[str]:
    """Return the names of the dimensions of inputs."""
    names = set(input_names(program))
    return {
        str(dim)
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in names
        for dim in getattr(node.meta.get("val"), "shape", ())
        if not isinstance(dim, int)
    }
