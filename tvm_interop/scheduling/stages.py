"""The class `Stage`: groups of operators that run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..errors import ScheduleError
from ..latency.base import pack_groups_of_stages
from .schedule_fields import as_ids, as_numbers, as_tuple

STAGE_KINDS = ("concurrent", "merge")


@dataclass(frozen=True)
class Stage:
    """Groups of operators that run side by side; the operators of a group run in order.

    Attributes
    ----------
    groups: one tuple of operator ids for each group.
    streams: the stream of each group. Groups on the same stream run in order.
    kind: `concurrent` runs the groups side by side; `merge` runs one wider operator in their place.
    barrier: whether every operator of the stage waits for all earlier stages. Without a barrier, an
        operator waits only for the operators that it depends on. With several GPUs, a barrier
        covers only the earlier stages on the same GPU.
    device: number of the GPU that runs the stage: GPU 1 is `cuda:1`. None if all stages run on the
        one device that the model is compiled for.

    Examples
    --------
    >>> Stage(groups=[[1], [2, 3]], streams=[0, 1]).ops
    (1, 2, 3)
    """

    groups: tuple[tuple[int, ...], ...]
    streams: tuple[int, ...]
    kind: str = "concurrent"
    barrier: bool = False
    device: int | None = None

    def __post_init__(self) -> None:
        groups = as_tuple(self.groups, "the groups of a stage")
        object.__setattr__(self, "groups", tuple(as_ids(g, "a group of a stage") for g in groups))
        object.__setattr__(self, "streams", as_numbers(self.streams, "stream", "group"))
        if self.device is not None:
            (device,) = as_numbers((self.device,), "device", "stage")
            object.__setattr__(self, "device", device)
        if self.kind not in STAGE_KINDS:
            raise ScheduleError(
                f"there is no stage kind `{self.kind}`; use one of {', '.join(STAGE_KINDS)}"
            )
        if len(self.groups) != len(self.streams):
            raise ScheduleError(
                f"a stage of {len(self.groups)} groups names {len(self.streams)} streams; "
                "name the stream of each group"
            )

    @property
    def ops(self) -> tuple[int, ...]:
        """The ids of the operators of all groups, one group after the other."""
        return tuple(op for group in self.groups for op in group)

    def by_stream(self) -> dict[int, tuple[int, ...]]:
        """The operators that each stream of this stage runs, in order; streams ascend by number."""
        running: dict[int, tuple[int, ...]] = {}
        for stream, group in sorted(
            zip(self.streams, self.groups, strict=True), key=lambda pair: pair[0]
        ):
            running[stream] = running.get(stream, ()) + group
        return running


def pack_onto_streams(
    stages: Sequence[Stage], op_us: Sequence[float], num_streams: int
) -> tuple[Stage, ...]:
    """Give each group of each stage one of `num_streams` streams.

    The groups of a stage are placed one by one, the longest first. Each group is put onto the
    stream with the shortest total length so far. The length of a group is the sum of its operators'
    `op_us`, in microseconds. Ties go to the lowest group and the lowest stream.
    """
    streams = iter(pack_groups_of_stages([stage.groups for stage in stages], op_us, num_streams))
    return tuple(
        Stage(stage.groups, tuple(islice(streams, len(stage.groups))), stage.kind, stage.barrier)
        for stage in stages
    )


def unpack_stages(native: Any) -> tuple[Stage, ...]:
    """Convert stages from the form in which the native code passes them.

    The native code passes a stage as a list of lists. The first list holds the stream of each
    group. Each further list holds the operators of one group.
    """
    return tuple(
        Stage(groups=tuple(tuple(group) for group in groups), streams=tuple(streams))
        for streams, *groups in native
    )


def side_by_side(ops: Sequence[int], gpu: int, first_stream: int) -> Stage:
    """Make a stage of operators that start together on `gpu`, each on its own stream.

    The first operator is on stream `first_stream`.
    """
    return Stage(
        groups=tuple((op,) for op in ops),
        streams=tuple(range(first_stream, first_stream + len(ops))),
        # The latency of the stage is right only if no other stage runs on the GPU, so set a
        # barrier.
        barrier=True,
        device=gpu,
    )


def devices_of(stages: Sequence[Stage], num_streams: int) -> tuple[int, ...]:
    """The device of each stream, taken from its stages; empty if no stage names a device.

    A stream that no stage uses gets the device of the first stage.
    """
    without = [i for i, stage in enumerate(stages) if stage.device is None]
    if len(without) == len(stages):
        return ()
    if without:
        raise ScheduleError(
            f"stage {without[0]} does not name a device, and others do; "
            "give each stage its `device`"
        )
    found: dict[int, int] = {}
    for i, stage in enumerate(stages):
        assert stage.device is not None
        for stream in stage.streams:
            if found.setdefault(stream, stage.device) != stage.device:
                raise ScheduleError(
                    f"stage {i} runs on device {stage.device}, but its stream {stream} is on "
                    f"device {found[stream]}, where an earlier stage uses it; give the stage "
                    "another stream"
                )
    return tuple(found.get(stream, stages[0].device or 0) for stream in range(num_streams))


def streams_of(stages: Sequence[Stage]) -> tuple[tuple[int, ...], ...]:
    num_streams = max((s + 1 for stage in stages for s in stage.streams), default=0)
    streams: list[list[int]] = [[] for _ in range(num_streams)]
    for stage in stages:
        for stream, group in zip(stage.streams, stage.groups, strict=True):
            streams[stream].extend(group)
    return tuple(tuple(ops) for ops in streams)
