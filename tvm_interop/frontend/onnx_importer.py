"""Imports an ONNX graph with TVM's importer and keeps the names of its nodes.

TVM's importer drops the names of nodes. `_NamedImporter` binds the result of each node as soon as
the node is converted, and records the node of every binding. At the end, each binding is renamed
after its node. Relax passes keep the names of bindings that they do not change.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from ..errors import UnsupportedModelError, first_line
from ..lowering.bfloat16_ports import BFLOAT16_INPUTS, BFLOAT16_OUTPUTS
from ..lowering.names import COUNTED_OUTPUTS, OUTPUT_NAMES, rename_bindings
from ..lowering.static_shape import static_shape
from ..models.external_weights import array_of, is_outside
from ..program.host_memory import aligned_copy
from .bfloat16 import from_bits, to_bits
from .bfloat16_types import NO_PORTS, Bfloat16Ports
from .bounds import within_bounds
from .classical import is_classical
from .constants import check_constants
from .control_flow import CONTROL_FLOW, import_control_flow
from .converters import CONVERTED, convert
from .counted import ImportedNode
from .counted_parts import CountedParts
from .empty import MAY_BE_EMPTY, full_inputs, is_empty, of_empty, without_empty
from .expand import nodes_of
from .fitting_inputs import check_inputs
from .fold import fold
from .gather_nd import by_rows
from .half import narrowed, widened
from .indices import with_safe_indices
from .microsoft import check_outputs, full_name, is_known
from .misfit import MisfitError
from .moving_parts import moving_part
from .odd_inputs import as_tvm_takes_them
from .old_operators import in_later_form
from .recurrent import RECURRENT
from .sequences import not_taken_apart, tensors_of_outputs
from .turned_weights import turn_no_more, turned_weights

RANDOM = frozenset({"Bernoulli", "Multinomial"}) | {
    f"Random{kind}{like}" for kind in ("Normal", "Uniform") for like in ("", "Like")
}
"""Operators whose results are random numbers."""


def import_graph(
    model: onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]],
    origin: str,
    path: Path | None = None,
    seen: dict[str, tuple[int, ...]] | None = None,
    bfloat16: Bfloat16Ports = NO_PORTS,
) -> tvm.IRModule:
    """Import `model`, which has been checked, with the input shapes in `shapes`.

    Parameters
    ----------
    seen: a dictionary in which the shapes of all tensors with a static shape are stored, by name.
    path: the path of the model's file; None if all weights are in `model`. Large weights may be in
        other files of the same folder.
    bfloat16: the inputs and outputs that get the type bfloat16. In `model` they are float32.
    """
    outputs = _WithCounts(model.graph)
    importer = _NamedImporter({name: list(shape) for name, shape in shapes.items()}, path, bfloat16)
    try:
        mod = importer.from_onnx(outputs, _opset(model))
    except UnsupportedModelError:
        importer.abandon()
        raise
    except Exception as err:
        importer.abandon()
        raise UnsupportedModelError(f"TVM cannot import {origin}: {first_line(err)}") from err
    main = rename_bindings(mod["main"], importer.names_in(mod["main"]))
    main = main.with_attr(OUTPUT_NAMES, [value.name for value in outputs.output])
    if bfloat16.inputs:
        main = main.with_attr(BFLOAT16_INPUTS, sorted(bfloat16.inputs))
    if bfloat16.outputs:
        main = main.with_attr(BFLOAT16_OUTPUTS, sorted(bfloat16.outputs))
    if importer.counted:
        main = main.with_attr(COUNTED_OUTPUTS, importer.counted)
    mod.update_func(mod.get_global_var("main"), main)
    if seen is not None:
        seen.update(importer.shapes())
    # TVM's importer makes no dataflow block for a graph with an `If`. Every `If` has been replaced
    # by now, so the bindings can be in a dataflow block.
    return relax.transform.ConvertToDataflow()(mod)


def known_operators() -> frozenset[str]:
    """The operators of ONNX's own domain that this package or TVM has a converter for."""
    # TVM's converter `Attention` is left out. It is for an operator of another domain with the same
    # name.
    converted = {*onnx_frontend._get_convert_map()} - {"Attention"}
    return frozenset(converted | CONVERTED | {*RECURRENT, *CONTROL_FLOW})


