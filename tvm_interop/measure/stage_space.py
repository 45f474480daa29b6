"""The candidate stages of a search that measures only few candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .._native import passes as native
from ..latency.batch import StageBatch
from ..latency.learned import Floats
from ..scheduling.stages import Stage, unpack_stages

_NEVER_US = 1e15
"""The latency that is assumed for an unmeasured stage, in microseconds. It is so long that the
search chooses such a stage only if no schedule of measured stages exists."""


class Known(Protocol):
    """Looks up the latencies of stages. `MeasuredLatency` implements this protocol."""

    def known(self, stages: Sequence[Sequence[Sequence[int]]]) -> Floats:
        """Microseconds of stages that were measured before; NaN for stages that were not."""

    def keys(self, stages: Sequence[Sequence[Sequence[int]]]) -> list[str]:
        """A key for each stage. Stages with equal keys run equal kernels and take equally long."""


@dataclass(frozen=True)
class Found:
    """The stages of a schedule, in the order in which they run, and the sum of their latencies in
    microseconds.
    """

    stages: tuple[Stage, ...]
    makespan_us: float


class StageSpace:
    """The stages of a native search, with the latencies that are measured so far.

    Stages that run the same kernels are of one kind, and only one stage of each kind is measured.

    Attributes
    ----------
    kinds: one stage of each kind, as it runs on the streams.
    price_us: latency of each kind in microseconds, shape (kinds,); nan for an unmeasured kind.
    of_one_operator: indices of the kinds with a single operator.
    stats: statistics of the native search.
    """

    def __init__(
        self, search: Any, device: Known, packed: Callable[[StageBatch], StageBatch]
    ) -> None:
        """Look up the stages that are measured already.

        Parameters
        ----------
        packed: packs the groups of stages onto streams, as they will run.
        """
        self._search = search
        stages = StageBatch.from_bytes(native.ios_stages(search))
        batch = packed(stages)
        _, firsts, self._kind_of = np.unique(
            device.keys(batch), return_index=True, return_inverse=True
        )
        self.kinds = StageBatch.from_stages([batch[int(i)] for i in firsts])
        self.price_us = np.array(device.known(self.kinds), dtype=np.float64)
        self.of_one_operator = np.unique(self._kind_of[stages.num_ops == 1])
        self.stats: dict[str, Any] = dict(native.ios_stats(search))

    @property
    def num_stages(self) -> int:
        return len(self._kind_of)

    @property
    def num_priced(self) -> int:
        """Number of stages whose latency is known. Stages that are alike share one latency, and
        each of them is counted.
        """
        return int(np.isfinite(self.price_us[self._kind_of]).sum())

    @property
    def unmeasured(self) -> npt.NDArray[np.intp]:
        """Indices of the kinds of stages that are not measured."""
        return np.flatnonzero(np.isnan(self.price_us))

    def cheapest(self) -> Found:
        """The fastest sequence of measured stages that runs all operators.

        If no sequence of measured stages runs all operators, the result has unmeasured stages too,
        and a huge latency.
        """
        price_us = np.where(np.isnan(self.price_us), _NEVER_US, self.price_us)
        stages, makespan_us = native.ios_solve(self._search, price_us[self._kind_of].tobytes())
        return Found(unpack_stages(stages), float(makespan_us))

    def wanted(self, guess_us: Floats, at_least: int) -> list[int]:
        """Indices of unmeasured kinds of stages to measure next, the most important first.

        `guess_us` holds an estimated latency for each unmeasured kind. The result begins with the
        unmeasured kinds of the schedule that is fastest by these estimates. If they are fewer than
        `at_least`, kinds of the next fastest schedules follow.
        """
        is_priced = ~np.isnan(self.price_us)
        value_us = np.where(is_priced, self.price_us, guess_us)[self._kind_of]
        marks = is_priced.astype(np.int8)[self._kind_of]
        found = native.ios_wanted(self._search, value_us.tobytes(), marks.tobytes(), at_least)
        return list(dict.fromkeys(self._kind_of[np.frombuffer(found, dtype=np.int64)].tolist()))
