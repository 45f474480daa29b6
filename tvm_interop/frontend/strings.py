"""Replaces the strings of a model by integers, because a compiled model computes only numbers.

Each string of the model gets a number, and a tensor of strings becomes a tensor of int64. So the
label of a classifier is the position of a string in a list. The list is stored with the model's
inputs and outputs, and code that writes or reads them turns strings into numbers, and numbers into
strings. A string of an input that is not in the model becomes -1, which equals no other number.
Operators that move elements, such as `Reshape`, read such numbers as they read strings.

Source: the operators' definitions in the ONNX specification. Where it is silent, such as for a key
that is listed twice, the source is onnxruntime's kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper

from ..errors import UnsupportedModelError
from ..lowering.names import OUTPUT_NAMES, STRING_INPUTS, STRING_OUTPUTS
from .expand import inner_nodes
from .shapes import with_inferred_types

_DOMAIN = "ai.onnx.ml"
_DOMAINS = ("", "ai.onnx", _DOMAIN)
LABELS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
"""The attributes of classifiers that hold integer labels."""
_MOVERS = {
    "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice",
    "Squeeze", "Tile", "Transpose", "Unsqueeze", "ArrayFeatureExtractor",
}  # fmt: skip
"""Operators whose result has the elements of their first input, in another place or shape."""
_UNLISTED = "_Unused"
"""The string that ONNX defines for a number that is not listed, if the node names none."""
_UNKNOWN = -1
"""The number of a string of an input that is not in the model."""
_INTEGERS = {
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32),
}
_ENCODER_OPSET = 2
"""The first opset of `ai.onnx.ml` whose `LabelEncoder` has keys and values."""


class Strings(NamedTuple):
    """The strings of the inputs and of the outputs that were strings, by their names.

    The input or output now has positions in this list. An input has -1 for all other strings.
    """

    inputs: dict[str, tuple[str, ...]]
    outputs: dict[str, tuple[str, ...]]


NO_STRINGS = Strings({}, {})


class StringCodes:
    """Numbers the strings of a graph, and replaces them in its nodes, constants and outputs.

    Attributes
    ----------
    strings: the strings of the inputs and outputs.
    """

    def __init__(self, graph: onnx.GraphProto, origin: str, types: Mapping[str, int]) -> None:
        """Change `graph` in place.

        Parameters
        ----------
        types: ONNX's number of the type of each tensor, by name, as far as they are known. They are
            needed only for nodes that turn numbers into strings.

        Raises
        ------
        UnsupportedModelError
            A node computes with strings in another way than to compare, list or move them. Or an
            output is strings of an input.
        """
        self._graph, self._origin, self._types = graph, origin, types
        self._spelled: list[onnx.NodeProto] = []
        self._codes: dict[str, int] = {}
        # For each tensor that was strings, by its name, the numbers that it may have.
        self._of: dict[str, set[int]] = {}
        inputs = self._inputs()
        for node in graph.node:
            self._number_labels(node)
        for tensor in graph.initializer:
            if tensor.data_type == TensorProto.STRING:
                tensor.CopyFrom(self._numbered(tensor.name, tensor.name, tensor))
        for node in graph.node:
            self._replace(node)
        self._spell()
        texts = tuple(self._codes)
        # A model may have inputs of strings that it does not read.
        self.strings = Strings(dict.fromkeys(inputs, texts or ("",)), self._outputs(texts))

    def _inputs(self) -> list[str]:
        """Turn the inputs that are strings into inputs of numbers, and return their names."""
        constants = {tensor.name for tensor in self._graph.initializer}
        found = []
        for value in self._graph.input:
            is_text = value.type.tensor_type.elem_type == TensorProto.STRING
            if is_text and value.name not in constants:
                value.type.tensor_type.elem_type = TensorProto.INT64
                self._of[value.name] = {_UNKNOWN}
                found.append(value.name)
        return found

    def _outputs(self, texts: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        for value in self._graph.output:
            is_text = value.type.tensor_type.elem_type == TensorProto.STRING
            if is_text and value.name not in self._of:
                raise UnsupportedModelError(
                    f"output `{value.name}` of {self._origin} should be strings, and the node that "
                    "computes it gives none: export the model again with integers as labels, or "
                    "without this output"
                )
            if _UNKNOWN in self._of.get(value.name, ()):
                raise UnsupportedModelError(
                    f"output `{value.name}` of {self._origin} is strings of an input, and a "
                    "compiled model knows only the strings that it holds itself: remove the output"
                )
        for value in (*self._graph.output, *self._graph.value_info, *self._graph.input):
            if value.name in self._of and value.type.HasField("tensor_type"):
                value.type.tensor_type.elem_type = TensorProto.INT64
        return {
            value.name: texts[: max(self._of[value.name], default=0) + 1]
            for value in self._graph.output
            if value.name in self._of
        }

    def _code(self, text: bytes | str, where: str) -> int:
        if isinstance(text, bytes):
            try:
                text = text.decode()
            except UnicodeDecodeError:
                raise UnsupportedModelError(
                    f"{where} of {self._origin} has the string {text[:40]!r}, which is not UTF-8: "
                    "export the model again"
                ) from None
        if "\0" in text:
            raise UnsupportedModelError(
                f"{where} of {self._origin} has the string {text[:40]!r} with a zero byte: replace "
                "the byte and export the model again"
            )
        return self._codes.setdefault(text, len(self._codes))

    def _codes_of(self, texts: Iterable[bytes | str], where: str) -> list[int]:
        return [self._code(text, where) for text in texts]

    def _numbered(self, name: str, to: str, tensor: onnx.TensorProto) -> onnx.TensorProto:
        """Return a constant of strings as a constant of numbers.

        Parameters
        ----------
        name: the name of the constant in error messages.
        to: the name of the tensor that has the constant's elements.
        """
        codes = self._codes_of(tensor.string_data, f"the constant `{name}`")
        self._of[to] = set(codes)
        return numpy_helper.from_array(np.array(codes, np.int64).reshape(tensor.dims), tensor.name)

    def _number_labels(self, node: onnx.NodeProto) -> None:
        """Replace the labels of a classifier.

        All labels get their numbers before other strings, so that the number of a label is the
        index of its class.
        """
        texts = labels_of(node)
        if texts:
            codes = self._codes_of(texts, _named(node))
            _set(node, ("classlabels_strings",), {LABELS[node.op_type]: codes})
            self._of[node.output[0]] = set(codes)

    def _replace(self, node: onnx.NodeProto) -> None:
        kind = node.op_type if node.domain in _DOMAINS else ""
        reads = [name in self._of for name in node.input]
        if kind in ("LabelEncoder", "CategoryMapper"):
            self._replace_encoder(node, kind)
        elif kind == "OneHotEncoder" and reads[0]:
            texts = helper.get_node_attr_value(node, "cats_strings")
            codes = self._codes_of(texts, _named(node))
            _set(node, ("cats_strings",), {"cats_int64s": codes})
        elif kind == "TfIdfVectorizer" and reads[0]:
            texts = helper.get_node_attr_value(node, "pool_strings")
            codes = self._codes_of(texts, _named(node))
            _set(node, ("pool_strings",), {"pool_int64s": codes})
        elif kind == "Constant":
            self._replace_constant(node)
        elif kind == "Cast" and any(each.i == TensorProto.STRING for each in node.attribute):
            if not reads[0]:
                if self._types.get(node.input[0]) not in _INTEGERS:
                    raise self._refusal(node, "turns numbers that are not integers into strings")
                self._spelled.append(node)
                self._of[node.output[0]] = {_UNKNOWN}
                return
            node.CopyFrom(helper.make_node("Identity", node.input, node.output, node.name))
            self._of[node.output[0]] = self._of[node.input[0]]
        elif kind in _MOVERS and reads[:1] == [True]:
            self._of[node.output[0]] = self._of[node.input[0]]
        elif (kind == "Concat" and any(reads)) or (kind == "Where" and any(reads[1:])):
            read = node.input if kind == "Concat" else node.input[1:]
            self._of[node.output[0]] = set().union(*(self._of.get(name, ()) for name in read))
        elif kind == "Equal" and all(reads):
            # Strings are equal if their numbers are, unless both are not listed.
            if all(_UNKNOWN in self._of[name] for name in node.input):
                raise self._refusal(node, "compares strings of inputs with each other")
        elif any(reads) or any(name in self._of for n in inner_nodes(node) for name in n.input):
            raise self._refusal(node, "computes with strings")

    def _spell(self) -> None:
        """Replace the nodes that turn integers into strings, now that all strings have numbers.

        An integer becomes the number of the string that spells it.
        """
        known = {text: code for text, code in self._codes.items() if _spells_integer(text)}
        for node in self._spelled:
            wide = f"{node.output[0]}/int64"
            cast = helper.make_node("Cast", node.input, [wide], wide, to=TensorProto.INT64)
            _set(
                node,
                ("to",),
                {
                    "keys_int64s": list(map(int, known)) or [0],
                    "values_int64s": list(known.values()) or [_UNKNOWN],
                    "default_int64": _UNKNOWN,
                },
            )
            node.op_type, node.domain, node.input[0] = "LabelEncoder", _DOMAIN, wide
            names = [each.output[0] for each in self._graph.node]
            self._graph.node.insert(names.index(node.output[0]), cast)

    def _refusal(self, node: onnx.NodeProto, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{_named(node)} of {self._origin} {what}, and a compiled model computes numbers. "
            "Strings may be the labels of a classifier, the keys and values of a LabelEncoder, and "
            "constants; they may be compared with constants, selected and moved. Remove the node, "
            "and do its work before or after the model runs"
        )

    def _replace_constant(self, node: onnx.NodeProto) -> None:
        attribute = node.attribute[0]
        value = helper.get_attribute_value(attribute)
        if attribute.name == "value_string":
            value = helper.make_tensor("", TensorProto.STRING, [], [value])
        elif attribute.name == "value_strings":
            value = helper.make_tensor("", TensorProto.STRING, [len(value)], value)
        elif attribute.name != "value" or value.data_type != TensorProto.STRING:
            return
        numbered = self._numbered(node.name or node.output[0], node.output[0], value)
        _set(node, (attribute.name,), {"value": numbered})

    def _replace_encoder(self, node: onnx.NodeProto, kind: str) -> None:
        """Replace the strings among the keys and values of a node, and make it a `LabelEncoder`."""
        attrs = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        where, reads_strings = _named(node), node.input[0] in self._of
        changed: dict[str, Any] = {}
        old = "cats_strings" if kind == "CategoryMapper" else "classes_strings"
        if old in attrs:
            codes = self._codes_of(attrs[old], where)
            numbers = list(attrs.get("cats_int64s", range(len(codes))))
            sides = (codes, numbers) if reads_strings else (numbers, codes)
            # onnxruntime uses the last of equal keys here.
            table = dict(zip(*sides, strict=True))
            changed = {"keys_int64s": list(table), "values_int64s": list(table.values())}
            gives_strings = not reads_strings
        else:
            for side in ("keys", "values"):
                texts = _listed(attrs, side)
                if texts is not None:
                    changed[f"{side}_int64s"] = self._codes_of(texts, where)
            gives_strings = "values_int64s" in changed
            if reads_strings != ("keys_int64s" in changed):
                raise self._refusal(node, "compares strings with numbers")
        if gives_strings:
            changed["default_int64"] = self._code(_default(attrs), where)
            self._of[node.output[0]] = {*changed["values_int64s"], changed["default_int64"]}
        gone = {name for name in attrs if name.endswith(("_strings", "_string"))} | {"cats_int64s"}
        gone |= {f"{name.partition('_')[0]}_tensor" for name in changed}
        _set(node, gone, changed)
        node.op_type = "LabelEncoder"


def _spells_integer(text: str) -> bool:
    """Whether a conversion of an integer of 64 bits to a string can give `text`."""
    is_number = text.removeprefix("-").isdecimal() and text.isascii()
    return is_number and str(int(text)) == text and -(2**63) <= int(text) < 2**63


def _listed(attrs: Mapping[str, Any], side: str) -> Sequence[bytes] | None:
    """Return the keys or the values of a `LabelEncoder` if they are strings, else None."""
    tensor = attrs.get(f"{side}_tensor")
    if tensor is not None and tensor.data_type == TensorProto.STRING:
        return list(tensor.string_data)
    return attrs.get(f"{side}_strings")


def _default(attrs: Mapping[str, Any]) -> bytes | str:
    """Return the string of a number that is not among the keys."""
    tensor = attrs.get("default_tensor")
    if tensor is not None and tensor.string_data:
        return bytes(tensor.string_data[0])
    default: bytes | str = attrs.get("default_string", _UNLISTED)
    return default


def labels_of(node: onnx.NodeProto) -> list[str | bytes]:
    """Return the string labels of a classifier; an empty list if there are none."""
    if node.domain != _DOMAIN or node.op_type not in LABELS:
        return []
    return [
        label
        for attribute in node.attribute
        if attribute.name == "classlabels_strings"
        for label in attribute.strings
    ]


def has_strings(graph: onnx.GraphProto) -> bool:
    """Whether a node, a constant, an input or an output of the graph holds strings."""
    values = (*graph.input, *graph.output)
    return (
        any(value.type.tensor_type.elem_type == TensorProto.STRING for value in values)
        or any(tensor.data_type == TensorProto.STRING for tensor in graph.initializer)
        or any(map(_has_strings, graph.node))
    )


def _has_strings(node: onnx.NodeProto) -> bool:
    if node.op_type == "ZipMap":
        return False
    return any(
        (each.name.endswith(("_strings", "value_string")) and node.domain in _DOMAINS)
        or (each.name == "to" and each.i == TensorProto.STRING)
        or each.t.data_type == TensorProto.STRING
        for each in node.attribute
    )


def number_strings(model: onnx.ModelProto, origin: str) -> Strings:
    """Replace the strings of `model` by numbers, in place.

    Returns
    -------
    The strings of the inputs and outputs.

    Raises
    ------
    UnsupportedModelError
        The model computes with strings in a way that is not supported.
    """
    types: dict[str, int] = {}
    if any(node.op_type == "Cast" and _has_strings(node) for node in model.graph.node):
        graph = with_inferred_types(model).graph
        types = {tensor.name: tensor.data_type for tensor in graph.initializer}
        for value in (*graph.input, *graph.value_info):
            types[value.name] = value.type.tensor_type.elem_type
        if not any(opset.domain == _DOMAIN for opset in model.opset_import):
            model.opset_import.append(helper.make_opsetid(_DOMAIN, _ENCODER_OPSET))
    found = StringCodes(model.graph, origin, types).strings
    for opset in model.opset_import:
        if opset.domain == _DOMAIN:
            opset.version = max(opset.version, _ENCODER_OPSET)
    return found


def with_strings(mod: tvm.IRModule, strings: Strings) -> tvm.IRModule:
    """Return an imported module that knows the strings of its inputs and outputs."""
    if strings == NO_STRINGS:
        return mod
    main = mod["main"]
    names = {
        "input": [param.name for param in main.params],
        "output": [str(name) for name in main.attrs[OUTPUT_NAMES]],
    }
    for kind, texts, attribute in (
        ("input", strings.inputs, STRING_INPUTS),
        ("output", strings.outputs, STRING_OUTPUTS),
    ):
        listed = [
            {kind: i, "strings": texts[name]} for i, name in enumerate(names[kind]) if name in texts
        ]
        if listed:
            main = main.with_attr(attribute, json.dumps(listed))
    mod = mod.clone()
    mod.update_func(mod.get_global_var("main"), main)
    return mod


def _set(node: onnx.NodeProto, removed: Iterable[str], added: Mapping[str, Any]) -> None:
    """Replace attributes of a node."""
    gone = {*removed, *added}
    kept = [each for each in node.attribute if each.name not in gone]
    kept += [helper.make_attribute(name, value) for name, value in added.items()]
    del node.attribute[:]
    node.attribute.extend(kept)


def _named(node: onnx.NodeProto) -> str:
    return f"node `{node.name or node.output[0]}` (`{node.op_type}`)"
