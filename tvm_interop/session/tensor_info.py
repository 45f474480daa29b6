"""Describes the inputs and outputs of a model as onnxruntime does: name, shape and type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..program.row_axis import unnamed_dimension

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._native.runtime import Port

_OF_ONNX = {"float32": "float", "float64": "double", "object": "string"}
"""Maps NumPy's name of a type to onnxruntime's name, for the types whose two names differ."""
_NO_VERSION = 2**63 - 1
"""The version that onnxruntime gives for a model that has none."""
_FIRST_REPLACEABLE = 4
"""The first version of ONNX's format in which the weights of a model need not be inputs.

Before, all weights were inputs too, and a run could not replace them.
"""


class NodeArg(NamedTuple):
    """An input or output of a model, as onnxruntime describes it.

    Attributes
    ----------
    name: the name of the input or output.
    shape: a list of the sizes. An open dimension is given by its name, or None if it has no name.
    type: onnxruntime's name of the type, such as `tensor(float)`.
    dtype: NumPy's name of the type, such as `float32`. Strings are `object`.
    """

    name: str
    shape: list[int | str | None]
    type: str
    dtype: str


class TensorInfo(NamedTuple):
    """An input or output of a model.

    Attributes
    ----------
    name: the name of the input or output.
    shape: the size of each dimension. An open dimension is given by its name, or None if it has no
        name.
    dtype: NumPy's name of the tensor's type, such as `float32`. Strings are `object`.
    has_shape: whether the number of dimensions is known. If it is not, `shape` is empty.
    is_sequence: whether this is a sequence of tensors. Only outputs are sequences.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: str
    has_shape: bool = True
    is_sequence: bool = False

    @property
    def type(self) -> str:
        """onnxruntime's name of the type, such as `tensor(float)`."""
        name = f"tensor({_OF_ONNX.get(self.dtype, self.dtype)})"
        return f"seq({name})" if self.is_sequence else name

    @property
    def dimensions(self) -> tuple[int | str, ...]:
        """The shape. An open dimension has the name by which users give it a size."""
        return tuple(
            unnamed_dimension(self.name, axis) if size is None else size
            for axis, size in enumerate(self.shape)
        )

    @property
    def is_open(self) -> bool:
        """Whether a dimension has no size yet."""
        return not self.has_shape or not all(isinstance(size, int) for size in self.shape)

    def as_node_arg(self) -> NodeArg:
        """Return the description that onnxruntime gives, whose shape is a list."""
        return NodeArg(self.name, list(self.shape), self.type, self.dtype)

    def __str__(self) -> str:
        if self.is_sequence:
            return f"`{self.name}` (a sequence of {self.dtype})"
        if not self.has_shape:
            return f"`{self.name}` ({self.dtype} of any shape)"
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"`{self.name}` ({self.dtype} of shape [{sizes}])"


class ModelMeta(NamedTuple):
    """The metadata that the exporter wrote into a model, under onnxruntime's names.

    Attributes
    ----------
    version: the version of the model; 2**63 - 1 if the model has none.
    """

    custom_metadata_map: dict[str, str]
    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = _NO_VERSION


class MapInfo(NamedTuple):
    """An output that `ZipMap` computes: a list with a dictionary for each row.

    Attributes
    ----------
    type: onnxruntime's name of the type.
    keys: the keys of the dictionaries: strings or integers.
    """

    type: str
    keys: tuple[str | int, ...]


def infos_of_ports(
    ports: Iterable[Port], shapes: Iterable[tuple[int | str, ...]]
) -> list[TensorInfo]:
    """Return the inputs or the outputs of a compiled model, with the shapes that they may have."""
    return [
        TensorInfo(port.name, shape, port.dtype) for port, shape in zip(ports, shapes, strict=True)
    ]


def infos_of_onnx(model: Any) -> tuple[list[TensorInfo], list[TensorInfo]]:
    """Return the inputs, without weights, and the outputs of an `onnx.ModelProto`."""
    weights = {weight.name for weight in model.graph.initializer}
    inputs = [_info(value) for value in model.graph.input if value.name not in weights]
    return inputs, [_info(value) for value in model.graph.output]


def replaceable_of_onnx(model: Any) -> list[TensorInfo]:
    """Return the weights of an `onnx.ModelProto` that a run may replace.

    These weights are also inputs. ONNX lets such inputs be replaced since version 4 of its format.
    """
    if model.ir_version < _FIRST_REPLACEABLE:
        return []
    weights = {weight.name for weight in model.graph.initializer}
    return [_info(value) for value in model.graph.input if value.name in weights]


def _info(value: Any) -> TensorInfo:
    import onnx

    def size(dim: Any) -> int | str | None:
        has_size = dim.HasField("dim_value") and dim.dim_value >= 0  # -1 stands for an open size.
        return dim.dim_value if has_size else dim.dim_param or None

    within = value.type.sequence_type.elem_type
    is_sequence = within.WhichOneof("value") == "tensor_type"
    tensor = within.tensor_type if is_sequence else value.type.tensor_type
    kind = tensor.elem_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind)) if kind else "float32"
    if is_sequence:  # onnxruntime gives no shape either.
        return TensorInfo(value.name, (), dtype, has_shape=False, is_sequence=True)
    shape = tuple(map(size, tensor.shape.dim))
    return TensorInfo(value.name, shape, dtype, tensor.HasField("shape"))


def meta_of_onnx(model: Any) -> ModelMeta:
    """Return the metadata that the exporter wrote into an `onnx.ModelProto`."""
    return ModelMeta(
        {entry.key: entry.value for entry in model.metadata_props},
        model.producer_name,
        model.graph.name,
        model.domain,
        model.doc_string,
        model.graph.doc_string,
        model.model_version if model.HasField("model_version") else _NO_VERSION,
    )


def maps_of_onnx(model: Any) -> dict[str, MapInfo]:
    """Return the outputs of an `onnx.ModelProto` that a `ZipMap` computes, by name."""
    outputs, found = {value.name for value in model.graph.output}, {}
    for node in model.graph.node:
        if node.op_type != "ZipMap" or node.domain != "ai.onnx.ml" or node.output[0] not in outputs:
            continue
        keys: list[str | int] = []
        for attribute in node.attribute:
            keys += attribute.ints
            keys += [text.decode() for text in attribute.strings]
        kind = "string" if keys and isinstance(keys[0], str) else "int64"
        found[node.output[0]] = MapInfo(f"seq(map({kind},tensor(float)))", tuple(keys))
    return found
