"""Converts programs of `torch.export` to ONNX models, by PyTorch's own exporter.

It needs the extra `torch`. PyTorch's developers test their exporter against PyTorch, operator by
operator, and everything that this package does with ONNX models then works for programs too.
What the exporter lacks is in `torch_operators.py`.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import logging
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import onnx

from ..errors import InputError, UnsupportedModelError, first_line
from .size_conditions import SizeConditions, attach

SUFFIX = ".pt2"
"""The file name suffix of programs that `torch.export.save` wrote."""

_GUARDS = "_guards_code"
"""PyTorch's private name of a program's guards, from PyTorch 2.9 on."""
_MOST_BYTES = 1 << 30
"""Programs with more bytes of weights become files, because protobuf writes at most 2 GiB."""

_MOST_KEPT = 1 << 28
"""A larger model in memory is not kept for the next call."""
_kept: dict[tuple[str, int, int], Any] = {}
"""The last file that was converted, by its path, time of change and size.

A command reads a file several times: first for the names of its dimensions.
"""

_TYPES = {
    "bool": onnx.TensorProto.BOOL,
    "uint8": onnx.TensorProto.UINT8,
    "int8": onnx.TensorProto.INT8,
    "int16": onnx.TensorProto.INT16,
    "int32": onnx.TensorProto.INT32,
    "int64": onnx.TensorProto.INT64,
    "float16": onnx.TensorProto.FLOAT16,
    "bfloat16": onnx.TensorProto.BFLOAT16,
    "float32": onnx.TensorProto.FLOAT,
    "float64": onnx.TensorProto.DOUBLE,
}
"""ONNX's types by the names of PyTorch's types."""


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


def as_onnx(model: Any) -> Any:
    """Return the ONNX model for a program of `torch.export`; return any other model unchanged.

    The ONNX model has the program's inputs and outputs, in their order. Its nodes are named after
    the PyTorch modules that they come from, such as `layer1.0.conv1`. Its metadata holds the sizes
    that the program was exported for (see `size_conditions.py`).

    Parameters
    ----------
    model: a `torch.export.ExportedProgram`, the path of a file that `torch.export.save` wrote, a
        `ConvertedProgram`, or any other model.

    Returns
    -------
    An `onnx.ModelProto`, or the path of an ONNX file if the weights take more than 1 GiB. The file
    is removed when the process ends.

    Raises
    ------
    InputError: PyTorch is not installed.
    UnsupportedModelError: the file does not exist, or PyTorch cannot read or convert the program.
    """
    found = _kept.get(_key_of(model)) if _is_file(model) else None
    return with_program(model).onnx if found is None else found


class ConvertedProgram(NamedTuple):
    """An ONNX model and the program of `torch.export` that it was converted from.

    `compile` takes it in place of a program, which is then not converted again. `onnx` is what
    `as_onnx` returns.
    """

    onnx: Any
    program: Any


def with_program(model: Any) -> ConvertedProgram:
    """Convert a model as `as_onnx` does, and also return the program, which a file is read for.

    For any other model, `program` is None.

    Raises
    ------
    InputError, UnsupportedModelError: the same cases as for `as_onnx`.
    """
    if isinstance(model, ConvertedProgram):
        return model
    if is_exported_program(model):
        return ConvertedProgram(_converted(model, "the exported program"), model)
    if not _is_file(model):
        return ConvertedProgram(model, None)
    key = _key_of(model)
    program = _loaded(key[0])
    if key in _kept:
        return ConvertedProgram(_kept[key], program)
    _kept.clear()
    found = _converted(program, f"`{key[0]}`")
    if isinstance(found, Path) or found.ByteSize() <= _MOST_KEPT:
        _kept[key] = found
    return ConvertedProgram(found, program)


def _is_file(model: Any) -> bool:
    return isinstance(model, str | os.PathLike) and os.fspath(model).endswith(SUFFIX)


def _key_of(path: str | os.PathLike[str]) -> tuple[str, int, int]:
    if not Path(path).is_file():
        raise UnsupportedModelError(f"there is no file `{Path(path)}`: check the path")
    state = Path(path).stat()
    return os.fspath(path), state.st_mtime_ns, state.st_size


def _loaded(path: str) -> Any:
    torch = _torch(f"`{path}` is a program that torch.export saved")
    try:
        program = torch.export.load(path)
    except Exception as err:
        raise UnsupportedModelError(
            f"PyTorch {torch.__version__} cannot read `{path}`: {first_line(err)}. Save the "
            "program again with `torch.export.save`, by the PyTorch that is installed here"
        ) from err
    _forget_ranges_of_sums(program)
    return program


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


def _converted(program: Any, origin: str) -> Any:
    """Convert a program; see `as_onnx`."""
    torch = _torch(f"{origin} is a program of torch.export")
    from .torch_operators import check_program, spelled_out, translations

    sizes = SizeConditions(origin, _conditions(program), _ranges(program), _outputs(program))
    check_program(program, origin)
    try:
        with _hushed():
            result = torch.onnx.export(
                spelled_out(program),
                dynamo=True,
                optimize=True,
                verbose=False,
                custom_translation_table=translations(),
            )
    except Exception as err:
        raise UnsupportedModelError(
            f"PyTorch's exporter to ONNX cannot convert {origin}: {_reason(err)}"
        ) from err
    _check_state(result.exported_program, origin)
    total = sum(t.const_value.nbytes for t in result.model.graph.initializers.values())
    if total <= _MOST_BYTES:
        model = result.model_proto
        _finish(model, program, sizes)
        return model
    folder = Path(tempfile.mkdtemp(prefix="tvm_interop_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    result.save(folder / "model.onnx", external_data=True)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    _finish(model, program, sizes)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Hide what the exporter writes about itself. Users cannot do anything about it."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _reason(error: Exception) -> str:
    """Return the innermost cause of the exporter's error, and the node that it is about."""
    nodes = []
    while isinstance(error.__cause__, Exception):
        nodes += re.findall(r"Error when translating node %(\S+) .*?target=([\w.]+)\]", str(error))
        error = error.__cause__
    where = "" if not nodes else f"node `{nodes[0][0]}` (`{nodes[0][1]}`): "
    return where + first_line(error)


