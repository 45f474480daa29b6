"""Imports programs of `torch.export` with TVM's importer. It needs the extra `torch`.

Four things differ from TVM's importer. Bindings are named after the PyTorch modules that they come
from, such as `layer1.0.conv1`. A recurrent layer becomes one kernel for each direction (see
`recurrent.py`), where TVM's importer would unroll all steps. `torch_indices.py` converts indices,
and `torch_resize.py` converts `interpolate`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ..errors import InputError, UnsupportedModelError, first_line
from ..lowering.names import OUTPUT_NAMES, rename_bindings
from .recurrent import import_recurrent
from .torch_conditions import broken_condition
from .torch_indices import INDICES
from .torch_resize import RESIZED

SUFFIX = ".pt2"
"""The file name suffix of programs that `torch.export.save` wrote."""

_RECURRENT = {
    "lstm.input": "LSTM",
    "gru.input": "GRU",
    "rnn_tanh.input": "RNN",
    "rnn_relu.input": "RNN",
}
_ONNX_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""For each gate in ONNX's order, its position in PyTorch's order."""


def is_exported_program(model: Any) -> bool:
    """Whether `model` is a `torch.export.ExportedProgram`. The check does not import PyTorch."""
    return any(
        kind.__name__ == "ExportedProgram" and kind.__module__.startswith("torch.export")
        for kind in type(model).__mro__
    )


def is_torch_module(model: Any) -> bool:
    """Whether `model` is a `torch.nn.Module` or a TorchScript module.

    The check does not import PyTorch.
    """
    return any(
        kind.__name__ == "Module" and kind.__module__ == "torch.nn.modules.module"
        for kind in type(model).__mro__
    )


def read_exported_program(path: str | os.PathLike[str]) -> Any:
    """Return the `torch.export.ExportedProgram` in a file that `torch.export.save` wrote.

    Raises
    ------
    InputError: PyTorch is not installed.
    UnsupportedModelError: the file does not exist, or PyTorch cannot read it.
    """
    if not Path(path).is_file():
        raise UnsupportedModelError(f"there is no file `{path}`: check the path")
    torch = _torch(f"`{path}` is a program that torch.export saved")
    try:
        program = torch.export.load(os.fspath(path))
        _forget_ranges_of_sums(program)
        return program
    except Exception as err:
        raise UnsupportedModelError(
            f"PyTorch {torch.__version__} cannot read `{path}`: {first_line(err)}. Save the "
            "program again with `torch.export.save`, by the PyTorch that is installed here"
        ) from err


def _forget_ranges_of_sums(program: Any) -> None:
    """Remove from a loaded program the ranges of sums, which the saved program did not have.

    Loading adds a range for each dimension such as `past + 1` to the ranges of symbols. Then
    PyTorch 2.13 refuses to decompose the program, because this dimension is not a symbol.
    """
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        ranges = getattr(getattr(mode, "shape_env", None), "var_to_range", {})
        for sum_ in [key for key in ranges if not key.is_Symbol]:
            del ranges[sum_]


def import_exported_program(program: Any, origin: str) -> tvm.IRModule:
    """Import a `torch.export.ExportedProgram`.

    Dimensions that were exported as dynamic stay symbolic.

    Parameters
    ----------
    program: the exported program.
    origin: its description in error messages, such as its path.

    Raises
    ------
    InputError: PyTorch is not installed.
    UnsupportedModelError: TVM has no converter for an operator.
    """
    torch = _torch(f"{origin} is a program of torch.export")
    table = torch.export.default_decompositions()
    for overload in (
        torch.ops.aten.lstm.input,
        torch.ops.aten.gru.input,
        torch.ops.aten.rnn_tanh.input,
        torch.ops.aten.rnn_relu.input,
    ):
        table.pop(overload, None)
    try:
        with warnings.catch_warnings():
            # When PyTorch copies the program, it warns that it uses an old class of its own. Users
            # cannot do anything about this warning, so it is hidden.
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            return _import(program.run_decompositions(table))
    except UnsupportedModelError as err:
        raise UnsupportedModelError(f"{origin}: {err}") from err
    except Exception as err:
        raise UnsupportedModelError(
            f"TVM cannot import {origin}: {first_line(err)}. Exporting it to ONNX "
            "(`torch.onnx.export(..., dynamo=True)`) may work"
        ) from err


def dims_of_program(program: Any) -> dict[str, tuple[int | str, ...]]:
    """The dimensions of each input: a size, a name such as `s77`, or a text such as `s77 + 1`."""
    names = {name for name in program.graph_signature.user_inputs if isinstance(name, str)}
    values = {
        node.name: node.meta.get("val")
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in names
    }
    return {
        name: tuple(dim if isinstance(dim, int) else str(dim) for dim in value.shape)
        for name, value in values.items()
        if hasattr(value, "shape")
    }


