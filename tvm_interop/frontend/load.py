"""Loads a model of any supported form as a Relax module with static shapes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import tvm

from ..errors import InputError, UnsupportedModelError
from ..lowering.bfloat16_ports import BFLOAT16_OUTPUTS, names_in
from ..lowering.names import OUTPUT_NAMES
from ..lowering.static_shape import static_shape
from ..models.external_weights import is_outside
from ..models.source import read_for_import
from .bfloat16_types import without_bfloat16
from .bounds import all_within_bounds
from .class_tables import with_tables
from .expand import expand_functions, nodes_of, without_functions
from .fused import FUSED
from .microsoft import with_domain
from .narrow_types import with_wider_weights
from .onnx_importer import check_operators, import_graph, known_operators
from .quantised import RULES
from .rewriter import rewritten
from .shapes import (
    bind_relax_shapes,
    check_outputs,
    onnx_batch_shapes,
    onnx_input_shapes,
    with_output_types,
)
from .size_conditions import attached, check_results, check_sizes, ranges_in_words
from .strings import with_strings
from .torch_program import as_onnx, is_torch_module
from .trial_operators import ON_TRIAL
from .usual_form import (
    with_dense_weights,
    with_nodes_in_order,
    with_usual_domain,
    without_unused_nodes,
)

Model: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | tvm.IRModule | Any"


def load_model(
    model: Model,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    seen: dict[str, tuple[int, ...]] | None = None,
) -> tvm.IRModule:
    """Load a model as a Relax module whose `main` has static input shapes.

    Parameters
    ----------
    model
        One of these: the path of an ONNX file; the path of a `.pt2` file that `torch.export.save`
        wrote; the name of a network, unless a file has that name; an `onnx.ModelProto`; a
        `torch.export.ExportedProgram`; a Relax module with a `main`. The name of a network is one
        of `models.list()`, or `light:` followed by one of `models.light.names()`.
    input_shapes
        The shape of each input that has a dynamic dimension. A shape may also be given for another
        input. It then replaces the shape that the model declares.
    seen
        A dictionary. For an ONNX model, the shapes of all its tensors are stored in it, by name.

    Returns
    -------
    mod
        A module whose weights are constants. Bindings of `main` are named after the ONNX nodes that
        they come from, and its parameters after the ONNX inputs. The function attribute
        `tvm_interop.output_names` holds the names of the outputs.

    Raises
    ------
    UnsupportedModelError
        The file is not an ONNX model, a shape is dynamic, or TVM cannot import an operator.
    InputError
        `input_shapes` names an input the model lacks, or gives it a wrong number of dimensions.

    Examples
    --------
    >>> mod = load_model("model.onnx", {"image": (1, 3)})
    """
    shapes = {name: tuple(int(d) for d in shape) for name, shape in (input_shapes or {}).items()}
    if isinstance(model, tvm.IRModule):
        return _with_shapes(model, shapes)
    model = read_once(model)
    if isinstance(model, OnnxModel):
        return model.imported(shapes, seen)
    if is_torch_module(model):
        raise UnsupportedModelError(
            f"a `{type(model).__name__}` is a torch.nn.Module, not an exported program: give the "
            "result of `torch.export.export(module.eval(), (example_input,))`"
        )
    raise UnsupportedModelError(
        "a model must be the path of an ONNX or .pt2 file, the name of a network, an "
        "onnx.ModelProto, a torch.export.ExportedProgram or a Relax IRModule, not "
        f"`{type(model).__name__}`"
    )


def _with_shapes(mod: tvm.IRModule, shapes: dict[str, tuple[int, ...]]) -> tvm.IRModule:
    """Return `mod` with the input shapes `shapes`, and with its indices limited to existing
    elements.

    The indices are limited after the shapes are set, because their limits depend on the shapes.
    """
    mod = bind_relax_shapes(mod, shapes)
    main = all_within_bounds(mod["main"])
    if main.same_as(mod["main"]):
        return mod
    mod = mod.clone()
    mod.update_func(mod.get_global_var("main"), main)
    return mod


def batch_shapes(
    model: Model, input_shapes: Mapping[str, Sequence[int]] | None, size: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all inputs, with the batch size `size` as the first dimension of each.

    Parameters
    ----------
    input_shapes
        The same as for `load_model`, except that `size` replaces the first dimension of each shape.

    Raises
    ------
    InputError
        The model is a Relax module, an input has no dimensions, or `load_model` would refuse a
        shape.
    """
    model = as_onnx(model)
    if isinstance(model, (str, os.PathLike)):
        model = read_for_import(model)
    if not isinstance(model, onnx.ModelProto):
        raise InputError(
            "batch sizes without shapes cannot be given for a Relax module: give `input_shapes` "
            "for each batch size as well"
        )
    shapes = {name: tuple(int(d) for d in shape) for name, shape in (input_shapes or {}).items()}
    return onnx_batch_shapes(model.graph, shapes, size)


