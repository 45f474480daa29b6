"""Defines `LatencyModel`, which schedulers ask for latencies, and a table of latencies."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .._native import passes as native
from ..errors import LatencyError
from ..plain_data import LARGEST, is_finite, is_whole
from .batch import StageBatch


class LatencyModel(ABC):
    """Tells schedulers how long operators and stages take, in microseconds.

    A subclass implements `op` and `stage`. It also overrides `stages` if one answer for many stages
    is faster than one answer per stage.

    Attributes
    ----------
    is_costly: whether the model takes long to answer, for example because it measures stages. If
        so, searches ask for few stages, and use estimates until they know which stages matter.
    may_refuse: whether `stages` may return inf for a stage. Schedulers never choose a stage with
        this latency.
    stage_us: microseconds that every stage takes in addition to its operators, for example for a
        barrier after the stage. `op` does not include them. The default is 0. Plans have no
        barriers, and the measured latency of a stage already includes the forks and joins of its
        streams.
    """

    is_costly: bool = False
    may_refuse: bool = False
    stage_us: float = 0.0

    @abstractmethod
    def op(self, op: int) -> float:
        """Microseconds that operator `op` takes if no other operator runs."""

    @abstractmethod
    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Microseconds that a stage takes, with its groups side by side.

        Within each group of the stage, the operators run one after the other.
        """

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of each stage, shape (len(stages),). This default calls `stage` for each
        stage.

        `stages` may be a `StageBatch`, which holds the same stages in three flat arrays.
        """
        return as_prices([self.stage(groups) for groups in stages], len(stages))

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        """Measure again the stages that a search has chosen, and return how many were measured.

        A search prefers stages whose measured latencies are low by chance, so the sum of these
        latencies is too small. New measurements do not have this bias, so they replace the old
        measurements. A model that does not measure returns 0.
        """
        return 0

    def transfer(self, u: int, v: int) -> float:
        """Microseconds to copy operator `u`'s output for operator `v` to another GPU.

        Raises
        ------
        LatencyError: unless a subclass overrides this method.
        """
        raise LatencyError(
            f"{type(self).__name__} does not know how long copies between GPUs take (it was asked "
            f"for the copy from operator {u} to operator {v}); give a latency model that has "
            "`transfer`, such as a LatencyTable with `transfers`"
        )

    def mergeable(self) -> Sequence[Sequence[int]]:
        """Disjoint sets of operators, such that operators of the same set might be merged into one.

        If an operator is divided into parts, all of its parts are in the same set, and they are
        merged together or not at all. Unless a subclass overrides this method, the result is empty.
        """
        return ()

    def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        """Microseconds of the merged operator that replaces each set of operators: (len(sets),).

        Each set holds either all parts of a divided operator or none of them. The result is inf for
        a set that cannot be merged. Unless a subclass overrides this method, it is inf for all
        sets.
        """
        return np.full(len(sets), math.inf)


class LatencyOver(LatencyModel):
    """Passes on the latencies of another latency model. A subclass adds or changes some latencies.

    Parameters
    ----------
    base: the latency model whose latencies are passed on.
    """

    def __init__(self, base: LatencyModel) -> None:
        self._base = base
        self.is_costly = base.is_costly
        self.may_refuse = base.may_refuse
        self.stage_us = base.stage_us

    def op(self, op: int) -> float:
        """The latency that `base` gives for a single operator, in microseconds."""
        return self._base.op(op)

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """The latency that `base` gives for a stage, in microseconds."""
        return self._base.stage(groups)

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """The latencies that `base` gives for stages, in microseconds."""
        return self._base.stages(stages)

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        """Make `base` measure stages again, and return how many it measured."""
        return self._base.measure_again(stages)

    def transfer(self, u: int, v: int) -> float:
        """The latency that `base` gives for a copy to another GPU, in microseconds."""
        return self._base.transfer(u, v)

    def mergeable(self) -> Sequence[Sequence[int]]:
        """Sets of operators that might be merged, as `base` gives them."""
        return self._base.mergeable()

    def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        """The latencies that `base` gives for merged operators, in microseconds."""
        return self._base.merges(sets)


class LatencyTable(LatencyModel):
    """A table with the latency of each operator.

    It assumes that operators do not slow each other down.

    A group takes the sum of its operators' latencies. A stage takes as long as its longest group,
    plus `stage_us`, plus the waits between its streams.

    Parameters
    ----------
    op_us: (num_ops,) microseconds of each operator, by id.
    streams: the number of streams onto which a stage's groups are packed. They are packed from the
        longest to the shortest, each onto the least loaded stream (ties: lowest group, lowest
        stream). The stage takes as long as its most loaded stream. None gives each group its own
        stream.
    transfers: microseconds of a copy from one GPU to another, by (producer, reader), as
        `Link.transfers` gives them. Each edge whose transfer is asked for needs an entry. With
        None, copies take no time.
    stage_us: microseconds that each stage takes in addition to its operators (see `LatencyModel`).
    wait_us: microseconds that a wait between streams takes. A stage on k streams has 2 (k - 1)
        waits: each stream but the first starts after a wait, and the first stream then waits for
        it. Without `streams`, k is the number of groups.

    Raises
    ------
    LatencyError: for a latency that is negative or not finite, naming the operator; for a table
        that is not a list of numbers; for `streams` below 1; for a transfer or a cost that is
        negative or not finite; for a transfer that is not between two operators of the table.

    Examples
    --------
    >>> table = LatencyTable([3.0, 5.0, 8.0])
    >>> table.stage([[0], [1, 2]])  # The group of operators 1 and 2 takes longest.
    13.0
    """

    def __init__(
        self,
        op_us: Sequence[float] | npt.ArrayLike,
        streams: int | None = None,
        transfers: Mapping[tuple[int, int], float] | None = None,
        *,
        stage_us: float = 0.0,
        wait_us: float = 0.0,
    ) -> None:
        try:
            table = np.array(op_us, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise LatencyError(f"the latency table is not a list of numbers: {error}") from None
        if table.ndim != 1:
            raise LatencyError(
                f"the latency table has shape {table.shape}; give one number per operator"
            )
        for i in np.flatnonzero(~(np.isfinite(table) & (table >= 0))):
            raise LatencyError(
                f"operator {i} has a latency of {table[i]} us; it must be finite, not negative"
            )
        if streams is not None and not (is_whole(streams) and 1 <= streams <= LARGEST):
            raise LatencyError(f"`streams` is {streams!r}; give 1 or more, or None for no limit")
        for name, us in (("stage_us", stage_us), ("wait_us", wait_us)):
            if not (is_finite(us) and us >= 0):
                raise LatencyError(f"`{name}` is {us!r}; give microseconds, 0 or more")
        self.stage_us = float(stage_us)
        self._op_us = table
        self._streams = streams
        self._wait_us = float(wait_us)
        self._transfers = None if transfers is None else _checked_transfers(transfers, len(table))

    @property
    def num_ops(self) -> int:
        """How many operators the table knows."""
        return len(self._op_us)

    def op(self, op: int) -> float:
        """Microseconds of operator `op`, from the table."""
        self._check_id(op)
        return float(self._op_us[op])

    def transfer(self, u: int, v: int) -> float:
        """Microseconds of the copy from `u` to `v`, from the table; 0 without a table of transfers.

        Raises
        ------
        LatencyError: the table of transfers lacks the edge from `u` to `v`.
        """
        if self._transfers is None:
            return 0.0
        if (u, v) not in self._transfers:
            raise LatencyError(
                f"the transfers lack the edge from operator {u} to operator {v}; give one for "
                "each edge of the graph"
            )
        return self._transfers[u, v]

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Microseconds of a stage: its longest group or stream, plus `stage_us`, plus its waits."""
        return float(self._price(StageBatch.from_stages([groups]))[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of each stage, shape (len(stages),), in one native call.

        If a subclass overrides `stage`, no native call is made, and its `stage` is called for each
        stage.
        """
        if getattr(self.stage, "__func__", None) is not LatencyTable.stage:
            return super().stages(stages)
        return self._price(StageBatch.from_stages(stages))

    def _price(self, batch: StageBatch) -> npt.NDArray[np.float64]:
        op_us = self._op_us
        if len(batch.ops):
            self._check_id(int(batch.ops.min()))
            self._check_id(int(batch.ops.max()))
        if getattr(self.op, "__func__", None) is not LatencyTable.op:
            op_us = np.array([self.op(i) for i in range(self.num_ops)], dtype=np.float64)
        parts: Sequence[bytes] = batch.to_bytes()
        if self._streams is not None:
            parts = native.pack_stages(parts, op_us.tobytes(), self._streams)
        price_us = np.frombuffer(native.price_stages(parts, op_us.tobytes()), dtype=np.float64)
        if not (self.stage_us or self._wait_us):
            return price_us
        streams = np.diff(StageBatch.from_bytes(parts).stage_ends, prepend=0)
        return np.asarray(price_us + self.stage_us + 2 * self._wait_us * (streams - 1))

    def _check_id(self, op: int) -> None:
        if not is_whole(op) or not 0 <= op < len(self._op_us):
            raise LatencyError(
                f"operator {op!r} is not in the latency table, which has {len(self._op_us)} "
                "entries; give a latency for each operator of the graph"
            )


def op_latencies(latency: LatencyModel, names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Ask `latency` for the latency of each operator; shape (len(names),), microseconds.

    Raises
    ------
    LatencyError: an answer is negative, not finite or not a number (the message names the
        operator); the sum of all answers is more than a float can hold; or a latency table has too
        few or too many entries.
    """
    check_size(latency, names)
    op_us = np.empty(len(names), dtype=np.float64)
    for i, name in enumerate(names):
        op_us[i] = _checked_us(latency.op(i), f"operator `{name}`")
    _check_sum(op_us)
    return op_us


def stage_latencies(
    latency: LatencyModel,
    stages: Sequence[Sequence[Sequence[int]]],
    names: Sequence[str] | None = None,
) -> npt.NDArray[np.float64]:
    """Ask `latency` for the latencies of all stages in one call; (len(stages),), microseconds.

    Parameters
    ----------
    names: the operators' names, for error messages. Without them, messages give operator ids.

    Raises
    ------
    LatencyError: an answer is missing, negative, not finite or not a number (the message names the
        stage's operators); or the sum of all answers is more than a float can hold.
    """
    prices_us = as_prices(latency.stages(stages), len(stages))
    for i in np.flatnonzero(~(np.isfinite(prices_us) & (prices_us >= 0))):
        _checked_us(float(prices_us[i]), _stage_text(stages[int(i)], names))
    return prices_us


def merge_latencies(
    latency: LatencyModel, sets: Sequence[Sequence[int]], names: Sequence[str] | None = None
) -> npt.NDArray[np.float64]:
    """Ask `latency` how long each set takes as one merged operator; (len(sets),), microseconds.

    The result is inf for a set that cannot be merged, or if the model has no latencies of merged
    operators.

    Raises
    ------
    LatencyError: an answer is missing, negative or not a number; the message names the operators.
    """
    prices_us = as_prices(latency.merges(sets), len(sets))
    for i in np.flatnonzero(~(prices_us >= 0)):
        _checked_us(float(prices_us[i]), _stage_text([sets[int(i)]], names))
    return prices_us


def pack_groups_of_stages(
    stages: Sequence[Sequence[Sequence[int]]], op_us: npt.ArrayLike, num_streams: int
) -> tuple[int, ...]:
    """Pack each stage's groups onto streams: the longest first, each onto the least loaded stream.

    Returns the stream of each group, stage after stage. The length of a group is the sum of its
    operators' latencies. Ties: lowest group, lowest stream.

    Parameters
    ----------
    op_us: (num_ops,) microseconds of each operator, by id.
    num_streams: the most streams that a stage uses.
    """
    weights = np.asarray(op_us, dtype=np.float64).tobytes()
    parts = StageBatch.from_stages(stages).to_bytes()
    return tuple(native.pack_groups_of_stages(parts, weights, num_streams))


def sum_in_order(times_us: Sequence[float] | npt.NDArray[np.float64]) -> float:
    """The sum of numbers, added from the first to the last, as the native code does it.

    Since Python 3.12, `sum` compensates for rounding errors, and NumPy's `sum` adds in pairs. So
    their results may differ in the last bits from the sums that the native code computes.
    """
    return LatencyTable(times_us).stage([range(len(times_us))])


def as_prices(answer: object, count: int) -> npt.NDArray[np.float64]:
    """Convert a latency model's answer to an array of shape (count,). Raise LatencyError if that is
    impossible.
    """
    try:
        numbers = np.asarray(answer)
        prices_us = np.empty(0) if numbers.dtype.kind in "USmM" else numbers.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        prices_us = np.empty(0)
    if prices_us.shape != (count,):
        raise LatencyError(
            f"the latency model's answer for {count} stages is {_shortened(answer)}; give one "
            "number of microseconds for each stage"
        )
    _check_sum(prices_us[np.isfinite(prices_us)])
    return prices_us


def _checked_us(us: object, what: str) -> float:
    if is_finite(us) and us >= 0:
        return float(us)
    raise LatencyError(
        f"the latency model says that {what} takes {_shortened(us)} us; a latency must be a "
        "finite number and not negative"
    )


def _check_sum(prices_us: npt.NDArray[np.float64]) -> None:
    with np.errstate(over="ignore"):
        total_us = prices_us.sum()
    if not math.isfinite(total_us):
        raise LatencyError(
            "the sum of the latency model's latencies is more than a float can hold; the largest "
            f"latency is {prices_us.max()} us"
        )


def _stage_text(groups: Sequence[Sequence[int]], names: Sequence[str] | None) -> str:
    ops = [op for group in groups for op in group]
    listed = [f"`{names[op]}`" if names is not None else str(op) for op in ops[:8]]
    return f"the stage of {', '.join(listed)}" + (" and others" if len(ops) > 8 else "")


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_size(latency: LatencyModel, names: Sequence[str]) -> None:
    """If `latency` is a table, check that it has one entry for each operator.

    Raises
    ------
    LatencyError: the table has fewer or more entries. With fewer, the message names the first
        operator without an entry.
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


def _checked_transfers(
    transfers: Mapping[tuple[int, int], float], num_ops: int
) -> dict[tuple[int, int], float]:
    """Check a table of transfers and convert it to microseconds by (producer, reader).

    Raises
    ------
    LatencyError: the edge of an entry is not between two operators, or its transfer is not a finite
        number of at least 0. The message names the first such entry.
    """
    checked = {}
    for edge, us in transfers.items():
        try:
            u, v = (int(op) for op in edge)
            number = float(us)
        except (TypeError, ValueError):
            raise LatencyError(
                f"transfer {edge!r}: {us!r} is not a transfer; give {{(producer, reader): "
                f"microseconds}}"
            ) from None
        if not (0 <= u < num_ops and 0 <= v < num_ops and u != v):
            raise LatencyError(
                f"transfer {edge!r} is not between two different operators; there are {num_ops} "
                "operators, numbered from 0"
            )
        if not (math.isfinite(number) and number >= 0):
            raise LatencyError(f"transfer {edge!r} takes {us} us; it must be finite, not negative")
        checked[u, v] = number
    return checked
