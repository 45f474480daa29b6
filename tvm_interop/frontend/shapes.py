"""Makes the shapes of a model's inputs static, or raises an error that names the dynamic shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import onnx
import tvm
from tvm import relax

from ..errors import InputError, UnsupportedModelError, first_line
from ..lowering.static_shape import static_shape
from .declared_dims import Dims, declared_dims
from .open_dimensions import is_open, open_dimensions_error

Shape = tuple[int, ...]


def onnx_input_shapes(
    graph: onnx.GraphProto, given: Mapping[str, Shape], note: str = ""
) -> dict[str, Shape]:
    """Return the static shape of each input of `graph` that is not an initializer.

    Before IR version 4, ONNX also lists every initializer among the graph's inputs, although it is
    a weight.

    Parameters
    ----------
    note: a text that is added to the error message if inputs have open dimensions.
    """
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    _check_names(given, {value.name: _declared(value) for value in inputs})
    _check_kinds(inputs)
    dims = {value.name: declared_dims(value) for value in inputs}
    missing = {name: each for name, each in dims.items() if name not in given and is_open(each)}
    if missing:
        raise open_dimensions_error(missing, note)
    return {name: _static_shape(name, each, given.get(name)) for name, each in dims.items()}


def onnx_batch_shapes(
    graph: onnx.GraphProto, given: Mapping[str, Shape], size: int
) -> dict[str, Shape]:
    """Return the shape of each input of `graph`, with `size` as its first dimension.

    Raises
    ------
    InputError
        An input has no dimensions.
    """
    weights = {tensor.name for tensor in graph.initializer}
    shapes = dict(given)
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name in weights or (not dims and value.name not in given):
            continue
        sizes = [each for each in (declared_dims(value) or ())[1:] if isinstance(each, int)]
        if value.name not in given and len(sizes) == len(dims[1:]):
            shapes[value.name] = (size, *sizes)
    for name, shape in onnx_input_shapes(graph, shapes).items():
        if not shape:
            raise InputError(f"input `{name}` has no dimensions: there is no batch in it")
        shapes[name] = (size, *shape[1:])
    return shapes


def with_output_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model`, or a copy with inferred types if an output has no type.

    ONNX's checker requires the types of outputs.
    """
    if all(value.type.WhichOneof("value") for value in model.graph.output):
        return model
    inferred = with_inferred_types(model)
    types = {value.name: value.type for value in (*inferred.graph.output, *inferred.graph.input)}
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    for value in typed.graph.output:
        value.type.CopyFrom(types[value.name])
    return typed


