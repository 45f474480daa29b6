"""The interface between the server and a model. It does not depend on how the model is executed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import ExecutionError, InputError
from ...execution.size_counts import RunCounts
from .statistics import Statistics
from .tensors import TensorSpec, check_names_and_types
from .ticket import Ticket

VERSION = "1"
"""The version of every model. The server has only one version of each model."""


@dataclass(frozen=True)
class Memory:
    """The memory of a model, in bytes.

    Attributes
    ----------
    weights: size of the weights, which all instances and all batch sizes share.
    instance: size of the tensors of one instance: activations, inputs and outputs of every shape.
    """

    weights: int
    instance: int


class AnyModel(ABC):
    """The base class of models that the server can serve.

    Attributes
    ----------
    name: name of the model that clients use.
    inputs, outputs: specifications of the tensors, see `TensorSpec`. A size is -1 if it differs
        between the shapes of the model.
    sizes: batch sizes that the model can run, ascending; (1,) if requests are never batched.
    is_batched: whether the rows of several requests can be joined into one batch.
    memory: memory of the model, see `Memory`.
    statistics: counts and durations of the requests served so far.
    dimensions: names of the dimensions that can have several sizes, for `run_counts`; empty if the
        model has only one size.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        memory: Memory,
        batch_sizes: Sequence[int] = (),
    ) -> None:
        """Create a model. Parameters that are not described here are attributes of the class.

        Parameters
        ----------
        batch_sizes: batch sizes that the model can run; empty if requests are never batched.
        """
        self.name = name
        self.inputs, self.outputs = inputs, outputs
        self.is_batched = bool(batch_sizes)
        self.sizes = tuple(sorted(batch_sizes)) or (1,)
        self.memory = memory
        self.statistics = Statistics()
        self.dimensions: tuple[str, ...] = ()

    @property
    def run_counts(self) -> dict[tuple[int, ...], RunCounts]:
        """The counts of runs, keyed by the sizes that `dimensions` had in these runs.

        For a model of one size, the result is empty.
        """
        return {}

    @property
    @abstractmethod
    def num_instances(self) -> int:
        """The number of batches that can run at the same time."""

    @abstractmethod
    def run(self, slot: int, tickets: Sequence[Ticket]) -> None:
        """Run instance `slot` once for all tickets, and set the outputs and times of each ticket.

        Raises
        ------
        ExecutionError
            The run failed.
        """

    @abstractmethod
    def run_once(self, slot: int, size: int) -> float:
        """Run instance `slot` once on its current inputs; return the latency in seconds.

        The server calls this method to warm up and to measure.
        """

    @property
    def num_blocks(self) -> int:
        """The number of blocks that the model is divided into; 1 if the model is not divided."""
        return 1

    @property
    def is_divided(self) -> bool:
        """Whether the model can run block by block."""
        return False

    def divide(self, count: int) -> None:
        """Divide the model into `count` blocks of about equal latency, measured in one run.

        If the model can only be divided into fewer blocks, it is divided into as many as possible.

        Raises
        ------
        InputError
            The model cannot be divided.
        """
        raise self._undivided()

    def run_block(self, slot: int, block: int, ticket: Ticket) -> None:
        """Run one block of a divided model.

        The first block also copies the inputs, and the last block also copies the outputs.

        Raises
        ------
        ExecutionError
            An operator failed, or another block of the model must run first.
        InputError
            The model is not divided.
        """
        raise self._undivided()

    def run_blocks_once(self, slot: int) -> list[float]:
        """Run all blocks once on the current inputs; return each block's latency in seconds."""
        raise self._undivided()

    def check(self, inputs: Mapping[str, np.ndarray]) -> tuple[int, int]:
        """Check the inputs of a request.

        Returns
        -------
        Two numbers: the index of the model's shape that fits the inputs, and the number of rows of
        the inputs.

        Raises
        ------
        InputError
            An input is missing, unknown, or has a wrong type or shape; the message names it. Or the
            number of rows is not supported.
        """
        check_names_and_types(self.name, self.inputs, inputs)
        if not self.is_batched:
            return self._fitting(inputs), 1
        rows = {name: array.shape[0] for name, array in inputs.items()}
        count = next(iter(rows.values()))
        if len(set(rows.values())) > 1:
            raise InputError(
                f"the inputs of model `{self.name}` have different batch sizes: {rows}; give all "
                "inputs the same number of rows"
            )
        if not 1 <= count <= self.sizes[-1]:
            raise InputError(
                f"model `{self.name}` takes batches of 1 to {self.sizes[-1]}, got {count}; divide "
                "it into several requests"
            )
        return self._shape_of(self.size_for(count)), count

    def size_for(self, rows: int) -> int:
        """Return the smallest batch size that is at least `rows`."""
        return next(size for size in self.sizes if size >= rows)

    def _fitting(self, inputs: Mapping[str, np.ndarray]) -> int:
        """Return the index of the shape that fits the inputs of a model without batches.

        Raises `InputError` if the model was not compiled for this shape.
        """
        return 0

    def _shape_of(self, size: int) -> int:
        """Return the index of the shape (set of input shapes) of a batch size."""
        return self.sizes.index(size)

    def _undivided(self) -> InputError:
        return InputError(
            f"model `{self.name}` cannot be divided into blocks; choose another policy"
        )


def failure(model: str, error: Exception) -> ExecutionError:
    """Return the error that a client gets when a run has failed."""
    said = str(error).strip().splitlines()
    return ExecutionError(f"model `{model}` failed: {said[0] if said else type(error).__name__}")
