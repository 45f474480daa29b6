"""Stores many stages as flat arrays. IOS may ask for the latencies of 100,000 stages at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ..errors import LatencyError
from ..plain_data import LARGEST, is_whole

Groups = tuple[tuple[int, ...], ...]


class StageBatch(Sequence[Groups]):
    """A read-only list of stages. A stage is a tuple of groups; a group is a tuple of operator ids.

    A `StageBatch` can be used like a list. Its data are three arrays, which a vectorised latency
    model reads directly.

    Attributes
    ----------
    ops: (num_ops_in_all_groups,) int64, the operators of all groups, one group after the other.
    group_ends: (num_groups,) int64, the position in `ops` at which each group ends.
    stage_ends: (num_stages,) int64, the position in `group_ends` at which each stage ends.
    """

    def __init__(
        self,
        ops: npt.NDArray[np.int64],
        group_ends: npt.NDArray[np.int64],
        stage_ends: npt.NDArray[np.int64],
    ) -> None:
        self.ops = ops
        self.group_ends = group_ends
        self.stage_ends = stage_ends

    @classmethod
    def from_stages(cls, stages: Iterable[Sequence[Sequence[int]]]) -> StageBatch:
        """Flatten a list of stages. If `stages` is a `StageBatch`, return it unchanged.

        Raises
        ------
        LatencyError: for stages that are not lists of groups, and for an operator that is not a
            whole number.
        """
        if isinstance(stages, cls):
            return stages
        ops: list[int] = []
        group_ends: list[int] = []
        stage_ends: list[int] = []
        try:
            for groups in stages:
                for group in groups:
                    ops.extend(group)
                    group_ends.append(len(ops))
                stage_ends.append(len(group_ends))
        except TypeError as error:
            raise LatencyError(
                f"the stages are not lists of groups of operators: {error}"
            ) from None
        return cls(
            _ids(ops), *(np.asarray(ends, dtype=np.int64) for ends in (group_ends, stage_ends))
        )

    @classmethod
    def from_bytes(cls, parts: Iterable[bytes]) -> StageBatch:
        """Make a batch from its three arrays, in the form in which native functions return them."""
        return cls(*(np.frombuffer(part, dtype=np.int64) for part in parts))

    def to_bytes(self) -> list[bytes]:
        """The three arrays of the batch, in the form in which native functions take them."""
        parts = (self.ops, self.group_ends, self.stage_ends)
        return [np.ascontiguousarray(part, dtype=np.int64).tobytes() for part in parts]

    def __len__(self) -> int:
        return len(self.stage_ends)

    @property
    def num_ops(self) -> npt.NDArray[np.int64]:
        """How many operators each stage has, (num_stages,)."""
        if not len(self):
            return np.empty(0, dtype=np.int64)
        return np.diff(self.group_ends[self.stage_ends - 1], prepend=0)

    @overload
    def __getitem__(self, index: int) -> Groups: ...
    @overload
    def __getitem__(self, index: slice) -> list[Groups]: ...
    def __getitem__(self, index: int | slice) -> Groups | list[Groups]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(
                f"there is no stage {index}: the batch has {len(self)} stages, numbered from 0"
            )
        first = self.stage_ends[index - 1] if index else 0
        ends = self.group_ends[first : self.stage_ends[index]].tolist()
        begin = int(self.group_ends[first - 1]) if first else 0
        return tuple(
            tuple(self.ops[start:end].tolist())
            for start, end in zip([begin, *ends], ends, strict=False)
        )

    def __iter__(self) -> Iterator[Groups]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, StageBatch):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]


def _ids(ops: list[int]) -> npt.NDArray[np.int64]:
    try:
        array = np.asarray(ops)
    except ValueError:  # NumPy cannot make an array of lists of different lengths.
        array = np.empty(0, dtype=object)
    if (array.dtype.kind == "i" and array.ndim == 1) or not ops:
        return array.astype(np.int64)
    for op in ops:
        if not is_whole(op) or abs(op) > LARGEST:
            raise LatencyError(f"a stage holds operator {op!r}; give its id, from 0")
    return np.asarray(ops, dtype=np.int64)
