"""What a server needs of a model, whatever runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import ExecutionError, InputError
from .statistics import Statistics
from .tensors import TensorSpec, check_names_and_types
from .ticket import Ticket

VERSION = "1"
"""The version of every model: a name has one."""


@dataclass(frozen=True)
class Memory:
    """Bytes that a model takes.

    Attributes
    ----------
    weights: shared by all instances and all batch sizes.
    instance: the tensors of each instance: activations, inputs and outputs, for every shape.
    """

    weights: int
    instance: int


class AnyModel(ABC):
    """What a server needs of a model, whatever runs it.

    Attributes
    ----------
    name: as clients name it.
    inputs, outputs: see `TensorSpec`; -1 where shapes differ.
    sizes: the batch sizes it can run, ascending; (1,) where requests are never joined.
    is_batched: whether requests bring rows that can be joined with those of others.
    memory: see `Memory`.
    statistics: what it has served.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        memory: Memory,
        batch_sizes: Sequence[int] = (),
    ) -> None:
        """Parameters as the attributes.

        Parameters
        ----------
        batch_sizes: empty where requests are never joined.
        """
        self.name = name
        self.inputs, self.outputs = inputs, outputs
        self.is_batched = bool(batch_sizes)
        self.sizes = tuple(sorted(batch_sizes)) or (1,)
        self.memory = memory
        self.statistics = Statistics()

    @property
    @abstractmethod
    def num_instances(self) -> int:
        """How many batches may run at once."""

    @abstractmethod
    def run(self, slot: int, tickets: Sequence[Ticket]) -> None:
        """Run instance `slot` once for all of them, and give each its outputs and times.

        Raises
        ------
        ExecutionError
            It failed.
        """

    @abstractmethod
    def run_once(self, slot: int, size: int) -> float:
        """Run whatever lies in the inputs, and tell the seconds: to warm up and to measure."""

    @property
    def num_blocks(self) -> int:
        """Into how many blocks it is divided; 1 where it runs whole."""
        return 1

    @property
    def is_divided(self) -> bool:
        """Whether it can be run block by block."""
        return False

    def divide(self, count: int) -> None:
        """Divide it into `count` blocks of about equal time, by a run that is timed.

        One that has fewer blocks is divided into those.

        Raises
        ------
        InputError
            It cannot be divided.
        """
        raise self._undivided()

    def run_block(self, slot: int, block: int, ticket: Ticket) -> None:
        """Run one block of a model that is divided; the first copies inputs, the last outputs.

        Raises
        ------
        ExecutionError
            An operator failed; it is not this block's turn.
        InputError
            It is not divided.
        """
        raise self._undivided()

    def run_blocks_once(self, slot: int) -> list[float]:
        """Run all blocks on whatever lies in the inputs, and tell the seconds of each."""
        raise self._undivided()

    def check(self, inputs: Mapping[str, np.ndarray]) -> tuple[int, int]:
        """Which of the model's shapes fits these inputs, and how many rows they bring.

        Raises
        ------
        InputError
            Names the input that is missing, unknown, or of another type or shape.
        """
        check_names_and_types(self.name, self.inputs, inputs)
        if not self.is_batched:
            return self._fitting(inputs), 1
        rows = {name: array.shape[0] for name, array in inputs.items()}
        count = next(iter(rows.values()))
        if len(set(rows.values())) > 1:
            raise InputError(f"the inputs of model `{self.name}` bring different batches: {rows}")
        if not 1 <= count <= self.sizes[-1]:
            raise InputError(
                f"model `{self.name}` takes batches of 1 to {self.sizes[-1]}, got {count}; divide "
                "it into several requests"
            )
        return self._shape_of(self.size_for(count)), count

    def size_for(self, rows: int) -> int:
        """The smallest batch size that holds so many rows."""
        return next(size for size in self.sizes if size >= rows)

    def _fitting(self, inputs: Mapping[str, np.ndarray]) -> int:
        """The shape of a model without batches that fits; raises `InputError` where none does."""
        return 0

    def _shape_of(self, size: int) -> int:
        """The shape of a batch size."""
        return self.sizes.index(size)

    def _undivided(self) -> InputError:
        return InputError(
            f"model `{self.name}` cannot be divided; choose a policy that runs models whole"
        )


def failure(model: str, error: Exception) -> ExecutionError:
    """What a client is told of a run that failed."""
    said = str(error).strip().splitlines()
    return ExecutionError(f"model `{model}` failed: {said[0] if said else type(error).__name__}")