def check_operators(graph: onnx.GraphProto, origin: str) -> None:
    """Refuse a graph with operators that have no converter.

    The error message names these operators and their nodes.
    """
    known = known_operators()
    missing: dict[str, list[str]] = {}
    for node in nodes_of(graph):
        if is_classical(node):
            continue
        if is_known(node):
            check_outputs(node)
        elif node.op_type not in known or node.domain not in ("", "ai.onnx"):
            kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            missing.setdefault(kind, []).append(node_name(node))
    if missing:
        found = "; ".join(
            f"`{kind}` (node{'s' if len(names) > 1 else ''} {_some(names)})"
            for kind, names in missing.items()
        )
        quantised = any(
            kind.rpartition(".")[2].startswith(("Q", "DynamicQuantize")) for kind in missing
        )
        if any(kind.startswith("ai.onnx.ml.") for kind in missing):
            raise UnsupportedModelError(
                f"{origin} uses operators of classical machine learning that are not compiled: "
                f"{found}. Compute them before or after the model, which then runs on numbers"
            )
        if any(kind.startswith("com.microsoft.nchwc.") for kind in missing):
            raise UnsupportedModelError(
                f"{origin} was optimised by onnxruntime for one kind of CPU: {found}. Give the "
                "model from before, or save it with the optimisation level ORT_ENABLE_EXTENDED"
            )
        if all(kind in RANDOM for kind in missing):
            raise UnsupportedModelError(
                f"{origin} draws numbers at random: {found}. A compiled model gives the same "
                "results for the same inputs: make the numbers that are drawn an input of the model"
            )
        raise UnsupportedModelError(
            f"{origin} uses operators TVM cannot import: {found}. Export the model "
            + (
                "with QuantizeLinear and DequantizeLinear (QDQ) around operators of floats"
                if quantised
                else "without them, or with a lower opset that uses simpler operators"
            )
        )


def node_name(node: onnx.NodeProto) -> str:
    """Return the node's name, or the name of its first output if the node has no name."""
    return str(node.name or next((name for name in node.output if name), node.op_type))


