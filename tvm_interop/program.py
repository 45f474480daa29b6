"""A model as the scheduler and the planner see it: operators, the tensors between them, weights.

`Program` is what is left of a Relax function after lowering: a flat list of kernel calls in
topological order. It knows nothing of Relax itself, so everything after it (planning, measuring,
executing) works where the compiler is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .library_op import LibraryOp


@dataclass(frozen=True)
class Value:
    """One tensor.

    Attributes
    ----------
    name: unique in its program; the ONNX or Relax name for inputs and outputs.
    shape: dimensions, all known.
    dtype: as numpy spells it, e.g. `float32`.
    alias_of: index of the value whose storage this one reads (a reshape costs nothing);
        that value is never an alias itself. None for a value with storage of its own.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    alias_of: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes the tensor takes, without padding."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Operator:
    """One kernel call in destination-passing style: `kernel(*inputs, *outputs)`.

    Attributes
    ----------
    name: unique in its program, made of the ONNX nodes' names where there are some.
    kernel: name of the function in TVM's library of kernels.
    inputs, outputs: indices into `Program.values`.
    description: what a kernel library could compute in its stead, of the same inputs and outputs.
    library: the kernel library that does; None for TVM's kernel.
    """

    name: str
    kernel: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    description: LibraryOp | None = None
    library: str | None = None


@dataclass
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

    def storage_of(self, value: int) -> int:
        """The value whose storage `value` reads: itself, unless it is an alias."""
        alias_of = self.values[value].alias_of
        return value if alias_of is None else alias_of

    def is_constant(self, value: int) -> bool:
        """Whether `value` is a weight, or a view of one."""
        return self.storage_of(value) in self.weights

    def producers(self) -> dict[int, int]:
        """For each value with storage that an operator writes: that operator's id."""
        return {v: i for i, op in enumerate(self.operators) for v in op.outputs}

    def edges(self) -> list[tuple[int, int]]:
        """Producer and consumer of each tensor an operator reads from another, repeats kept."""
        producer = self.producers()
        return [
            (producer[source], i)
            for i, op in enumerate(self.operators)
            for source in map(self.storage_of, op.inputs)
            if source in producer
        ]
