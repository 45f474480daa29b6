"""Converts programs of `torch.export` to ONNX models, by PyTorch's own exporter.

The module needs the extra `torch`. It uses PyTorch's exporter, because PyTorch's developers test it
against PyTorch, operator by operator. After the conversion, everything that this package does with
ONNX models works for programs too. Operators that the exporter does not convert are handled in
`torch_operators.py` and `torch_parts.py`.
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
from ..models.source import refuse_of_torch_save
from .program_sizes import input_names, size_conditions
from .size_conditions import SizeConditions, attach

_LOG = logging.getLogger("tvm_interop")

SUFFIX = ".pt2"
"""The file name suffix of programs that `torch.export.save` wrote."""

_MOST_BYTES = 1 << 30
"""A program with more bytes of weights than this becomes an ONNX model in a file, because protobuf
writes at most 2 GiB.
"""

_MOST_KEPT = 1 << 28
"""A model in memory with more bytes than this is not kept for the next call."""
_kept: dict[ProgramFile, Any] = {}
"""The ONNX model of the last file that was converted.

It is kept because a command reads a file several times, for example first for the names of its
dimensions.
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
"""Maps the names of PyTorch's types to ONNX's types."""


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
    return converted(model).onnx


class ProgramFile(NamedTuple):
    """A file that `torch.export.save` wrote: its path, its size, and the time of its last
    change.
    """

    path: str
    changed_ns: int
    nbytes: int


class ConvertedProgram(NamedTuple):
    """An ONNX model and the program of `torch.export` that it was converted from.

    `compile` accepts a `ConvertedProgram` in place of the program, so that the program is not
    converted twice.

    Attributes
    ----------
    onnx: the result of `as_onnx`: the ONNX model, or its path.
    program: the program, or the path of its file, which `program_of` reads; None if `onnx` was not
        converted from a program.
    """

    onnx: Any
    program: Any


def converted(model: Any) -> ConvertedProgram:
    """Convert a model as `as_onnx` does, and keep the program with the result.

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
    file = _file_of(model)
    found = _kept.get(file)
    if found is None:
        found = _converted(_loaded(file.path), f"`{file.path}`")
        _kept.clear()
        if isinstance(found, Path) or found.ByteSize() <= _MOST_KEPT:
            _kept[file] = found
    return ConvertedProgram(found, file)


def program_of(program: Any) -> Any:
    """Return the program of a `ConvertedProgram`; read it if it is in a file.

    Raises
    ------
    UnsupportedModelError
        The file has changed since it was converted, or cannot be read any more.
    """
    if not isinstance(program, ProgramFile):
        return program
    if _file_of(program.path) != program:
        raise UnsupportedModelError(
            f"`{program.path}` has changed while it was compiled: compile it again"
        )
    return _loaded(program.path)


def _is_file(model: Any) -> bool:
    return isinstance(model, str | os.PathLike) and os.fspath(model).endswith(SUFFIX)


def _file_of(path: str | os.PathLike[str]) -> ProgramFile:
    if not Path(path).is_file():
        raise UnsupportedModelError(f"there is no file `{Path(path)}`: check the path")
    state = Path(path).stat()
    return ProgramFile(os.fspath(path), state.st_mtime_ns, state.st_size)


def _loaded(path: str) -> Any:
    refuse_of_torch_save(Path(path))
    torch = _torch(f"`{path}` is a program that torch.export saved")
    from . import torch_containers, torch_experts, torch_quantised

    torch_experts.define()
    torch_quantised.define()
    unknown: list[str] = []
    try:
        torch_containers.define_those_of(path)
        with _unknown_operators(unknown):
            program = torch.export.load(path)
    except Exception as err:
        if unknown:
            raise UnsupportedModelError(
                f"`{path}` has the operator `{unknown[0]}`, which PyTorch does not know here: "
                "export the model without it. If ONNX can express it, you may also import the "
                "package that defines it, and give the loaded program"
            ) from err
        if isinstance(err, ModuleNotFoundError):
            raise UnsupportedModelError(
                f"the example inputs in `{path}` need the package `{err.name}`, which is not "
                "installed here: install it, or set `program.example_inputs = None` before you "
                "save the program"
            ) from err
        raise UnsupportedModelError(
            f"PyTorch {torch.__version__} cannot read `{path}`: {first_line(err)}. Save the "
            "program again with `torch.export.save`, by the PyTorch that is installed here"
        ) from err
    _forget_ranges_of_sums(program)
    return program


@contextlib.contextmanager
def _unknown_operators(found: list[str]) -> Iterator[None]:
    """Add to `found` the operators that PyTorch does not know while it reads a program.

    PyTorch writes the unknown operators to its log, and raises an error that does not name them.
    """

    def is_kept(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        names = re.findall(r"failed to resolve torch\.ops\.([\w.]+)", str(error))
        found.extend(names)
        return not names

    log = logging.getLogger("torch.export")
    log.addFilter(is_kept)
    try:
        yield
    finally:
        log.removeFilter(is_kept)


def _forget_ranges_of_sums(program: Any) -> None:
    """Remove the ranges of sums, such as `past + 1`, from a loaded program. The saved program did
    not have these ranges.

    When PyTorch loads a program, it adds a range for each dimension such as `past + 1` to the
    ranges of symbols. PyTorch 2.13 then refuses to decompose the program, because a sum is not a
    symbol.
    """
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        ranges = getattr(getattr(mode, "shape_env", None), "var_to_range", {})
        for sum_ in [key for key in ranges if not key.is_Symbol]:
            del ranges[sum_]


def _converted(program: Any, origin: str) -> Any:
    """Convert a program; see `as_onnx`."""
    torch = _torch(f"{origin} is a program of torch.export")
    from .torch_operators import check_program, translations
    from .torch_optimiser import optimise
    from .torch_parts import spelled_out

    sizes = size_conditions(program, origin)
    check_program(program, origin)
    try:
        # If gradients were on, attention might return a tensor with strides that the program's
        # views do not expect.
        with _hushed(), torch.no_grad():
            result = torch.onnx.export(
                spelled_out(program),
                dynamo=True,
                optimize=False,
                verbose=False,
                custom_translation_table=translations(),
            )
            optimise(result.model)
    except Exception as err:
        raise UnsupportedModelError(
            f"PyTorch's exporter to ONNX cannot convert {origin}: {_reason(err)}"
        ) from err
    _check_state(result.exported_program, origin)
    _add_lost_constants(result.model.graph)
    total = sum(map(_imported_bytes, result.model.graph.initializers.values()))
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


def _imported_bytes(weight: Any) -> int:
    """Return the bytes of a weight after the import, which widens bfloat16 to float32."""
    values = weight.const_value
    return int(values.nbytes) * (2 if values.dtype.name == "BFLOAT16" else 1)


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Hide the exporter's messages about its own work, because users cannot do anything about
    them.
    """
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
    """Return the innermost cause of the exporter's error, and the node that failed."""
    nodes = []
    while isinstance(error.__cause__, Exception):
        nodes += re.findall(r"Error when translating node %(\S+) .*?target=([\w.]+)\]", str(error))
        error = error.__cause__
    where = "" if not nodes else f"node `{nodes[0][0]}` (`{nodes[0][1]}`): "
    text = first_line(error)
    if text.startswith("No ONNX function found"):
        of = " for complex numbers" if "complex-valued" in text else ""
        text = (
            f"ONNX has no form of this operator{of}: compute it outside of the model, or write it "
            "with other operators"
        )
    return where + text