def read_once(model: Model) -> Model:
    """Return a form of the model for several calls of `load_model`.

    This function reads and checks an ONNX model, and converts a program of `torch.export`. Calls of
    `load_model` with the result do not repeat this work.

    Raises
    ------
    UnsupportedModelError
        The same cases as for `load_model`.
    """
    model = as_onnx(model)
    if isinstance(model, onnx.ModelProto):
        return OnnxModel(model, "the ONNX model given")
    if isinstance(model, (str, os.PathLike)):
        return OnnxModel(read_for_import(model), f"`{os.fspath(model)}`", Path(model))
    return model


class OnnxModel:
    """An ONNX model that can be imported for several shapes.

    Parameters
    ----------
    origin: the model's description in error messages, such as its path.
    path: the path of the model's file; None if all weights are in `model`. Large weights may be in
        other files of the same folder, which are read later.
    """

    def __init__(self, model: onnx.ModelProto, origin: str, path: Path | None = None) -> None:
        if model.ir_version == 0 or not model.HasField("graph") or not model.graph.output:
            raise UnsupportedModelError(f"{origin} is not an ONNX model: it holds no graph")
        _check_text(model, origin)
        converted = attached(model)
        origin = origin if converted is None else converted.origin
        model = with_usual_domain(with_nodes_in_order(model))
        model = with_dense_weights(without_unused_nodes(without_functions(model)))
        model, self._bfloat16 = without_bfloat16(model, origin)
        model, self._strings = with_tables(with_wider_weights(model), origin)
        model = rewritten(with_domain(model), {**RULES, **FUSED, **ON_TRIAL})
        # Infer the types of outputs before `expand_functions`, which may replace operators that
        # type inference needs.
        model = with_output_types(model)
        self._model = expand_functions(model, known_operators())
        self._origin, self._path, self._is_checked = origin, path, False
        check_operators(self._model.graph, origin)

    def imported(
        self, shapes: dict[str, tuple[int, ...]], seen: dict[str, tuple[int, ...]] | None
    ) -> tvm.IRModule:
        """Import the model.

        Parameters
        ----------
        seen: a dictionary in which the shapes of all tensors are stored, by name.
        """
        static = onnx_input_shapes(self._model.graph, shapes, ranges_in_words(self._model))
        check_sizes(self._model, static)
        if not self._is_checked:
            check_outputs(self._model.graph)
            _check(self._model, self._origin)
            self._is_checked = True
        mod = import_graph(self._model, static, self._origin, self._path, seen, self._bfloat16)
        check_results(self._model, static, _results_of(mod))
        return with_strings(mod, self._strings)


