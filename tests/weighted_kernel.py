"""A kernel of oneDNN's library that reads a weight, ready to run."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_interop._native import cpu as _runtime
from tvm_interop._native.operators import BoundOperator
from tvm_interop.execution.cpu import as_tensor
from tvm_interop.program.host_memory import aligned_empty
from tvm_interop.program.library_op import LibraryOp


class WeightedKernel:
    """The prepared kernel of an operator of data, a weight and a result.

    Attributes
    ----------
    data: random numbers. They are the same in each process.
    """

    def __init__(self, op: LibraryOp, weight: np.ndarray, *, is_constant: bool = True) -> None:
        self._shape = op.shapes[1]
        self.data, self._out = (aligned_empty(op.shapes[i], np.float32) for i in (0, 2))
        self.data[...] = np.random.default_rng(1).standard_normal(self.data.shape)
        arrays = (self.data, weight.reshape(self._shape), self._out)
        tensors = [as_tensor(array) for array in arrays]
        constants = [False, is_constant, False]
        kernel = _runtime.prepare_kernel("onednn", op.fields(), 1, tensors, constants)
        self._executor: Any = _runtime.make_executor(
            1, 1, tensors, [BoundOperator("op", kernel, range(3))]
        )

    def run(self) -> np.ndarray:
        """Run once, and return a copy of the result."""
        _runtime.run(self._executor)
        return self._out.copy()

    def bind(self, weight: np.ndarray) -> None:
        """Give the kernel another weight, or the same weight with other values."""
        _runtime.bind(self._executor, 1, as_tensor(weight.reshape(self._shape)))
