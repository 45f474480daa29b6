"""What schedulers ask about time, and the simplest answer: a table of operator latencies."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tvm_ffi

from .. import _library as _library
from ..errors import LatencyError
from .batch import StageBatch

_PACK_STAGES = tvm_ffi.get_global_func("tvm_interop.pack_stages")
_PRICE_STAGES = tvm_ffi.get_global_func("tvm_interop.price_stages")


class LatencyModel(ABC):
    """How long operators and stages take, all in microseconds.

    A subclass gives `op` and `stage`; one that can answer many stages at once, or that has to
    start something expensive to answer at all, overrides `stages` too.
    """

    @abstractmethod
    def op(self, op: int) -> float:
        """Microseconds that operator `op` takes alone."""

    @abstractmethod
    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Microseconds that a stage takes: groups side by side, operators of a group in order."""

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of each stage, shape (len(stages),); asks `stage` for one after the other.

        `stages` may be a `StageBatch`, which holds the same as three flat arrays.
        """
        return np.array([self.stage(groups) for groups in stages], dtype=np.float64)

    def mergeable(self) -> Sequence[Sequence[int]]:
        """Sets of operators, none in two, of which two or more might be one operator.

        None, unless a subclass knows better.
        """
        return ()

    def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        """Microseconds of each set of operators merged into one, shape (len(sets),).

        inf where that cannot be; everywhere, unless a subclass knows better.
        """
        return np.full(len(sets), math.inf)


class LatencyTable(LatencyModel):
    """Latencies from a table of operators, as if operators never slowed each other down.

    A group takes as long as its operators together, a stage as long as its longest group.

    Parameters
    ----------
    op_us: (num_ops,) microseconds of each operator, by id.
    streams: with a number, a stage's groups are packed onto that many streams, longest group
        first onto the least loaded stream (ties: lowest group, lowest stream), and the stage
        takes as long as its most loaded stream. None: each group has a stream of its own.

    Raises
    ------
    LatencyError: for a latency that is negative or not finite, naming the operator; for a table
        that is no list of numbers, and for `streams` below 1.
    """

    def __init__(self, op_us: Sequence[float] | npt.ArrayLike, streams: int | None = None) -> None:
        try:
            table = np.array(op_us, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise LatencyError(f"the latency table is no list of numbers: {error}") from None
        if table.ndim != 1:
            raise LatencyError(
                f"the latency table has shape {table.shape}; give one number per operator"
            )
        for i in np.flatnonzero(~(np.isfinite(table) & (table >= 0))):
            raise LatencyError(
                f"operator {i} has a latency of {table[i]} us; it must be finite, not negative"
            )
        if streams is not None and (not isinstance(streams, (int, np.integer)) or streams < 1):
            raise LatencyError(f"`streams` is {streams!r}; give 1 or more, or None for no limit")
        self._op_us = table
        self._streams = streams

    @property
    def num_ops(self) -> int:
        """How many operators the table knows."""
        return len(self._op_us)

    def op(self, op: int) -> float:
        """Microseconds of operator `op`, from the table."""
        if not 0 <= op < len(self._op_us):
            raise LatencyError(
                f"operator {op} is not in the latency table, which has {len(self._op_us)} entries"
            )
        return float(self._op_us[op])

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Microseconds of the longest group, or of the most loaded stream."""
        return float(self._price(StageBatch.from_stages([groups]))[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of each stage, shape (len(stages),), in one native call.

        A subclass that overrides `stage` is asked stage by stage instead.
        """
        if getattr(self.stage, "__func__", None) is not LatencyTable.stage:
            return super().stages(stages)
        return self._price(StageBatch.from_stages(stages))

    def _price(self, batch: StageBatch) -> npt.NDArray[np.float64]:
        op_us = self._op_us
        if len(batch.ops):
            self.op(int(batch.ops.min()))
            self.op(int(batch.ops.max()))
        if getattr(self.op, "__func__", None) is not LatencyTable.op:
            op_us = np.array([self.op(i) for i in range(self.num_ops)], dtype=np.float64)
        parts = batch.to_bytes()
        if self._streams is not None:
            parts = _PACK_STAGES(parts, op_us.tobytes(), self._streams)
        return np.frombuffer(_PRICE_STAGES(parts, op_us.tobytes()), dtype=np.float64)


def op_latencies(latency: LatencyModel, names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Ask `latency` for each operator; shape (len(names),), microseconds.

    Raises
    ------
    LatencyError: where the answer is negative or not finite, naming the operator, and as
        `check_size`.
    """
    check_size(latency, names)
    op_us = np.empty(len(names), dtype=np.float64)
    for i, name in enumerate(names):
        op_us[i] = latency.op(i)
        if not (math.isfinite(op_us[i]) and op_us[i] >= 0):
            raise LatencyError(
                f"the latency model says that operator `{name}` takes {op_us[i]} us; a latency "
                "must be finite and not negative"
            )
    return op_us


def check_size(latency: LatencyModel, names: Sequence[str]) -> None:
    """Check that a table is one of these operators.

    Raises
    ------
    LatencyError: where it has entries for fewer or more, naming the first operator without one.
    """
    if not isinstance(latency, LatencyTable) or latency.num_ops == len(names):
        return
    without = (
        f"; operator `{names[latency.num_ops]}` is the first without one"
        if latency.num_ops < len(names)
        else ""
    )
    raise LatencyError(
        f"the latency table has {latency.num_ops} entries for {len(names)} operators{without}; "
        "give one latency per operator, by id"
    )
