"""The protocol of timers, which time stages on a device; each kind of device has its own timer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from ..latency.measurement import Setting
from .repeats import Measure

Streams = list[list[int]]
"""A stage as it runs: for each stream, the ids of its operators in order."""

Rounds = Callable[[Sequence[Streams]], Measure]
"""A function that prepares stages on one device. It returns a function that runs the stages in
turns."""

Result = TypeVar("Result")
Job = Callable[[Rounds], Result]
"""A job on one device: a function that takes the device's `Rounds` and returns a result."""


class StageTimer(Protocol):
    """Runs stages of one program on one kind of device, and times them.

    A timer only runs and times stages. `MeasuredLatency` uses a timer, and decides how often a
    stage runs, which time is subtracted from its latency, and which latencies are kept. To add a
    new kind of device, write a class that fits this protocol.

    Attributes
    ----------
    setting: the device, and the numbers of streams and threads that stages run on; part of each
        record.
    stages_per_job: how many stages one job measures, running them in turns.
    waits_of_stage: the number of waits between streams, one after the other, that the time of a
        stage on two streams includes. It is 2 if the streams fork before the stage and join after
        it.
    """

    setting: Setting
    stages_per_job: int
    waits_of_stage: int

    def why_not(self, op: int) -> str:
        """The reason why the device has no kernel for operator `op`; "" if it has a kernel."""
        ...

    def implementation(self, op: int) -> str:
        """The name of the implementation that the library of operator `op` chose for this device.

        The result is "" for a kernel of TVM, or if the name is not known.
        """
        ...

    def do(self, jobs: Sequence[Job[Result]]) -> Iterator[Result]:
        """Do each job on a device. Yield the results when they are ready, in any order.

        A timed stage runs right after an untimed run of the same stage, so it finds its data in the
        caches.

        Raises
        ------
        DeviceError
            No device is left to do the jobs.
        """
        ...

    def close(self) -> None:
        """Release devices that were reserved for this timer."""
        ...
