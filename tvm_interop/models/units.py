"""Groups the operators of an ONNX model into schedule units, as IOS and LIOS count operators."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx

from ..errors import UnsupportedModelError
from ..program.graph import OpGraph
from .source import read_graph

_VIEWS = {"Identity", "Dropout", "Flatten", "Reshape", "Squeeze", "Unsqueeze"}
_SUMS = {"Add", "Sum"}
_NORMALISATIONS = {"LayerNormalization", "Softmax"}
_PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
_GLOBAL_POOLS = {"GlobalAveragePool", "GlobalMaxPool"}
_ELEMENTWISE = {
    *("Abs", "Cast", "Ceil", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
    *("HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "PRelu", "Reciprocal", "Selu", "Sigmoid"),
    *("Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh"),
    *("Add", "Div", "Mul", "Pow", "Sub", "Sum", "Transpose"),
}


@dataclass(frozen=True)
class ScheduleUnits:
    """A model's schedule units, in topological order.

    Attributes
    ----------
    names: the name of each unit's main operator.
    members: the names of all operators of each unit, in the model's order.
    edges: producer and consumer of every tensor that a unit reads from another unit. An edge occurs
        as often as the consumer reads the tensor.
    """

    names: tuple[str, ...]
    members: tuple[tuple[str, ...], ...]
    edges: tuple[tuple[int, int], ...]


def unit_graph(model: Any) -> OpGraph:
    """The graph of a model's schedule units.

    Parameters
    ----------
    model: an ONNX file's path, a network's name or an ONNX model; see `source.read_graph`.

    Raises
    ------
    UnsupportedModelError: the model cannot be read.
    """
    units = schedule_units(read_graph(model))
    return OpGraph(units.names, units.edges)


def schedule_units(model: onnx.ModelProto) -> ScheduleUnits:
    """Group a model's operators into schedule units, as IOS and LIOS count them.

    Every operator is a separate unit, with these exceptions:

    1. An operator whose inputs are all constants is not a unit. An operator that only changes the
       shape is not a unit either: its readers count as readers of its input.
    2. A depthwise convolution joins a 1x1 convolution that is its only reader. Both together are
       called a SepConv. A ReLU joins a SepConv that is its only reader.
    3. A ReLU joins the convolution or matrix product whose only reader it is. Any other ReLU joins
       the convolution that is its only reader, unless the ReLU reads a sum. A ReLU behind a sum is
       a unit, as in ResNet.
    4. A sum joins its only reader if the reader is a ReLU-SepConv, a normalisation (softmax, layer
       norm) or a concat. A concat joins its only reader if the reader is a concat. The reader then
       counts as a reader of the inputs of the sum or concat. Other sums and concats are units; the
       papers call such units identity.
    5. Another element-wise operator or transposition joins the unit that computes all of its
       inputs. Examples are biases, and activations that consist of several operators.
    6. A fully connected layer that directly follows a global pooling joins the pooling. The layer
       is small, because it reads a single vector, and the papers' networks end at the pooling.

    The results are the papers' counts: SqueezeNet has 50 units and 65 edges, Inception-V3 119 and
    153, NASNet-A 374 and 576, RandWire 120 and 260.

    Raises
    ------
    UnsupportedModelError: the model has control flow (`If`, `Loop`, `Scan`).
    """
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    return _Grouping(model.graph).units()


class _Grouping:
    """Groups the nodes of a graph into units. A node may join the unit of another node."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._nodes: list[onnx.NodeProto] = []
        self._producer: dict[str, int] = {}
        # `_shown` maps the output of each view (such as a reshape) to the tensor that is viewed.
        # `_readers` maps each tensor to the list of nodes that read it. None in the list stands
        # for an output of the model.
        self._shown: dict[str, str] = {}
        self._constants = set(self._weights)
        self._readers: dict[str, list[int | None]] = {}
        for node in graph.node:
            self._add(node)
        for output in graph.output:
            self._readers.setdefault(self._resolve(output.name), []).append(None)
        self._goes_with: dict[int, int] = {}

    def units(self) -> ScheduleUnits:
        for i in range(len(self._nodes)):
            other = self._partner(i)
            if other is not None:
                self._goes_with[i] = other
        mains = [self._main(i) for i in range(len(self._nodes))]
        edges = [
            (mains[source], mains[i])
            for i in range(len(self._nodes))
            for source in self._sources(i)
            if mains[source] != mains[i]
        ]
        order = _topological(sorted(set(mains)), edges)
        number = {main: unit for unit, main in enumerate(order)}
        members: list[list[str]] = [[] for _ in order]
        for i, node in enumerate(self._nodes):
            members[number[mains[i]]].append(_name(node))
        return ScheduleUnits(
            names=tuple(_name(self._nodes[main]) for main in order),
            members=tuple(tuple(names) for names in members),
            edges=tuple((number[u], number[v]) for u, v in edges),
        )

    def _add(self, node: onnx.NodeProto) -> None:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise UnsupportedModelError(
                f"node `{_name(node)}` is control flow (`{node.op_type}`), and which operators "
                "run depends on the input: export the model without it"
            )
        inputs = [self._resolve(value) for value in node.input if value]
        if all(value in self._constants for value in inputs):
            self._constants.update(node.output)
        elif node.op_type in _VIEWS:
            self._shown[node.output[0]] = inputs[0]
        else:
            for value in inputs:
                self._readers.setdefault(value, []).append(len(self._nodes))
            self._producer.update(dict.fromkeys(node.output, len(self._nodes)))
            self._nodes.append(node)

    def _partner(self, i: int) -> int | None:
        """Return the node whose unit node `i` joins; None if it joins no other unit."""
        node = self._nodes[i]
        if node.op_type == "Conv":
            reader = self._only_reader(i)
            return reader if self._opens_separable(i, reader) else None
        if node.op_type == "Relu":
            return self._partner_of_relu(i)
        if self._joins(i):
            reader = self._only_reader(i)
            if reader is not None and self._takes_terms(reader, node):
                return reader
        if node.op_type == "Gemm" and self._reads(i, _GLOBAL_POOLS):
            return self._alone_read(i)
        if node.op_type in _ELEMENTWISE:
            mains = {self._main(source) for source in self._sources(i)}
            if len(mains) == 1 and len(self._outside(i)) == 0:
                return mains.pop()
        return None

    def _partner_of_relu(self, i: int) -> int | None:
        reader = self._only_reader(i)
        if self._is_separable(reader):
            return reader
        source = self._alone_read(i)
        if source is not None and self._is_product(source):
            return source
        reads_sum = any(self._joins(s) and not self._concats(s) for s in self._sources(i))
        opens = reader is not None and self._nodes[reader].op_type == "Conv" and not reads_sum
        return reader if opens else None

    def _takes_terms(self, reader: int, join: onnx.NodeProto) -> bool:
        """Whether the sum or concat `join` joins the unit of its only reader, the node `reader`,
        which then counts as the reader of the inputs of `join`.
        """
        kind = self._nodes[reader].op_type
        if kind == "Concat":
            return True
        if join.op_type == "Concat":
            return False
        separable = kind == "Relu" and self._is_separable(self._only_reader(reader))
        return separable or kind in _NORMALISATIONS

    def _opens_separable(self, i: int, reader: int | None) -> bool:
        """Whether `i` is a depthwise convolution and its reader is a 1x1 convolution."""
        if reader is None or not self._is_depthwise(i):
            return False
        node = self._nodes[reader]
        weight = self._weights.get(node.input[1]) if node.op_type == "Conv" else None
        dims = list(weight.dims) if weight is not None else []
        return dims[2:] == [1] * len(dims[2:]) and len(dims) > 2 and _attribute(node, "group") == 1

    def _is_depthwise(self, i: int) -> bool:
        node = self._nodes[i]
        weight = self._weights.get(node.input[1]) if node.op_type == "Conv" else None
        return weight is not None and weight.dims[1] == 1 and _attribute(node, "group") > 1

    def _is_separable(self, i: int | None) -> bool:
        """Whether node `i` is the depthwise convolution of a separable convolution."""
        return i is not None and self._opens_separable(i, self._only_reader(i))

    def _is_product(self, i: int) -> bool:
        """Whether `i` is a convolution or matrix product, or the addition of its bias."""
        main = self._nodes[self._main(i)].op_type
        return main in _PRODUCTS and self._nodes[i].op_type in {*_PRODUCTS, *_SUMS}

    def _joins(self, i: int) -> bool:
        """Whether `i` is a concat or sum with at least two inputs that are not constants."""
        node = self._nodes[i]
        terms = [v for v in node.input if self._resolve(v) not in self._constants]
        return node.op_type in {"Concat", *_SUMS} and len(terms) > 1

    def _concats(self, i: int) -> bool:
        return bool(self._nodes[i].op_type == "Concat")

    def _reads(self, i: int, kinds: set[str]) -> bool:
        sources = list(self._sources(i))
        return bool(sources) and all(self._nodes[s].op_type in kinds for s in sources)

    def _only_reader(self, i: int) -> int | None:
        """The only reader of node `i`; None if `i` has several readers or is a model output."""
        readers = [
            reader for value in self._nodes[i].output for reader in self._readers.get(value, [])
        ]
        return readers[0] if len(set(readers)) == 1 else None

    def _alone_read(self, i: int) -> int | None:
        """Return the only node that node `i` reads; None if other nodes read that node too."""
        sources = set(self._sources(i))
        source = sources.pop() if len(sources) == 1 else None
        return source if source is not None and self._only_reader(source) == i else None

    def _sources(self, i: int) -> Iterator[int]:
        """The nodes that compute the inputs of node `i`, one for each input."""
        for value in self._nodes[i].input:
            producer = self._producer.get(self._resolve(value))
            if producer is not None:
                yield producer

    def _outside(self, i: int) -> list[str]:
        """The model's inputs that node `i` reads."""
        values = [self._resolve(value) for value in self._nodes[i].input if value]
        return [v for v in values if v not in self._constants and v not in self._producer]

    def _resolve(self, value: str) -> str:
        return self._shown.get(value, value)

    def _main(self, i: int) -> int:
        while i in self._goes_with:
            i = self._goes_with[i]
        return i


def _topological(vertices: list[int], edges: list[tuple[int, int]]) -> list[int]:
    """The vertices in topological order. If several vertices are ready, the lowest comes first."""
    waits = dict.fromkeys(vertices, 0)
    after: dict[int, list[int]] = {vertex: [] for vertex in vertices}
    for u, v in edges:
        waits[v] += 1
        after[u].append(v)
    ready = [vertex for vertex in vertices if waits[vertex] == 0]
    order = []
    while ready:
        vertex = heapq.heappop(ready)
        order.append(vertex)
        for v in after[vertex]:
            waits[v] -= 1
            if waits[v] == 0:
                heapq.heappush(ready, v)
    return order


def _attribute(node: onnx.NodeProto, name: str, default: int = 1) -> int:
    found = (attribute.i for attribute in node.attribute if attribute.name == name)
    return int(next(found, default))


def _name(node: onnx.NodeProto) -> str:
    """The node's name; if it has none, the name of its first output, or its operator type."""
    return str(node.name or next((name for name in node.output if name), node.op_type))
