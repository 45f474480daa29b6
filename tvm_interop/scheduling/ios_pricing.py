"""Asks a latency model for the latencies of the stages that IOS searches.

If lower bounds of the latencies are used, this module asks only for the stages whose latencies can
change the schedule. Without lower bounds, it asks for all stages.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._native import passes as native
from ..latency.base import (
    LatencyModel,
    as_prices,
    merge_latencies,
    op_latencies,
    stage_latencies,
)
from ..latency.batch import StageBatch
from ..program.graph import OpGraph
from .options import us_since
from .stages import Stage

_LOG = logging.getLogger("tvm_interop")

_BATCH = 32
"""Smallest number of stages in one call of the latency model. A model that measures runs the stages
of a call in turns, which is more exact, so a call should hold several stages. A call holds fewer
only if no other stage can change the schedule.
"""
_GROWTH = 8
"""If the latencies of n stages are known, the next call asks for those of at least n / `_GROWTH`
more stages. So the number of calls stays low even if there are many stages.
"""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bounds:
    """Settings of the lower bounds of stage latencies, as in the options of `ios`.

    Attributes
    ----------
    work_us: (num_ops,) the time that each operator keeps cores busy, in microseconds, summed over
        its cores; None if each operator uses one core.
    """

    cores: int | None
    tolerance: float
    slack_us: float
    work_us: Floats | None = None


class StagePrices:
    """The latencies of a graph's stages. The latency model is asked at most once for each stage.

    Attributes
    ----------
    op_us: (num_ops,) latency of each operator in microseconds, used to pack the groups of a stage
        onto streams; None if groups are not packed.
    alone_us: (num_ops,) microseconds that each operator adds to a stage. This is the latency of a
        stage of only this operator, minus `stage_us`.
    stage_us: fixed cost of every stage in microseconds (see `LatencyModel`).
    scale: factor by which the bounds were multiplied; 0 without bounds.
    below_bound: number of latencies that were below their bound.
    asking_us: microseconds that the latency model took to answer.
    """

    def __init__(
        self,
        graph: OpGraph,
        model: LatencyModel,
        streams: int | None,
        bounds: Bounds | None,
        merges: bool,
    ) -> None:
        """Ask the latency model for the latency of each operator when it runs alone.

        Parameters
        ----------
        streams: number of streams onto which stages are packed; None for a stream per group.
        bounds: settings of the bounds; None to ask for the latency of every stage of a search.
        merges: whether a stage may run as one merged operator if this is faster.
        """
        self.op_us = op_latencies(model, graph.names) if streams is not None else None
        self.scale = 0.0 if bounds is None else 1.0 - bounds.tolerance
        self.below_bound = 0
        self.asking_us = 0.0
        self._names = graph.names
        self._model = model
        self._streams = streams
        self._bounds = bounds
        self._book = native.stage_book_make()
        self._merged: set[frozenset[int]] = set()
        self._asked = 0
        self._refused = False
        self._set_of = np.full(graph.num_ops, -1)
        if merges:
            for i, ops in enumerate(model.mergeable()):
                self._set_of[list(ops)] = i
        self.stage_us = model.stage_us
        singles = StageBatch.from_stages([[[op]] for op in range(graph.num_ops)])
        us = self.ask(singles)
        self.alone_us = np.maximum(us - self.stage_us, 0.0)
        self._weights = self.alone_us.tobytes()
        self.write(singles, us)

    @property
    def are_costly(self) -> bool:
        """Whether asking the latency model takes long, for example because it measures."""
        return self._model.is_costly

    @property
    def set_of(self) -> list[int]:
        """For each operator, the number of its set: operators of one set may be merged.

        An operator that cannot be merged has the set number -1. The list is empty if no operator
        can be merged.
        """
        return [] if np.all(self._set_of < 0) else [int(i) for i in self._set_of]

    @property
    def certain(self) -> float:
        """A factor f. Every schedule takes at least f times the length of the longest path.

        The factor is 0 if operators may be merged.
        """
        if self.set_of:
            return 0.0
        return self.scale if self.below_bound else 1.0

    @property
    def num_asked(self) -> int:
        """The number of stages for which the latency model was asked."""
        return self._asked

    def ask(self, stages: StageBatch) -> Floats:
        """Ask the latency model, in one call, for the latencies of stages packed onto streams.

        A latency is in microseconds. It is inf for a stage that a time budget refused, and such a
        stage is never chosen.
        """
        self._asked += len(stages)
        flat: Sequence[bytes] = stages.to_bytes()
        if self.op_us is not None and self._streams is not None:
            flat = native.pack_stages(flat, self.op_us.tobytes(), self._streams)
        started = time.perf_counter()
        batch = StageBatch.from_bytes(flat)
        if self._model.may_refuse:
            us = np.array(as_prices(self._model.stages(batch), len(batch)))
        else:
            us = np.array(stage_latencies(self._model, batch, self._names))
        self._refused |= bool(np.isinf(us).any())
        mergeable = self._mergeable(stages)
        sets = [[op for group in stages[int(i)] for op in group] for i in mergeable]
        merged = merge_latencies(self._model, sets, self._names)
        for i, ops, merged_us in zip(mergeable, sets, merged, strict=True):
            if merged_us < us[i]:
                us[i] = merged_us
                self._merged.add(frozenset(ops))
        self.asking_us += us_since(started)
        return us

    def guess(self, stages: StageBatch) -> Floats:
        """The latency of each stage in microseconds, or an estimate if the latency is unknown.

        The estimate for a stage is the latency of its longest stream, plus `stage_us`. The latency
        of a stream is the sum of `alone_us` of its operators. Once a time budget has refused a
        stage, all estimates are inf. There is no estimate for merged operators, so the latencies
        of stages that can be merged are always asked of the latency model.
        """
        mergeable = self._mergeable(stages)
        if len(mergeable):
            self.of(select(stages, mergeable))
        flat: Sequence[bytes] = stages.to_bytes()
        known = np.frombuffer(
            native.stage_book_read(self._book, flat, self._weights), dtype=np.float64
        )
        if self.op_us is not None and self._streams is not None:
            flat = native.pack_stages(flat, self.op_us.tobytes(), self._streams)
        longest = np.frombuffer(
            native.price_stages(flat, self.alone_us.tobytes()), dtype=np.float64
        )
        longest = longest + self.stage_us
        if self._refused:
            longest = np.full(len(longest), math.inf)
        return np.array(np.where(np.isnan(known), longest, known), dtype=np.float64)

    def of(self, stages: StageBatch) -> Floats:
        """The latency of each stage in microseconds. One call asks for all unknown latencies."""
        us: Floats = np.array(
            np.frombuffer(native.stage_book_read(self._book, stages.to_bytes(), self._weights))
        )
        unknown = np.flatnonzero(np.isnan(us))
        if len(unknown):
            asked = select(stages, unknown)
            us[unknown] = self.ask(asked)
            self.write(asked, us[unknown])
        return us

    def write(self, stages: StageBatch, us: Floats) -> None:
        """Store latencies that the latency model gave, in microseconds."""
        native.stage_book_write(self._book, stages.to_bytes(), self._weights, us.tobytes())

    def values(self, search: Any) -> bytes:
        """The latency of each stage of a search, or a lower bound where no latency is needed."""
        stages = StageBatch.from_bytes(native.ios_stages(search))
        if self._bounds is not None:
            return self._bounded(search, stages, self._bounds)
        return self.of(stages).tobytes()

    def report_bounds(self) -> None:
        """Log a message at level info if some latencies were below their bounds."""
        if self.below_bound:
            _LOG.info(
                "ios: %d of %d measured stages were faster than their lower bounds, which come "
                "from the stages' operators. So all bounds were lowered to %.0f%%. The schedule "
                "is optimal if no unmeasured stage is faster than its lowered bound. Pass "
                "`bounds=False` to measure every stage",
                self.below_bound,
                self._asked,
                self.scale * 100,
            )

    def as_merged(self, stage: Stage) -> Stage:
        """`stage` as one merged operator on stream 0 if merging was faster; otherwise `stage`."""
        if frozenset(op for group in stage.groups for op in group) not in self._merged:
            return stage
        return Stage(stage.groups, (0,) * len(stage.groups), "merge", stage.barrier)

    def _bounded(self, search: Any, stages: StageBatch, bounds: Bounds) -> bytes:
        """The latency of each stage of a search, or a lower bound where no latency is needed.

        The latencies of single operators are known. The latency model is first asked for the stages
        that can be merged, because the bounds do not hold for merged operators. Then the search
        runs in rounds. Each round finds the best schedule with the latencies and lower bounds known
        so far. It asks the latency model for the unknown latencies of the stages of this schedule.
        The rounds end when all latencies of the best schedule are known.
        """
        pricing = native.ios_pricing_make(search, self._book)
        native.ios_pricing_bounds(
            pricing,
            self.alone_us.tobytes(),
            b"" if self.op_us is None else self.op_us.tobytes(),
            self._streams or 0,
            bounds.cores or 0,
            b"" if bounds.work_us is None else bounds.work_us.tobytes(),
            bounds.tolerance,
            bounds.slack_us,
            self.scale,
        )
        mergeable = self._mergeable(stages)
        if len(mergeable):
            us = self.ask(select(stages, mergeable))
            native.ios_pricing_give(pricing, mergeable.astype(np.int64).tobytes(), us.tobytes())
        while True:
            flat = native.ios_pricing_next(
                pricing, max(_BATCH, int(native.ios_pricing_num_priced(pricing)) // _GROWTH)
            )
            if not flat[2]:
                break
            us = self.ask(StageBatch.from_bytes(flat))
            newly_below, scale = native.ios_pricing_prices(pricing, us.tobytes())
            if newly_below:
                self.below_bound += int(newly_below)
                self.scale = float(scale)
        return bytes(native.ios_pricing_values(pricing))

    def _mergeable(self, stages: StageBatch) -> npt.NDArray[np.intp]:
        """The indices of the stages that can be merged into one operator."""
        if not len(stages) or np.all(self._set_of < 0):
            return np.empty(0, dtype=np.intp)
        op_ends = stages.group_ends[stages.stage_ends - 1]
        num_ops = stages.num_ops
        num_groups = np.diff(stages.stage_ends, prepend=0)
        sets = self._set_of[stages.ops]
        lowest, highest = (f.reduceat(sets, op_ends - num_ops) for f in (np.minimum, np.maximum))
        # Operators that depend on each other share a group and cannot be merged. So each group of a
        # mergeable stage must hold one operator.
        return np.flatnonzero(
            (num_ops > 1) & (num_ops == num_groups) & (lowest == highest) & (lowest >= 0)
        )


def select(stages: StageBatch, indices: npt.NDArray[np.intp]) -> StageBatch:
    """The stages at the given indices, in the order of the indices."""
    return StageBatch.from_stages([stages[int(i)] for i in indices])