def with_inferred_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `model` with the types and shapes that ONNX infers.

    Raises
    ------
    UnsupportedModelError: a node does not fit its definition.
    """
    try:
        return onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError as err:
        raise UnsupportedModelError(
            f"the model is not valid ONNX: {first_line(err)}; export it again"
        ) from err


def check_outputs(graph: onnx.GraphProto) -> None:
    """Refuse a graph with outputs that are neither tensors nor sequences of tensors."""
    for value in graph.output:
        kind = value.type.WhichOneof("value")
        within = value.type.sequence_type.elem_type.WhichOneof("value")
        if kind in (None, "tensor_type") or (kind, within) == ("sequence_type", "tensor_type"):
            continue
        of_what = f" of {within}" if kind == "sequence_type" else ""
        raise UnsupportedModelError(
            f"output `{value.name}` is a {kind}{of_what}: only tensors and sequences of tensors "
            "can be outputs. Make its tensors outputs of the model instead"
        )


def bind_relax_shapes(mod: tvm.IRModule, given: Mapping[str, Shape]) -> tvm.IRModule:
    """Return `mod` with the symbolic dimensions of `main` replaced by sizes from `given`."""
    functions = [var.name_hint for var in mod.get_global_vars()]
    if "main" not in functions or not isinstance(mod["main"], relax.Function):
        raise UnsupportedModelError(
            f"the Relax module has no function `main`, only {_list(functions)}: "
            "rename the function that runs the model to `main`"
        )
    params = mod["main"].params
    _check_names(given, {param.name: str(getattr(param.ty, "shape", "")) for param in params})
    bindings: dict[tvm.tirx.Var, int] = {}
    for param in params:
        is_tensor = isinstance(param.ty, relax.TensorType)
        if not is_tensor or not isinstance(param.ty.shape, relax.ShapeExpr):
            raise UnsupportedModelError(
                f"input `{param.name}` of `main` has type {param.ty}: only tensors of a known "
                "number of dimensions can be inputs"
            )
        _match(param, given.get(param.name), bindings)
    if bindings:
        mod = relax.transform.BindSymbolicVars(bindings, "main")(mod)
        _check_sums(params, mod["main"].params, given)
    missing: dict[str, Dims] = {
        param.name: tuple(
            int(dim) if isinstance(dim, tvm.tirx.IntImm) else _in_words(dim)
            for dim in param.ty.shape.values
        )
        for param in mod["main"].params
        if static_shape(param.ty) is None
    }
    if missing:
        raise open_dimensions_error(missing)
    return mod


def _check_sums(
    declared: Iterable[relax.Var], bound: Iterable[relax.Var], given: Mapping[str, Shape]
) -> None:
    """Refuse a shape that contradicts a dimension such as `past + 1`.

    Parameters
    ----------
    declared, bound: the parameters before and after sizes replaced their symbolic dimensions.
    """
    for before, param in zip(declared, bound, strict=True):
        shape, wanted = static_shape(param.ty), given.get(param.name)
        if shape is not None and wanted is not None and tuple(shape) != tuple(wanted):
            dims = ", ".join(map(_in_words, before.ty.shape.values))
            raise InputError(
                f"input_shapes gives `{param.name}` the shape {tuple(wanted)}, but its dimensions "
                f"({dims}) are {tuple(shape)} for the sizes in the other shapes of input_shapes: "
                f"give {tuple(shape)}, or change the other shapes"
            )


def _in_words(dim: tvm.ir.Expr) -> str:
    """A dimension as a text, such as `past + 1`."""
    return re.sub(r"T\.int64\((\d+)\)", r"\1", str(dim))


def _match(param: relax.Var, given: Shape | None, bindings: dict[tvm.tirx.Var, int]) -> None:
    """Add to `bindings` the sizes that the shape `given` sets for the symbolic dimensions of
    `param`.
    """
    if given is None:
        return
    dims = list(param.ty.shape)
    _check_rank(param.name, given, len(dims))
    for dim, size in zip(dims, given, strict=True):
        known = int(dim) if isinstance(dim, tvm.tirx.IntImm) else bindings.get(dim)
        if known is not None and known != size:
            raise InputError(
                f"input `{param.name}` has a dimension of {known} where input_shapes gives {size}: "
                f"give {known}"
            )
        if isinstance(dim, tvm.tirx.Var):
            bindings[dim] = size


def _check_kinds(inputs: Iterable[onnx.ValueInfoProto]) -> None:
    """Refuse inputs that are not tensors."""
    for value in inputs:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedModelError(
                f"input `{value.name}` is a {kind or 'value of no type'}: only tensors can be "
                "inputs"
            )


def _static_shape(name: str, dims: Dims, given: Shape | None) -> Shape:
    """Return the shape `given`, or the declared shape `dims` if `given` is None.

    If `given` is None, the caller has checked that `dims` contains only sizes.
    """
    if given is None:
        return tuple(int(dim) for dim in dims or ())
    if dims is not None:
        _check_rank(name, given, len(dims))
    return given


def _check_names(given: Mapping[str, Shape], inputs: Mapping[str, str]) -> None:
    """Refuse a shape for an input that does not exist, and a shape with a size below 1.

    Parameters
    ----------
    given: the shapes that the user gives, by input.
    inputs: the declared shape of each input, as text for the error message.
    """
    for name, shape in given.items():
        if name not in inputs:
            raise InputError(
                f"input_shapes names `{name}`, which is not an input of the model: its inputs are "
                + ", ".join(f"`{known}` {shape}" for known, shape in inputs.items())
            )
        if any(size < 1 for size in shape):
            raise InputError(f"input_shapes gives `{name}` the shape {shape}: sizes start at 1")


def _declared(value: onnx.ValueInfoProto) -> str:
    if not value.type.tensor_type.HasField("shape"):
        return "of no shape"
    dims = value.type.tensor_type.shape.dim
    sizes = (str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims)
    return f"({', '.join(sizes)})"


def _check_rank(name: str, given: Shape, rank: int) -> None:
    if len(given) != rank:
        raise InputError(
            f"input `{name}` has {rank} dimensions, input_shapes gives it {len(given)}: {given}"
        )


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"