class _WithCounts:
    """An ONNX graph whose outputs are tensors.

    The tensors of sequences are outputs, and so are the sizes of outputs whose size is computed.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self.output = list(graph.output)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)


class _Failed(BaseException):
    """Carries an error past TVM's importer, which prints a node's weights at an `Exception`."""


class _NamedImporter(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, extended to record the node that each binding comes from."""

    _nodes: dict[str, Any]  # The expression for each tensor of the graph, by its name.

    def __init__(
        self, shapes: dict[str, list[int]], path: Path | None, bfloat16: Bfloat16Ports
    ) -> None:
        # In Relax, inputs of bfloat16 are the bits of their numbers.
        super().__init__(shapes, dict.fromkeys(bfloat16.inputs, "uint16"), sanitize=False)
        self._bfloat16 = bfloat16
        self._names: dict[relax.Var, str] = {}
        self._path = path
        self._turned: frozenset[str] = frozenset()
        self._inner: dict[str, Any] = {}  # The expression for each tensor of a subgraph.
        self._parts = CountedParts()
        self.counted: list[list[int]] = []
        """For each output whose size depends on computed values: its position, the axis of this
        size, and the position of its count among the outputs.
        """

    def _add_counts(self, graph: _WithCounts) -> None:
        """Add the counts of outputs as additional outputs; refuse an output that is a slice with
        computed bounds.
        """
        tensors_of_outputs(graph.output, self._nodes)
        names = [value.name for value in graph.output]
        values = self._parts.outputs(self.bb, [self._nodes[name] for name in names])
        counts, triples = self._parts.counted.outputs(values)
        values = [
            self._named(to_bits(self.bb, value), f"{name}/to_bfloat16")
            if name in self._bfloat16.outputs
            else value
            for name, value in zip(names, values, strict=True)
        ]
        self._nodes.update(zip(names, values, strict=True))
        for i, count in enumerate(counts):
            name = f"{names[next(t[0] for t in triples if t[2] == len(names) + i)]}_count"
            while name in self._nodes:
                name += "'"
            self._nodes[name] = count
            graph.output.append(onnx.ValueInfoProto(name=name))
        self.counted = [list(triple) for triple in triples]

    def _widen_inputs(self) -> None:
        for name in sorted(self._bfloat16.inputs):
            wide = from_bits(self.bb, self._nodes[name])
            self._nodes[name] = self._named(wide, f"{name}/from_bfloat16")

    def _named(self, result: Any, name: str) -> relax.Var:
        """Bind `result`, an input or output converted from or to bfloat16, to a variable, and
        record the variable's name.
        """
        var = self.bb.emit(result, name)
        self._names[var] = name
        return var

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor whose shape is static, by name.

        Tensors of subgraphs are included.
        """
        every = {**self._inner, **self._nodes}
        shapes = {
            name: static_shape(value.ty)
            for name, value in every.items()
            if isinstance(getattr(value, "ty", None), relax.TensorType)
            and self._parts.has_static_shape(value)
        }
        return {name: shape for name, shape in shapes.items() if shape is not None}

    def names_in(self, main: relax.Function) -> dict[relax.Var, str]:
        """Return, for each binding of the imported function `main`, the name of its node."""
        names = dict(self._names)
        for block in main.body.blocks:
            for binding in block.bindings:
                # The importer's last binding is `gv = result`. Lowering would keep only the name
                # `gv`, so `gv` gets the name of the node of `result`.
                if isinstance(binding, relax.VarBinding) and binding.value in names:
                    names[binding.var] = names[binding.value]
        return names

    def abandon(self) -> None:
        """End the blocks that a failed import has left open, so that TVM does not warn about them.

        TVM writes a warning about each open block to standard error.
        """
        # TVM raises an `InternalError` once no block is open. This ends the loop.
        with contextlib.suppress(tvm.error.InternalError):
            while True:
                self.bb._end_block()

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        self._turned = turned_weights(graph)
        super()._parse_graph_initializers(graph)

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        # A converter is given the name of a node but not the names of its outputs, so every node
        # needs a name.
        named = onnx.GraphProto(node=graph.node)
        turn_no_more(named, self._turned)
        for node in nodes_of(named):
            node.name = node_name(node)
            # An empty name at the end stands for an optional input that is left out.
            while node.input and not node.input[-1]:
                del node.input[-1]
            if is_known(node) or is_classical(node):
                node.op_type = full_name(node)
        used = {name for node in nodes_of(named) for name in node.input}
        used.update(value.name for value in graph.output)
        for node in named.node:
            # Old models name the mask of a dropout as an output, but never read it. Such an output
            # is removed here.
            if node.op_type == "Dropout" and not used.intersection(node.output[1:]):
                del node.output[1:]
        if isinstance(graph, _WithCounts):
            self._widen_inputs()
        # This package replaces control flow itself, because TVM's importer would keep an `If`
        # unchanged and does not support loops.
        for is_control_flow, nodes in itertools.groupby(
            named.node, lambda node: node.op_type in CONTROL_FLOW
        ):
            if not is_control_flow:
                try:
                    super()._construct_nodes(onnx.GraphProto(node=nodes))
                except _Failed as failed:
                    raise failed.args[0] from failed.args[0].__cause__
                continue
            for node in nodes:
                self._write_out(node)
        if isinstance(graph, _WithCounts):
            self._add_counts(graph)

    def _write_out(self, node: onnx.NodeProto) -> None:
        inputs = [self._nodes[name] if name else None for name in node.input]
        attrs = self._parse_attr(node.attribute)
        # `select` needs the results of both branches of an `If`.
        body = self._import_body if node.op_type == "If" else self._import_whole_tensors
        try:
            self._parts.check(inputs)
            select = self._parts.selected
            results = import_control_flow(self.bb, node, inputs, attrs, body, select)
        except UnsupportedModelError as err:
            raise _cannot_import(node.name, node.op_type, err) from err
        for name, result in zip(node.output, results, strict=False):
            self._nodes[name] = result
            self._claim(result, node.name)

    def _import_body(self, graph: onnx.GraphProto, given: Mapping[str, Any]) -> list[Any]:
        """Import a subgraph and return its outputs.

        The subgraph may use tensors of the graph around it.
        """
        around = dict(self._nodes)
        try:
            for tensor in graph.initializer:
                self._nodes[tensor.name] = relax.const(self._parse_array(tensor))
            self._nodes.update(given)
            self._construct_nodes(graph)
            return [self._nodes[value.name] for value in graph.output]
        finally:
            self._inner.update(self._nodes)
            self._nodes = around

    def _import_whole_tensors(self, graph: onnx.GraphProto, given: Mapping[str, Any]) -> list[Any]:
        """Import a subgraph; refuse an output that is a slice with computed bounds."""
        results = self._import_body(graph, given)
        self._parts.check(results)
        return results

    def _parse_attr(self, attr_proto: Sequence[onnx.AttributeProto]) -> dict[str, Any]:
        """Return the attributes of a node, by name. TVM's method fails on an empty list."""
        values = {a.name: onnx.helper.get_attribute_value(a) for a in attr_proto}
        empty = {name for name, value in values.items() if isinstance(value, list) and not value}
        attrs = super()._parse_attr([a for a in attr_proto if a.name not in empty])
        return {**attrs, **dict.fromkeys(empty, ())}

    def _parse_array(self, tensor: onnx.TensorProto) -> Any:
        """Return the values of a weight or constant; read them now if they are in another file."""
        if self._path is not None and is_outside(tensor):
            array = array_of(tensor, self._path)
            turned = array.T if tensor.name in self._turned else array
            if turned.dtype == "bfloat16":
                return tvm.runtime.tensor(np.ascontiguousarray(turned))
            # TVM's tensor uses the array's memory, so there is no second copy of the weight.
            return tvm.runtime.from_dlpack(aligned_copy(turned))
        return super()._parse_array(tensor)

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Do nothing, because `check_operators` has already refused unsupported operators."""

    def _convert_operator(self, *node: Any) -> relax.Expr:
        try:
            return self._converted(*node)
        except Exception as error:
            raise _Failed(error) from error

    def _converted(
        self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        name = attrs["tvm_custom"]["name"]
        try:

            def compute(given: Any) -> Any:
                return self._convert(*in_later_form(self.bb, op_name, given, attrs, opset))

            node = ImportedNode(f"`{name}` (`{op_name}`)", op_name, inputs, attrs, compute)
            result = self._parts.computed(self.bb, node)
        except Exception as err:
            # An error may already name a node. It is then about an earlier node, whose result this
            # node reads, and keeps the earlier node's name.
            if isinstance(err, UnsupportedModelError) and err.node:
                raise
            raise _cannot_import(name, op_name, err) from err
        result = without_empty(self._bind(within_bounds(result), name))
        wanted = attrs["tvm_custom"]["num_outputs"]
        found = len(result.ty.fields) if isinstance(result.ty, relax.TupleType) else 1
        if wanted > max(found, 1):
            raise UnsupportedModelError(
                f"TVM computes {found} of the {wanted} outputs of node `{name}` (`{op_name}`): "
                "export the model without the other outputs"
            )
        self._claim(result, name)
        return not_taken_apart(op_name, result)

    def _convert(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        """Return the result of a node: a folded constant, or else the result of a converter.

        A converter of this package is preferred to TVM's converter.
        """
        for i, value in enumerate(inputs):
            inputs[i] = without_empty(value)
        some_are_empty = any(map(is_empty, inputs))
        result = fold(op_name, inputs, attrs, opset, of_any_kind=some_are_empty)
        if result is None and (some_are_empty or op_name in MAY_BE_EMPTY):
            result = of_empty(op_name, inputs, attrs, opset)
            inputs = full_inputs(op_name, inputs)
        wide = widened(self.bb, op_name, inputs) if result is None else None
        if wide is not None:
            result = narrowed(self.bb, self._convert(op_name, wide, attrs, opset))
        if result is None:
            result = self._checked_part(op_name, inputs, attrs, opset)
        if result is None:
            check_inputs(op_name, inputs)
            inputs, attrs = by_rows(self.bb, op_name, inputs, attrs)
            inputs = with_safe_indices(self.bb, op_name, inputs, attrs)
            inputs = as_tvm_takes_them(op_name, inputs, attrs)
            result = convert(self.bb, op_name, inputs, attrs)
        if result is None:
            return super()._convert_operator(op_name, inputs, attrs, opset)
        return self.bb.normalize(result)

    def _checked_part(self, op_name: str, inputs: Any, attrs: Mapping[str, Any], opset: int) -> Any:
        """Return a result whose shape is computed at run time; refuse unsupported nodes.

        Return None for a node whose result has a fixed shape.
        """
        try:
            check_constants(op_name, inputs, opset)
        except UnsupportedModelError as err:
            named = _cannot_import(attrs["tvm_custom"]["name"], op_name, err)
            part = self._parts.made(self.bb, op_name, inputs, named)
            if part is None and op_name == "Slice":
                part = moving_part(self.bb, inputs, named.node)
            if part is None:
                raise
            return part
        return None

    def _bind(self, result: Any, name: str) -> Any:
        """Bind each tensor that `result` computes to a variable; a result that is a shape is not
        bound.
        """
        if isinstance(result, relax.Tuple):
            fields = [self._bind(field, name) for field in result.fields]
            return self.bb.normalize(relax.Tuple(fields))
        if not isinstance(result, (relax.Call, relax.TupleGetItem)):
            return result
        # Some converters return calls without a type. The type is added here, because the next
        # converter needs it.
        result = self.bb.normalize(result)
        if isinstance(result.ty, (relax.TensorType, relax.TupleType)):
            return self.bb.emit(result, name)
        return result

    def _claim(self, expr: Any, name: str) -> None:
        """Record `name` for all bindings that `expr` depends on and that have no node yet."""
        pending = [expr]
        while pending:
            expr = pending.pop()
            if isinstance(expr, relax.Tuple):
                pending.extend(expr.fields)
            elif isinstance(expr, relax.Call):
                pending.extend(expr.args)
            elif isinstance(expr, relax.TupleGetItem):
                pending.append(expr.tuple_value)
            elif isinstance(expr, relax.Var) and expr not in self._names:
                value = self.bb.lookup_binding(expr)
                if value is not None:
                    self._names[expr] = name
                    pending.append(value)


def _cannot_import(name: str, op_type: str, err: Exception) -> UnsupportedModelError:
    node = f"`{name}` (`{op_type}`)"
    is_ours = isinstance(err, UnsupportedModelError) and not isinstance(err, MisfitError)
    kind = UnsupportedModelError if is_ours else MisfitError
    return kind(f"TVM cannot import node {node}: {first_line(err)}", node)


def _opset(model: onnx.ModelProto) -> int:
    standard = (op.version for op in model.opset_import if op.domain in ("", "ai.onnx"))
    return next(standard, 1)


def _some(names: list[str], limit: int = 3) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")