def _check_state(program: Any, origin: str) -> None:
    """Refuse a program that changes its buffers, since a compiled model keeps nothing between runs.

    A warning names an input that the program changes, if the program does not return its new value.
    """
    signature = program.graph_signature
    for kind in ("buffer", "parameter"):
        mutation = f"{kind.upper()}_MUTATION"
        changed = [s.target for s in signature.output_specs if s.kind.name == mutation]
        if changed:
            raise UnsupportedModelError(
                f"{origin} changes its {kind} `{min(changed)}` in each run, and a "
                "compiled model keeps nothing from run to run: export the module after "
                f"`.eval()`, or make the {kind} an input and its new value an output"
            )
    for result, name in signature.user_inputs_to_mutate.items():
        if result not in signature.user_outputs:
            _LOG.warning(
                "%s changes its input `%s`, and a compiled model leaves its inputs as they are: "
                "return the new value if it is needed",
                origin,
                name,
            )


def _add_lost_constants(graph: Any) -> None:
    """Add constants that nodes of the graph read but that the graph does not contain.

    The exporter names the bounds of a `Clip` after its input. If a tensor is clipped twice, the
    second bounds replace the first bounds in the graph.
    """
    for node in graph.all_nodes():
        for value in node.inputs:
            if value is None or value.const_value is None or value.producer() is not None:
                continue
            if graph.initializers.get(value.name) is not value and not value.is_graph_input():
                while value.name in graph.initializers:
                    value.name += "_"
                graph.initializers[value.name] = value


def _finish(model: onnx.ModelProto, program: Any, sizes: SizeConditions) -> None:
    """Set the types and names of the program in the converted model, and attach its size
    conditions.
    """
    _retype(model.graph, sizes)
    _rename(model.graph, program)
    attach(model, sizes)


def _retype(graph: onnx.GraphProto, sizes: SizeConditions) -> None:
    """Cast each output to the type that it has in the program.

    PyTorch's exporter leaves some results in the type that they are computed in. For example, a sum
    of float16 numbers stays float32.
    """
    for value, (dtype, _) in zip(graph.output, sizes.outputs, strict=False):
        own, wanted = value.type.tensor_type, _TYPES.get(dtype)
        if not own.elem_type or wanted in (None, own.elem_type):
            continue
        for node in _nodes(graph):
            for names in (node.input, node.output):
                names[:] = [f"{name}_untyped" if name == value.name else name for name in names]
        cast = onnx.helper.make_node(
            "Cast", [f"{value.name}_untyped"], [value.name], value.name, to=wanted
        )
        graph.node.append(cast)
        own.elem_type = wanted


def _rename(graph: onnx.GraphProto, program: Any) -> None:
    """Name the inputs as in the program, and nodes after the PyTorch modules around them.

    If an input is also an output, the exporter renames the input. This function gives the input its
    own name, and the output another one.
    """
    wanted = [name for name in input_names(program) if name is not None]
    new = {v.name: name for v, name in zip(graph.input, wanted, strict=False) if v.name != name}
    taken = {name for node in graph.node for name in node.output} & set(new.values())
    new.update({name: f"{name}_output" for name in taken})
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = new.get(value.name, value.name)
    for node in _nodes(graph):
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = new.get(name, name)
    for node in graph.node:
        node.name = _module_of(node) or node.name.removeprefix("node_")


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs in it, such as the branches of an `If`."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _module_of(node: onnx.NodeProto) -> str:
    """Return the name of the innermost module around a node; empty if there is none."""
    key = "pkg.torch.onnx.name_scopes"
    scopes = next((each.value for each in node.metadata_props if each.key == key), "[]")
    try:
        *modules, _ = ast.literal_eval(scopes) or [""]
    except (SyntaxError, ValueError):
        return ""
    name = str(modules[-1]) if modules else ""
    return "" if name.startswith("_empty_nn_module_stack") else name


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
