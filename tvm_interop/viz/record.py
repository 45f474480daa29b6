"""The data that the pictures show: the schedule of an artifact, and when each operator ran."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..artifact.artifact import Artifact
from ..artifact.gpu_demand import GpuDemand, gpu_demands
from ..artifact.manifest import MergeCheck
from ..artifact.program_check import ProgramCheck
from ..artifact.ranges import Ranges, RequestCost
from ..execution.graph_module import GraphModule
from ..execution.operator_profile import OpProfile
from ..machine.kernel_libraries import TVM
from ..plan.plan import Plan
from ..program.storage import dependencies
from .kinds import kind_of

_WARMUP = 2


@dataclass(frozen=True)
class OperatorRecord:
    """One operator, and when it ran.

    Attributes
    ----------
    kind: kind of the operator, the name of one of `kinds.KINDS`.
    provider: library of the operator's kernel, such as `tvm` or `onednn`.
    stage: index of the operator's stage; None in a streamed schedule.
    start_us, end_us: measured microseconds since the start of the run.
    predicted_us: the start and the end that the scheduler predicted for the operator; None if it
        predicted no times.
    waits: indices of the operators on other streams that this operator waits for.
    reads: indices of the operators whose outputs this operator reads, each once.
    output_bytes: number of bytes that the operator writes.
    copies_to: for a copy between GPUs, the GPU that receives the data; None for other operators.
    lost_us: microseconds during which the operator could have run, but had no core: no thread had
        started it yet, or its thread had lost its core.
    off_core_us: how much of `lost_us` lies between `start_us` and `end_us`.
    gpu: the resources of a GPU's multiprocessor that the operator needs; None on a CPU, for a copy,
        or if the artifact does not hold them.
    """

    name: str
    kind: str
    kernel: str
    provider: str
    stream: int
    stage: int | None
    start_us: float
    end_us: float
    predicted_us: tuple[float, float] | None
    waits: tuple[int, ...]
    reads: tuple[int, ...]
    output_bytes: int
    copies_to: str | None = None
    lost_us: float = 0.0
    off_core_us: float = 0.0
    gpu: GpuDemand | None = None

    @property
    def took_us(self) -> float:
        """Microseconds from the start of the operator to its end."""
        return self.end_us - self.start_us


@dataclass(frozen=True)
class Record:
    """An artifact and a run of this artifact.

    Attributes
    ----------
    title: title in the pictures.
    scheduler: name of the scheduler that made the schedule.
    threads: number of threads of each stream.
    devices: device of each stream: `cpu:0`, or a GPU such as `cuda:1`.
    operators: the operators in the plan's order.
    num_stages: number of stages; 0 for a streamed schedule.
    makespan_us: microseconds from the start of the run to the end of the last operator.
    predicted_us: makespan that the scheduler predicted; None if it predicted no makespan.
    memory: pairs (us, bytes): from this time on, intermediate tensors use this many bytes.
    arena_bytes: bytes that the plan sets aside for intermediate tensors.
    ratio: time of the schedule divided by the time of sequential execution, from the speed check;
        None without a speed check.
    merge_check: how far the results of merged operators are from the results of separate operators;
        None if no operators are merged.
    program_check: how far the outputs of a program of `torch.export` are from PyTorch's; None for
        other models.
    runs: number of runs of the artifact. The record shows the fastest run. The number is 0 if the
        artifact was not run and the times are predicted.
    ranges: the ranges of sizes that the artifact was compiled for; None if there are none.
    request: the request (sizes of the inputs) whose plan is recorded; None if the artifact's first
        plan is recorded.
    """

    title: str
    scheduler: str
    threads: tuple[int, ...]
    devices: tuple[str, ...]
    operators: tuple[OperatorRecord, ...]
    num_stages: int
    makespan_us: float
    predicted_us: float | None
    memory: tuple[tuple[float, int], ...]
    arena_bytes: int
    ratio: float | None
    merge_check: MergeCheck | None = None
    program_check: ProgramCheck | None = None
    runs: int = 1
    ranges: Ranges | None = None
    request: RequestCost | None = None

    @property
    def time_said(self) -> str:
        """The makespan as text. The text also says whether it was measured or predicted."""
        ms = f"{self.makespan_us / 1e3:.3f} ms"
        if self.runs:
            return f"{ms}, the fastest of {self.runs} runs" if self.runs > 1 else f"{ms}, one run"
        if all(op.predicted_us is not None for op in self.operators):
            return f"{ms} predicted from the latencies that it was scheduled with, not run"
        return "not run, every operator drawn equally long"

    @property
    def on_several(self) -> bool:
        """Whether the artifact runs on several GPUs."""
        return len(set(self.devices)) > 1

    @property
    def has_one_order_of_stages(self) -> bool:
        """Whether all stages run one after another; False without stages or with several GPUs."""
        return self.num_stages > 0 and not self.on_several

    @property
    def num_copies(self) -> int:
        """Number of copies between GPUs."""
        return sum(op.copies_to is not None for op in self.operators)

    def lanes(self) -> dict[str, list[int]]:
        """The streams of each device, with the streams that copy to other GPUs last."""
        by_device: dict[str, list[int]] = {device: [] for device in sorted(set(self.devices))}
        for stream, device in enumerate(self.devices):
            by_device[device].append(stream)
        for streams in by_device.values():
            streams.sort(key=lambda stream: self._copies_to(stream) or "")
        return by_device

    def stream_said(self, stream: int) -> str:
        """Return the text with which pictures label a stream."""
        target = self._copies_to(stream)
        return f"stream {stream}" if target is None else f"to {target}"

    def _copies_to(self, stream: int) -> str | None:
        """The GPU that all operators of a stream copy to; None if there is no such GPU."""
        targets = {op.copies_to for op in self.operators if op.stream == stream}
        return targets.pop() if len(targets) == 1 else None

    @property
    def num_waits(self) -> int:
        """Number of waits for operators on other streams."""
        return sum(len(op.waits) for op in self.operators)

    def busy_share(self, stream: int) -> float:
        """The share of the makespan during which a stream ran operators on a core."""
        busy = sum(op.took_us - op.off_core_us for op in self.operators if op.stream == stream)
        return busy / self.makespan_us if self.makespan_us else 0.0

    def lost_share(self, stream: int) -> float:
        """The share of the makespan during which a stream could run an operator but had no core."""
        lost = sum(op.lost_us for op in self.operators if op.stream == stream)
        return min(lost / self.makespan_us, 1.0) if self.makespan_us else 0.0


def record(artifact: Artifact, title: str, runs: int = 9) -> Record:
    """Run an artifact several times and make the record of the fastest run.

    All inputs are zeros. The fastest run is taken, because it is the run that other programs on the
    machine disturbed least.

    Parameters
    ----------
    title: title in the pictures.
    runs: number of runs. The fastest of them is recorded. Two further runs come first, to warm up.
    """
    module = GraphModule(artifact)
    shapes, dtypes = module.get_input_info()
    module.set_input(**{name: np.zeros(shape, dtypes[name]) for name, shape in shapes.items()})
    for _ in range(_WARMUP):
        module.run()
    fastest = min((module.profile() for _ in range(runs)), key=_makespan)
    return from_profile(artifact, title, fastest, module.plan, runs)


def planned(artifact: Artifact, title: str) -> Record:
    """Make the record of an artifact from its plan, without running the artifact.

    Each operator takes the time that the scheduler predicted. If the scheduler predicted no time
    for some operator, every operator takes 1 us.
    """
    plan, schedule = artifact.plan, artifact.schedule
    foreseen_us = {
        schedule.op_names[op]: end - start for op, _, start, end in schedule.timeline or ()
    }
    if not all(op.name in foreseen_us for op in plan.operators):
        foreseen_us = {op.name: 1.0 for op in plan.operators}
    free_us = [0.0] * len(plan.streams)
    rows: list[OpProfile] = []
    for op in plan.operators:
        start_us = max([free_us[op.stream], *(rows[w].end_us for w in op.waits)])
        free_us[op.stream] = start_us + foreseen_us[op.name]
        rows.append(OpProfile(op.name, op.kernel, op.stream, start_us, free_us[op.stream]))
    return from_profile(artifact, title, rows, plan, runs=0)


def from_profile(
    artifact: Artifact,
    title: str,
    profile: list[OpProfile],
    plan: Plan | None = None,
    runs: int = 1,
) -> Record:
    """Make the record of an artifact's run from a given profile of this run.

    Parameters
    ----------
    plan: the plan that was profiled; by default the artifact's plan.
    runs: number of runs, 0 if the artifact was not run. `profile` shows the fastest run.
    """
    schedule = artifact.schedule
    plan = plan or artifact.plan
    rows = {row.name: row for row in profile}
    stages = {
        schedule.op_names[op]: i
        for i, stage in enumerate(schedule.stages)
        for group in stage.groups
        for op in group
    }
    foreseen = {
        schedule.op_names[op]: (start, end) for op, _, start, end in schedule.timeline or ()
    }
    demands = gpu_demands(artifact, plan)
    reads: dict[int, list[int]] = {}
    for producer, consumer in dependencies(plan.values, plan.operators):
        reads.setdefault(consumer, []).append(producer)
    operators = tuple(
        OperatorRecord(
            name=op.name,
            kind=kind_of(op.kernel),
            kernel=op.kernel,
            provider=op.library or TVM,
            stream=op.stream,
            stage=stages.get(op.name),
            start_us=rows[op.name].start_us,
            end_us=rows[op.name].end_us,
            predicted_us=foreseen.get(op.name),
            waits=op.waits,
            reads=tuple(dict.fromkeys(reads.get(i, ()))),
            output_bytes=sum(plan.values[v].nbytes for v in op.outputs),
            copies_to=plan.device_of(op.outputs[0]) if op.is_copy else None,
            lost_us=rows[op.name].lost_us,
            off_core_us=rows[op.name].off_core_us,
            gpu=demands.get(op.name),
        )
        for i, op in enumerate(plan.operators)
    )
    checked = artifact.manifest.speed_check
    return Record(
        title=title,
        scheduler=schedule.scheduler,
        threads=tuple(stream.threads for stream in plan.streams),
        devices=tuple(stream.device for stream in plan.streams),
        operators=operators,
        num_stages=len(schedule.stages),
        makespan_us=_makespan(profile),
        predicted_us=schedule.makespan,
        memory=_memory(plan, operators),
        arena_bytes=plan.arena_bytes,
        ratio=checked.ratio if checked else None,
        merge_check=artifact.manifest.merge_check,
        program_check=artifact.manifest.program_check,
        runs=runs,
        ranges=artifact.ranges,
    )


def _makespan(profile: list[OpProfile]) -> float:
    return max((row.end_us for row in profile), default=0.0)


def _memory(plan: Plan, operators: tuple[OperatorRecord, ...]) -> tuple[tuple[float, int], ...]:
    """Return how many bytes are in use over time, as pairs (us, bytes).

    A tensor is in use from the start of the first operator that writes it to the end of the last
    operator that uses it.
    """
    changes: dict[float, int] = {}
    first_us: dict[int, float] = {}
    last_us: dict[int, float] = {}
    for op, seen in zip(plan.operators, operators, strict=True):
        for v in map(plan.root_of, (*op.inputs, *op.outputs)):
            first_us[v] = min(first_us.get(v, seen.start_us), seen.start_us)
            last_us[v] = max(last_us.get(v, 0.0), seen.end_us)
    for v, start_us in first_us.items():
        value = plan.values[v]
        if value.storage == "arena":
            changes[start_us] = changes.get(start_us, 0) + value.nbytes
            changes[last_us[v]] = changes.get(last_us[v], 0) - value.nbytes
    used, steps = 0, []
    for us in sorted(changes):
        used += changes[us]
        steps.append((us, used))
    return tuple(steps)
