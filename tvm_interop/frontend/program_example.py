"""Runs a program of `torch.export` in PyTorch, on the inputs that it was exported with."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..errors import first_line
from .program_sizes import input_names


class Example(NamedTuple):
    """A run of a program in PyTorch.

    Attributes
    ----------
    inputs: an array for each input that is a tensor or a number, by the input's name.
    outputs: an array for each output that is a tensor, in order.
    is_resized: whether the example inputs were repeated or cut to fit other shapes.
    eps: the distance from 1 to the next larger number, in the least precise float type of the
        program's tensors.
    """

    inputs: dict[str, np.ndarray]
    outputs: list[np.ndarray]
    is_resized: bool
    eps: float


def run_example(program: Any, shapes: Mapping[str, Sequence[int]]) -> Example | str:
    """Run a program in PyTorch once, on its example inputs.

    If an input needs another shape than in the example, the example's values are repeated or cut
    along each axis. So integers stay valid as indices. The program's own example inputs do not
    change.

    Parameters
    ----------
    program: a `torch.export.ExportedProgram`. Its weights are not copied.
    shapes: the shapes of inputs, by name. All other inputs have the shapes of the example.

    Returns
    -------
    The run; or a text that says why there is no run: the program has no example inputs, or PyTorch
    raises an error.
    """
    if program.example_inputs is None:
        return (
            "the program has no example inputs, because it was saved without them or they were "
            "removed"
        )
    is_resized = False
    try:
        names, leaves, spec = _flat_inputs(program)
        wanted = [None if name is None else shapes.get(name) for name in names]
        values = [_resized(leaf, shape) for leaf, shape in zip(leaves, wanted, strict=True)]
        is_resized = any(_shape(a) != _shape(b) for a, b in zip(values, leaves, strict=True))
        named = {n: value for n, value in zip(names, values, strict=True) if n is not None}
        inputs = {name: _array(value).copy() for name, value in named.items()}
        return Example(inputs, _run(program, values, spec), is_resized, _eps(program))
    except Exception as error:
        resized = ", repeated or cut to the compiled shapes" if is_resized else ""
        return (
            f"PyTorch does not run the program on its example inputs{resized}: "
            f"{type(error).__name__}: {first_line(error)}"
        )


def _flat_inputs(program: Any) -> tuple[list[str | None], list[Any], Any]:
    """Return the names of the inputs (see `input_names`), the example inputs as a flat list, and
    the structure to which this list can be unflattened.
    """
    from torch.utils import _pytree

    names = input_names(program)
    args, kwargs = program.example_inputs
    in_spec = program.module_call_graph[0].signature.in_spec
    _, by_keyword = _pytree.tree_unflatten(list(names), in_spec)
    kwargs = {name: kwargs[name] for name in by_keyword}  # This is the order in the program.
    leaves, spec = _pytree.tree_flatten((tuple(args), kwargs))
    return names, leaves, spec


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _resized(value: Any, shape: Sequence[int] | None) -> Any:
    """Return a copy of a tensor, with the shape `shape` if it is given; return other values
    unchanged.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().clone()
    for axis, size in enumerate(shape or ()):
        old = value.shape[axis]
        if size != old and old:
            value = value.index_select(axis, torch.arange(size, device=value.device) % old)
        elif size != old:
            value = value.new_zeros([*value.shape[:axis], size, *value.shape[axis + 1 :]])
    return value


def _run(program: Any, values: Sequence[Any], spec: Any) -> list[np.ndarray]:
    import torch
    from torch.utils import _pytree

    args, kwargs = _pytree.tree_unflatten(list(values), spec)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = program.module()(*args, **kwargs)
    return [_array(each) for each in _pytree.tree_leaves(results) if isinstance(each, torch.Tensor)]


def _array(value: Any) -> np.ndarray:
    import torch

    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    value = value.detach().cpu().resolve_conj().resolve_neg()
    if value.dtype == torch.bfloat16:  # NumPy itself lacks bfloat16.
        return np.asarray(value.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(value.numpy())


def _eps(program: Any) -> float:
    values = [node.meta.get("val") for node in program.graph.nodes]
    types = {value.dtype for value in values if hasattr(value, "dtype")}
    import torch

    return max((torch.finfo(each).eps for each in types if each.is_floating_point), default=0.0)
