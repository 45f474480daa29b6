"""Defines `Program`, the form of a model for schedulers and planners: operators and tensors.

Lowering turns a Relax function into a `Program`, a flat list of kernel calls in topological order.
A program does not depend on Relax. So all later work (planning, measuring, executing) can be done
where the compiler is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .graph import OpGraph
from .layers import Layer, layer_of
from .library_op import LibraryOp
from .planning import Buffer
from .storage import Layout, dependencies, reads, span, stored_nbytes


@dataclass(frozen=True)
class Value:
    """One tensor.

    Attributes
    ----------
    name: unique in its program; the ONNX or Relax name for inputs and outputs.
    shape: dimensions, all known.
    dtype: as numpy spells it, e.g. `float32`.
    alias_of: index of another value, whose storage this value uses. This value is then a reshape or
        a part of the other value. The other value is never an alias itself. None if this value has
        its own storage.
    offset: for an alias, the byte at which this value begins in the storage of the other value.
    layout: the order of the tensor's elements in memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    alias_of: int | None = None
    offset: int = 0
    layout: Layout = "plain"

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in memory."""
        return stored_nbytes(self.shape, self.dtype, self.layout)


@dataclass(frozen=True)
class Operator:
    """One kernel call in destination-passing style: `kernel(*inputs, *outputs)`.

    Attributes
    ----------
    name: unique in its program; made of the names of the ONNX nodes, if they have names.
    kernel: name of the function in TVM's library of kernels.
    inputs, outputs: indices into `Program.values`.
    description: what the operator computes, for kernel libraries; None if no library could compute
        the operator.
    library: the kernel library that computes the operator; None for TVM's kernel.
    share: which share of the kernel this call runs, and the number of shares. The outermost loop of
        TVM's kernel is divided among them; a library's kernel must have shares
        (`LibraryOp.has_shares`). None if the call runs the whole kernel.
    whole: name of the divided operator of which this operator is a part; None if it is not a part.
    kernel_flops: floating-point operations of TVM's whole kernel, before it was scheduled.
    refused: the operator's description if every kernel library refused to compute the operator;
        else None.
    """

    name: str
    kernel: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    description: LibraryOp | None = None
    library: str | None = None
    share: tuple[int, int] | None = None
    whole: str | None = None
    kernel_flops: int = 0
    refused: LibraryOp | None = None

    @property
    def flops(self) -> int:
        """Number of floating-point operations; for a share of a kernel, the share's operations.

        The number is the same for every provider's kernel. It is computed from the operator's
        description, if possible: two operations for each product that a convolution or matrix
        product sums up. Otherwise it is the number of operations of TVM's kernel, or 0 if that is
        not known.
        """
        described = self.description.flops if self.description is not None else 0
        flops = described or self.kernel_flops
        return flops // self.share[1] if self.share else flops


@dataclass(repr=False)
class Program:
    """Operators in topological order, and the tensors they read and write.

    Attributes
    ----------
    values: every tensor, indexed by position.
    operators: every kernel call, in topological order; position is the operator's id.
    inputs, outputs: indices into `values`, in the model's own order. An output may be any
        value: an input, a weight, an alias, or one value given twice.
    weights: the constant tensors, by index into `values`.
    kernels: the TVM IRModule of the kernels (PrimFuncs with `global_symbol`), or None once
        they are compiled.
    """

    values: list[Value]
    operators: list[Operator]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    weights: dict[int, np.ndarray] = field(default_factory=dict)
    kernels: Any = None

    def __repr__(self) -> str:
        return (
            f"Program({len(self.operators)} operators, {len(self.inputs)} input(s), "
            f"{len(self.outputs)} output(s), {len(self.weights)} weights)"
        )

    def storage_of(self, value: int) -> int:
        """The value whose storage holds `value`. This is `value` itself, unless it is an alias."""
        alias_of = self.values[value].alias_of
        return value if alias_of is None else alias_of

    def is_constant(self, value: int) -> bool:
        """Whether `value` is a weight or a view of a weight."""
        return self.storage_of(value) in self.weights

    @property
    def is_divided(self) -> bool:
        """Whether any operator is a part of a divided operator."""
        return any(op.whole is not None for op in self.operators)

    def parts(self) -> list[list[int]] | None:
        """The ids of the parts of each operator, in order; None if no operator is divided."""
        if not self.is_divided:
            return None
        wholes: dict[str, list[int]] = {}
        for i, op in enumerate(self.operators):
            wholes.setdefault(op.whole or op.name, []).append(i)
        return list(wholes.values())

    def arguments_of(self, op: int) -> list[tuple[str, tuple[int, ...], int]]:
        """The tensors that operator `op` reads and writes, inputs first: type, shape and bytes.

        If the operator reads only some rows or columns of a tensor (`LibraryOp.cut`), the result
        has the shape and the bytes of only these rows or columns.
        """
        operator = self.operators[op]
        values = [self.values[v] for v in (*operator.inputs, *operator.outputs)]
        found = [(value.dtype, value.shape, value.nbytes) for value in values]
        if operator.description is not None and operator.description.cut:
            argument, axis, _, size = operator.description.cut
            dtype, _, nbytes = found[argument]
            shape = operator.description.shapes[argument]
            found[argument] = (dtype, shape, nbytes * shape[axis] // size)
        return found

    def edges(self) -> list[tuple[int, int]]:
        """The pair (producer, consumer) for each read of a tensor. A tensor that is read twice has
        two pairs.
        """
        return dependencies(self.values, self.operators)

    def graph(self) -> OpGraph:
        """The dependencies between the operators, with the bytes that each dependency carries."""
        found = reads(self.values, self.operators)
        edges = [(read.producer, read.consumer) for read in found]
        # If an operator reads the same bytes twice, only the first read counts, because a copy to
        # another GPU sends the bytes only once.
        first = {read: i for i, read in reversed(list(enumerate(found)))}
        nbytes = [read.end - read.begin if first[read] == i else 0 for i, read in enumerate(found)]
        layers = [self._layer_of(op) for op in self.operators]
        return OpGraph.from_edges([op.name for op in self.operators], edges, nbytes, layers)

    def _layer_of(self, op: Operator) -> Layer:
        read = [self.values[v].shape for v in op.inputs if not self.is_constant(v)]
        made = self.values[op.outputs[0]].shape if op.outputs else ()
        return layer_of(op.description if op.description is not None else op.refused, read, made)

    def writers_of(self, value: int) -> list[int]:
        """The operators that write bytes of `value`, in order."""
        root, begin, end = span(self.values, value)
        spans = (
            (i, span(self.values, v)) for i, op in enumerate(self.operators) for v in op.outputs
        )
        return [i for i, (r, b, e) in spans if r == root and b < end and begin < e]

    def buffers(self) -> list[Buffer]:
        """The tensors that need storage only during a run: all except inputs, outputs and
        weights.
        """
        kept = {self.storage_of(v) for v in self.outputs}
        writers = self._users_of_storage([op.outputs for op in self.operators])
        readers = self._users_of_storage([op.inputs for op in self.operators])
        return [
            Buffer(self.values[v].nbytes, tuple(producers), tuple(readers.get(v, ())))
            for v, producers in writers.items()
            if v not in kept
        ]

    def _users_of_storage(self, touched: list[tuple[int, ...]]) -> dict[int, list[int]]:
        """For each value that has its own storage, the operators that use this storage.

        `touched` holds, for each operator, the values that it uses.
        """
        users: dict[int, list[int]] = {}
        for i, values in enumerate(touched):
            for root in dict.fromkeys(map(self.storage_of, values)):
                users.setdefault(root, []).append(i)
        return users
