"""What measuring asks of a device: one protocol, and a class for each kind of device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from ..latency.measurement import Setting
from .repeats import Measure

Streams = list[list[int]]
"""A stage as it runs: for each stream, the ids of its operators in order."""

Rounds = Callable[[Sequence[Streams]], Measure]
"""Gets stages ready on one device. The function it returns runs them there against each other."""

Result = TypeVar("Result")
Job = Callable[[Rounds], Result]
"""Work on one device: it gets the device's `Rounds`, and says what it found."""


class StageTimer(Protocol):
    """Runs stages of one program on one kind of device, and times them.

    A timer decides nothing about measuring: how often a stage runs, what is taken off its time and
    what is kept are up to `MeasuredLatency`, which has a timer. A new kind of device is a class
    that fits this protocol.

    Attributes
    ----------
    setting: the device, and how many streams and threads stages run on; part of each record.
    stages_per_job: how many stages are measured against each other in one job.
    """

    setting: Setting
    stages_per_job: int

    def can_run(self, op: int) -> bool:
        """Whether the device has a kernel for operator `op`; if not, the reason is logged."""
        ...

    def do(self, jobs: Sequence[Job[Result]]) -> Iterator[Result]:
        """Do each job on a device; results come as they are ready, in any order.

        A run of a stage is timed right after an untimed one of the same stage.

        Raises
        ------
        DeviceError
            No device is left to do the jobs.
        """
        ...

    def close(self) -> None:
        """Give back devices that were taken for this timer alone."""
        ...