def _check_state(program: Any, origin: str) -> None:
    """Refuse a program that changes its buffers, since a compiled model keeps no state."""
    changed = sorted(program.graph_signature.buffers_to_mutate.values())
    if changed:
        raise UnsupportedModelError(
            f"{origin} changes its buffer `{changed[0]}` in each run, and a compiled model keeps "
            "nothing from run to run: export the module after `.eval()`, or make the buffer an "
            "input and its new value an output"
        )


def _finish(model: onnx.ModelProto, program: Any, sizes: SizeConditions) -> None:
    """Give a converted model the types and names of the program, and attach its sizes."""
    _retype(model.graph, sizes)
    _rename(model.graph, program)
    attach(model, sizes)


def _retype(graph: onnx.GraphProto, sizes: SizeConditions) -> None:
    """Cast each output to the type that it has in the program.

    PyTorch's exporter leaves some results in the type in which they are computed: a sum of float16
    numbers stays float32.
    """
    for value, (dtype, _) in zip(graph.output, sizes.outputs, strict=False):
        own, wanted = value.type.tensor_type, _TYPES.get(dtype)
        if not own.elem_type or wanted in (None, own.elem_type):
            continue
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [f"{name}_untyped" if name == value.name else name for name in names]
        cast = onnx.helper.make_node(
            "Cast", [f"{value.name}_untyped"], [value.name], value.name, to=wanted
        )
        graph.node.append(cast)
        own.elem_type = wanted


def _rename(graph: onnx.GraphProto, program: Any) -> None:
    """Name the inputs as in the program, and nodes after the PyTorch modules around them.

    The exporter renames an input that is also an output. Here the output gets another name.
    """
    wanted = [name for name in input_names(program) if name is not None]
    new = {v.name: name for v, name in zip(graph.input, wanted, strict=False) if v.name != name}
    taken = {name for node in graph.node for name in node.output} & set(new.values())
    new.update({name: f"{name}_output" for name in taken})
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = new.get(value.name, value.name)
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = new.get(name, name)
        node.name = _module_of(node) or node.name.removeprefix("node_")


def _module_of(node: onnx.NodeProto) -> str:
    """Return the name of the innermost module around a node; "" if there is none."""
    key = "pkg.torch.onnx.name_scopes"
    scopes = next((each.value for each in node.metadata_props if each.key == key), "[]")
    try:
        *modules, _ = ast.literal_eval(scopes) or [""]
    except (SyntaxError, ValueError):
        return ""
    name = str(modules[-1]) if modules else ""
    return "" if name.startswith("_empty_nn_module_stack") else name


def input_names(program: Any) -> list[str | None]:
    """Return the name of each argument of a program of `torch.export`, in their order.

    There is None in place of a fixed argument, such as a text, which the compiled model lacks.
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
    """Return the type and the dimensions of each output, as `SizeConditions` holds them."""
    from torch.utils._sympy.printers import PythonPrinter

    def dimension(dim: Any) -> int | str:
        return dim if isinstance(dim, int) else str(PythonPrinter().doprint(dim.node.expr))

    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    outputs: list[Any] = [values.get(name) for name in program.graph_signature.user_outputs]
    return [
        (str(value.dtype).removeprefix("torch."), [dimension(dim) for dim in value.shape])
        for value in outputs
        if hasattr(value, "shape")
    ]


def _conditions(program: Any) -> list[str]:
    """Return the conditions under which the program may run, as `SizeConditions` holds them.

    They come from guards, which are texts such as `L['x'].size()[0] % 2 == 0`, and from nodes of
    the graph that check an expression of the sizes. A check of other numbers is left out.

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
    """Return the program's guards. PyTorch has no public name for them.

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
        f"conditions that PyTorch {version} sets for their sizes, without which some sizes could "
        "give wrong answers: use an older PyTorch or a newer tvm_interop, or export the program "
        "without `dynamic_shapes`"
    )


class _InputNames(ast.NodeTransformer):
    """Replaces `L['x']`, or an element of it, by the name of the input."""

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
    """Return the program's arguments by name; tensors keep their places in lists and dictionaries.

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


def _torch(why: str) -> Any:
    try:
        import onnxscript
        import torch
        import torch.onnx
    except ImportError as err:
        raise InputError(
            f"{why}: install PyTorch and its exporter to ONNX, `pip install 'tvm-interop[torch]'`"
        ) from err
    del onnxscript
    return torch
