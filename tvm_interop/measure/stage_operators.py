"""Binds a stage's operators to tensors and kernels, to time them on executors of this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._native.operators import BoundOperator
from ..execution.instance import Clock
from ..program.host_memory import aligned_copy, aligned_empty
from ..program.program import Operator, Program
from ..program.storage import stored_shape
from .repeats import Measure
from .stage_timer import Streams

PrepareKernel = Callable[[Operator, list[Any]], Any]
"""Prepares a kernel library's kernel for an operator and its tensors."""


def measured_by(clock: Clock, executors: Sequence[Any], seed: int) -> Measure:
    """A function that times executors against each other, in orders that follow from `seed`."""
    seeds = itertools.count(seed)

    def measure(indices: Sequence[int], repeats: int) -> list[list[float]]:
        chosen = [executors[i] for i in indices]
        return clock.measure_interleaved(chosen, 0, repeats, next(seeds), primed=True)

    return measure


class StageOperators:
    """Binds the operators of stages; each tensor and each library's kernel is made only once."""

    def __init__(
        self,
        program: Program,
        functions: Mapping[str, Any],
        to_device: Callable[[np.ndarray], Any],
        prepare: PrepareKernel,
        seed: int = 0,
    ) -> None:
        """Begin with no tensors and no kernels of libraries.

        Parameters
        ----------
        functions: TVM's kernels, by name.
        to_device: copies an array into a new tensor on the device.
        seed: seed of the random numbers in tensors.
        """
        self._program = program
        self._functions = functions
        self._to_device = to_device
        self._prepare = prepare
        self._rng = np.random.default_rng(seed)
        self._tensors: dict[int, Any] = {}
        self._library_kernels: dict[int, Any] = {}

    def bind(self, streams: Streams) -> tuple[list[Any], list[BoundOperator]]:
        """The tensors of a stage, and its operators bound to them.

        Groups of a stage are independent, so no operator waits for another.
        """
        placed = [(op, s) for s, ops in enumerate(streams) for op in ops]
        operators = [self._program.operators[op] for op, _ in placed]
        args = [(*operator.inputs, *operator.outputs) for operator in operators]
        values = {v: i for i, v in enumerate(dict.fromkeys(v for arg in args for v in arg))}
        tensors = [self._tensor(v) for v in values]
        bound = [
            BoundOperator(
                operator.name, self.kernel(op), [values[v] for v in arg], s, (), operator.share
            )
            for (op, s), operator, arg in zip(placed, operators, args, strict=True)
        ]
        return tensors, bound

    def kernel(self, op: int) -> Any:
        """The kernel that runs operator `op`: a library's kernel, or TVM's.

        Raises
        ------
        ExecutionError
            The library has no kernel for the operator.
        """
        operator = self._program.operators[op]
        if operator.library is None or operator.description is None:
            return self._functions[operator.kernel]
        if op not in self._library_kernels:
            tensors = [self._tensor(v) for v in (*operator.inputs, *operator.outputs)]
            self._library_kernels[op] = self._prepare(operator, tensors)
        return self._library_kernels[op]

    def _tensor(self, value: int) -> Any:
        """The tensor of a value, made on first use: its weight, random floats, or integers of 0."""
        if value not in self._tensors:
            described = self._program.values[value]
            if value in self._program.weights:
                array = aligned_copy(self._program.weights[value])
            else:
                shape = stored_shape(described.shape, described.layout)
                array = aligned_empty(shape, described.dtype)
                # Zeros are valid indices; floats get values that are neither special nor denormal.
                array[...] = self._rng.standard_normal(shape) if _is_float(array.dtype) else 0
            self._tensors[value] = self._to_device(array)
        return self._tensors[value]


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype == np.dtype("bfloat16")