def _results_of(mod: tvm.IRModule) -> list[tuple[str, tuple[int, ...] | None]]:
    """Return the type and the shape of each output of `main`."""
    main = mod["main"]
    result = main.body.body.ty
    each = result.fields if isinstance(result, tvm.relax.TupleType) else [result]
    narrow = names_in(BFLOAT16_OUTPUTS, main.attrs)
    types = [
        "bfloat16" if str(name) in narrow else str(ty.dtype)
        for name, ty in zip(main.attrs[OUTPUT_NAMES], each, strict=True)
    ]
    return [(dtype, static_shape(ty)) for dtype, ty in zip(types, each, strict=True)]


def _check_text(message: Any, origin: str) -> None:
    """Refuse a model with names that are not UTF-8.

    Protobuf returns names that are not UTF-8 as bytes, but later code expects text.
    """
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        is_one = isinstance(value, str | bytes) or hasattr(value, "ListFields")
        for each in (value,) if is_one else value:
            if isinstance(each, bytes):
                raise UnsupportedModelError(
                    f"{origin} is damaged: its {field.name} {each[:40]!r} is not UTF-8; export the "
                    "model again"
                )
            if field.type == field.TYPE_MESSAGE:
                _check_text(each, origin)


def _check(model: onnx.ModelProto, origin: str) -> None:
    values = (*model.graph.input, *model.graph.output)
    if any(not value.type.tensor_type.HasField("shape") for value in values):
        # The checker refuses a model with an input or output that has no shape. Such a model can
        # still be imported, because the user gives the shapes of inputs, and the shapes of outputs
        # are not needed.
        return
    try:
        onnx.checker.check_model(_as_the_checker_knows_it(model))
    except onnx.checker.ValidationError as err:
        raise UnsupportedModelError(f"{origin} is not valid ONNX: {err}") from err
    except ValueError:
        # The checker serialises the model. Protobuf cannot serialise more than 2 GiB, so a larger
        # model is not checked.
        return


def _as_the_checker_knows_it(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in a form that ONNX's checker accepts.

    Some weights are in files that are not read yet, and the checker would look for these files. So
    these weights are replaced by inputs of the same type.

    Opset 21 deprecates the group normalisation of opsets 18 to 20. The checker refuses this
    operator in older models too, although onnxruntime runs such models. So it is replaced by
    instance normalisation, which has the same inputs.

    Before opset 13, quantisation has no `axis`. `quantised` sets it in older models too, for scales
    of channels of integer operators. So it is removed.
    """
    outside = [tensor for tensor in model.graph.initializer if is_outside(tensor)]
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    is_older = opsets.get("", 1) < _QUANTISED_BY_AXIS
    changed = {"GroupNormalization", *(_QUANTISATIONS if is_older else ())}
    if not outside and not any(node.op_type in changed for node in nodes_of(model.graph)):
        return model
    known = onnx.ModelProto()
    known.CopyFrom(model)
    _as_inputs(known.graph, {tensor.name for tensor in outside})
    for node in nodes_of(known.graph):
        if node.op_type in _QUANTISATIONS and is_older:
            _keep(node, [each for each in node.attribute if each.name != "axis"])
        if node.op_type == "GroupNormalization" and not node.domain:
            node.op_type = "InstanceNormalization"
            _keep(node, [each for each in node.attribute if each.name == "epsilon"])
    return known


_QUANTISATIONS = ("DequantizeLinear", "QuantizeLinear")
_QUANTISED_BY_AXIS = 13
"""The first opset in which quantisation may have a scale for each index of an axis."""


def _keep(node: onnx.NodeProto, kept: list[onnx.AttributeProto]) -> None:
    """Remove all attributes of a node except those in `kept`."""
    del node.attribute[:]
    node.attribute.extend(kept)


def _as_inputs(graph: onnx.GraphProto, weights: set[str]) -> None:
    """Replace the initializers named in `weights` by inputs of the same type."""
    kept = [tensor for tensor in graph.initializer if tensor.name not in weights]
    inputs = {value.name for value in graph.input}
    graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if tensor.name in weights - inputs
    )
    del graph.initializer[:]
    graph.initializer.extend(kept)