def check_limits(program: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse shapes of inputs with sizes that the program was not exported for.

    A program holds only the code that its example and its ranges needed: a branch for larger
    batches may be missing. PyTorch exports for all sizes from 2 on if it is given no least size,
    and runs such a program with sizes of 0 and 1 too.

    Raises
    ------
    InputError
        The message names the dimension.
    """
    limits = {str(name): each for name, each in program.range_constraints.items()}
    for name, dims in dims_of_program(program).items():
        for dim, size in zip(dims, shapes.get(name, ()), strict=False):
            known = limits.get(str(dim))
            if known is None or not (size > known.upper or 2 < known.lower > size):
                continue
            raise InputError(
                f"input `{name}` has {size} where the exported program has the dimension `{dim}` "
                f"with sizes from {max(1, known.lower)} to {known.upper}: give such a size, or "
                "export the program for a larger range, by `torch.export.Dim` in `dynamic_shapes`"
            )


def check_conditions(program: Any, shapes: Mapping[str, Sequence[int]], origin: str) -> None:
    """Refuse shapes of open inputs that break a condition under which the program was exported.

    Parameters
    ----------
    origin: the program's description in messages, such as its path.

    Raises
    ------
    InputError
        The message names the condition.
    """
    all_dims = dims_of_program(program)
    is_open = any(isinstance(dim, str) for dims in all_dims.values() for dim in dims)
    known_shapes = {name: tuple(shapes.get(name, dims)) for name, dims in all_dims.items()}
    broken = broken_condition(program, known_shapes, origin) if is_open else None
    if broken is not None:
        given = ", ".join(f"`{name}` {tuple(shape)}" for name, shape in shapes.items())
        raise InputError(
            f"{origin} does not run for the input shapes {given}: it was exported under the "
            f"condition `{broken}`. Give sizes that meet it, or export the program for these sizes"
        )


def _import(program: Any) -> tvm.IRModule:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    importer = ExportedProgramImporter()
    recurrent = {name: _converter(kind) for name, kind in _RECURRENT.items()}
    converters = {**recurrent, **INDICES, **RESIZED}
    mod = importer.from_exported_program(program, False, False, False, converters)
    names = {
        var: _name_of(node)
        for node, var in importer.env.items()
        if node.op == "call_function" and isinstance(var, relax.Var)
    }
    main = rename_bindings(mod["main"], names)
    outputs = [str(name) for name in program.graph_signature.user_outputs]
    mod.update_func(mod.get_global_var("main"), main.with_attr(OUTPUT_NAMES, outputs))
    return mod


def _name_of(node: Any) -> str:
    """Return the name of the innermost module around a node; without a module, the node's name."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    module = str(stack[-1][0]) if stack else ""
    return module or str(node.name)


def _converter(kind: str) -> Callable[[Any, Any], tuple[relax.Expr, ...]]:
    def convert(node: Any, importer: Any) -> tuple[relax.Expr, ...]:
        bb = importer.block_builder
        x, states, weights, has_bias, layers, _, _, bidirectional, batch_first = (
            importer.retrieve_args(node)
        )
        states = [states] if isinstance(states, relax.Expr) else list(states)
        directions = 2 if bidirectional else 1
        activation = ["Relu"] if "relu" in node.target.__name__ else ["Tanh"]
        attrs = {
            "direction": "bidirectional" if bidirectional else "forward",
            "linear_before_reset": 1,
            **({"activations": activation * directions} if kind == "RNN" else {}),
        }
        if batch_first:
            x = bb.emit(relax.op.permute_dims(x, [1, 0, 2]))
        each = (4 if has_bias else 2) * directions
        last: list[list[relax.Expr]] = [[] for _ in states]
        for layer in range(layers):
            inputs = _weights_of(bb, kind, weights[layer * each : (layer + 1) * each], directions)
            begin, end = layer * directions, (layer + 1) * directions
            first = [relax.op.strided_slice(state, [0], [begin], [end]) for state in states]
            given = [x, *inputs, None, *(bb.emit(state) for state in first)]
            y, *ends = import_recurrent(bb, kind, given, attrs).fields
            length, _, batch, hidden = (int(size) for size in y.ty.shape)
            if directions > 1:
                y = bb.emit(relax.op.permute_dims(y, [0, 2, 1, 3]))
            x = bb.emit(relax.op.reshape(y, [length, batch, directions * hidden]))
            for ended, state in zip(last, ends, strict=True):
                ended.append(state)
        if batch_first:
            x = bb.emit(relax.op.permute_dims(x, [1, 0, 2]))
        stacked = [e[0] if len(e) == 1 else bb.emit(relax.op.concat(e, 0)) for e in last]
        return (x, *stacked)

    return convert


def _weights_of(
    bb: relax.BlockBuilder, kind: str, weights: Sequence[relax.Expr], directions: int
) -> list[relax.Expr | None]:
    """Return `W`, `R` and `B` of one layer in ONNX's form; `B` is None without biases.

    Each tensor has shape (directions, gates * hidden, ...).
    """
    each = len(weights) // directions
    by_direction = [weights[d * each : (d + 1) * each] for d in range(directions)]

    def stacked(tensors: Sequence[relax.Expr]) -> relax.Expr:
        return bb.emit(relax.op.stack([_in_onnx_order(bb, kind, t) for t in tensors], 0))

    w, r = (stacked([ours[i] for ours in by_direction]) for i in (0, 1))
    if each == 2:
        return [w, r, None]
    biases = [stacked([ours[i] for ours in by_direction]) for i in (2, 3)]
    return [w, r, bb.emit(relax.op.concat(biases, 1))]


def _in_onnx_order(bb: relax.BlockBuilder, kind: str, weight: relax.Expr) -> relax.Expr:
    gates = _ONNX_GATES[kind]
    if len(gates) == 1:
        return weight
    parts = bb.emit(relax.op.split(weight, len(gates), axis=0))
    ordered = [bb.emit(relax.TupleGetItem(parts, gate)) for gate in gates]
    return bb.emit(relax.op.concat(ordered, 0))


def _torch(why: str) -> Any:
    try:
        import torch
    except ImportError as err:
        raise InputError(f"{why}: install PyTorch, `pip install 'tvm-interop[torch]'`") from err
    return torch
