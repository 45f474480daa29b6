"""From a model to an artifact: lower, measure, schedule, plan, check the speed, write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from . import _runtime
from ._version import __version__
from .artifact import Artifact, Manifest, SpeedCheck
from .cpu_features import host_features, target_features
from .errors import DeviceError, InputError
from .frontend import load_model
from .graph import OpGraph
from .instance import Instance, aligned_copy
from .kernel_libraries import TVM, available_providers
from .kernels import build_kernels, kernel_hashes, uses_parallel_loops
from .latency import LatencyModel
from .latency.kernel_choice import choose_kernels
from .latency.measured import MeasuredLatency, Progress
from .latency.store import LatencyStore
from .plan import Plan, make_plan
from .program import Program
from .scheduling import Schedule, options_of
from .scheduling import schedule as run_scheduler
from .transform.annotate import annotated_schedule
from .transform.cpu_schedule import DefaultCPUSchedule
from .transform.extract import extract
from .transform.lower import LowerToUnits

_SPEED_CHECK_S = 3.0
"""About how long the final comparison with sequential execution may take, in seconds."""
_MIN_ROUNDS = 7
_MAX_ROUNDS = 101


@dataclass
class CompileOptions:
    """What a model is compiled for.

    Attributes
    ----------
    target: a TVM target; kernels for a CPU.
    streams: CPU streams to run side by side; None takes as many as the model can use and the
        process has cores for.
    threads: threads each stream's kernels may use; None shares the cores out evenly.
    latency_db: file of measured latencies; None takes the default one, ":memory:" keeps none.
    progress: told how measuring goes.
    providers: whose kernels to choose from, `tvm` and kernel libraries such as `onednn`; None
        takes all that are there. One that is missing is logged, and TVM's kernels do its work.
    """

    target: Any = "llvm"
    streams: int | None = None
    threads: int | None = None
    latency_db: str | os.PathLike[str] | None = None
    progress: Progress | None = None
    providers: Sequence[str] | None = None


class Compilation:
    """One model on its way to an artifact; schedulers can be compared on it without recompiling.

    Attributes
    ----------
    program: the model's operators and tensors.
    graph: their dependencies.
    """

    def __init__(
        self,
        model: Any,
        options: CompileOptions | None = None,
        input_shapes: dict[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Import and lower the model.

        Parameters
        ----------
        model: an ONNX file's path, a network's name, an ONNX model, or a Relax IRModule.
        input_shapes: shapes of inputs the model leaves open, by name.

        Raises
        ------
        UnsupportedModelError, InputError
            The model cannot be imported, or an input's shape is not known.
        DeviceError
            The target is not a CPU's.
        """
        self.options = options or CompileOptions()
        self.target = _cpu_target(self.options.target)
        self.providers = available_providers(self.options.providers)
        libraries = tuple(name for name in self.providers if name != TVM)
        lower: Any = LowerToUnits(self.target, libraries)
        self.module = lower(load_model(model, input_shapes))
        self.program = extract(self.module)
        apply: Any = DefaultCPUSchedule(self.target)
        self.program.kernels = apply(self.program.kernels)
        for v, array in self.program.weights.items():
            self.program.weights[v] = aligned_copy(array)  # One copy, used by every instance.
        self.graph = program_graph(self.program)
        cores = _runtime.allowed_cores()
        self.streams = _positive("streams", self.options.streams, min(cores, self.graph.width or 1))
        self.threads = _positive("threads", self.options.threads, max(cores // self.streams, 1))
        if libraries:
            # On one thread, whatever the streams will be: with the same latencies at hand, the same
            # model always gets the same kernels, and so gives the same bits.
            self.program = choose_kernels(
                self.program, self.providers, lambda program: self._latency_of(program, 1, 1)
            )

    @cached_property
    def kernels(self) -> bytes:
        """The compiled kernel library."""
        with tempfile.TemporaryDirectory(prefix="tvm_interop_") as folder:
            path = Path(folder) / "kernels.so"
            build_kernels(self.program.kernels, self.target, path)
            return path.read_bytes()

    @cached_property
    def loaded_kernels(self) -> Any:
        """The kernel library, loaded into this process."""
        import tvm

        with tempfile.TemporaryDirectory(prefix="tvm_interop_") as folder:
            path = Path(folder) / "kernels.so"
            path.write_bytes(self.kernels)
            return tvm.runtime.load_module(str(path))

    @cached_property
    def parallel_kernels(self) -> bool:
        """Whether any kernel splits its work over a team of threads."""
        return any(uses_parallel_loops(self.program.kernels).values())

    @cached_property
    def measured_latency(self) -> MeasuredLatency:
        """The latency model that measures stages here, on as many streams as there will be."""
        return self._latency_of(self.program, self.streams, self.threads)

    def _latency_of(self, program: Program, streams: int, threads: int) -> MeasuredLatency:
        return MeasuredLatency(
            program,
            self.loaded_kernels,
            self._kernel_hashes,
            streams=streams,
            threads=threads,
            parallel_kernels=self.parallel_kernels,
            store=self._store,
            progress=self.options.progress,
        )

    @cached_property
    def _kernel_hashes(self) -> dict[str, str]:
        hashes = kernel_hashes(self.program.kernels)
        return {name: f"{self.target}:{digest}" for name, digest in hashes.items()}

    @cached_property
    def _store(self) -> LatencyStore:
        return LatencyStore(self.options.latency_db)

    def schedule(
        self, scheduler: str, latency: LatencyModel | None = None, **options: Any
    ) -> Schedule:
        """Run a scheduler on the model.

        Parameters
        ----------
        latency: by default measured here, as far as the scheduler asks for latencies at all.
        options: the scheduler's own.
        """
        if scheduler == "sequential":
            return run_scheduler(self.graph, scheduler, latency=latency, **options)
        if "streams" in options_of(scheduler):
            options.setdefault("streams", self.streams)
        return run_scheduler(
            self.graph, scheduler, latency=latency or self.measured_latency, **options
        )

    def plan(self, schedule: Schedule) -> Plan:
        """The plan of a schedule: one stream gets all the threads, several share them out."""
        threads = self.threads if schedule.num_streams > 1 else self.streams * self.threads
        return make_plan(self.program, schedule, threads, self.parallel_kernels)

    def instance(self, plan: Plan) -> Instance:
        """The plan with memory under it, ready to run."""
        return Instance(plan, self.loaded_kernels, self.program.weights)

    def sequential(self) -> Schedule:
        """Every operator in turn: what others are measured against."""
        return run_scheduler(self.graph, "sequential")

    def check_speed(self, schedule: Schedule) -> SpeedCheck:
        """Run `schedule` and sequential execution against each other, interleaved.

        Sequential execution takes part twice; how far the two differ is the noise.
        """
        sequential_plan = self.plan(self.sequential())
        instances = [self.instance(sequential_plan), self.instance(sequential_plan)]
        instances.append(self.instance(self.plan(schedule)))
        executors = [instance.executor for instance in instances]
        trial = _runtime.measure_interleaved(executors, 1, 1)
        round_s = sum(times[0] for times in trial)
        rounds = int(np.clip(_SPEED_CHECK_S / round_s, _MIN_ROUNDS, _MAX_ROUNDS))
        timed = _runtime.measure_interleaved(executors, 1, rounds, seed=1)
        first, second, scheduled = (float(np.median(times)) * 1e6 for times in timed)
        sequential_us = min(first, second)
        return SpeedCheck(
            sequential_us=sequential_us,
            scheduled_us=scheduled,
            noise_ratio=max(first, second) / sequential_us,
            shipped="scheduled" if scheduled < sequential_us else "sequential",
        )

    def artifact(self, schedule: Schedule, speed_check: SpeedCheck | None = None) -> Artifact:
        """The model as it ships: with `schedule`, or sequential where `speed_check` says so."""
        import tvm

        slower = speed_check is not None and speed_check.shipped == "sequential"
        shipped = self.sequential() if slower else schedule
        return Artifact(
            plan=self.plan(shipped),
            schedule=shipped,
            kernels=self.kernels,
            weights=self.program.weights,
            manifest=Manifest(
                tvm_interop_version=__version__,
                tvm_version=tvm.__version__,
                target=str(self.target),
                scheduler=schedule.scheduler,
                cpu_features=target_features(self.target),
                structural_hash=f"{tvm_ffi.structural_hash(self.module) % 2**64:016x}",
                speed_check=speed_check,
            ),
        )


def compile(
    model: Any,
    target: Any = "llvm",
    scheduler: str = "ios",
    out: str | os.PathLike[str] | None = None,
    *,
    schedule: Schedule | None = None,
    input_shapes: dict[str, tuple[int, ...]] | None = None,
    streams: int | None = None,
    threads: int | None = None,
    latency: LatencyModel | None = None,
    latency_db: str | os.PathLike[str] | None = None,
    keep_slower: bool = False,
    progress: Progress | None = None,
    providers: Sequence[str] | None = None,
    **options: Any,
) -> Artifact:
    """Compile a model so that its independent operators run side by side.

    The schedule is run against sequential execution of the same kernels before it ships; where it
    is not faster, the artifact runs sequentially, and its manifest says so.

    Parameters
    ----------
    model: an ONNX file's path, a network's name (see `models.list`), an ONNX model, or a Relax
        IRModule. One that `InterOpSchedule` has annotated keeps its schedule.
    target: a TVM target for a CPU.
    scheduler: one of `schedulers()`.
    out: where to write the artifact; None writes none.
    schedule: use this schedule, by hand perhaps, in place of a scheduler's.
    input_shapes: shapes of inputs the model leaves open, by name.
    streams, threads: CPU streams, and threads for each; by default as many as there are cores.
    latency: prices operators and stages; by default they are measured here.
    latency_db: file that keeps measured latencies; by default one in the user's cache folder.
    keep_slower: ship the schedule even where sequential execution is faster.
    progress: called with the stages measured and to be measured.
    providers: whose kernels each operator's fastest is chosen from: `tvm`, `onednn`; by default all
        that are there.
    options: the scheduler's own, such as `max_group_ops`.

    Returns
    -------
    The artifact, for `GraphModule`.

    Raises
    ------
    UnsupportedModelError, InputError, ScheduleError, DeviceError
        Each names what it is about and says what to do. No file is written then.
    """
    if out is not None and not Path(out).resolve().parent.is_dir():
        raise InputError(f"there is no folder `{Path(out).resolve().parent}` to write `{out}` to")
    compile_options = CompileOptions(target, streams, threads, latency_db, progress, providers)
    compilation = Compilation(model, compile_options, input_shapes)
    chosen = schedule or annotated_schedule(compilation.module)
    if chosen is None:
        chosen = compilation.schedule(scheduler, latency, **options)
    chosen.validate(compilation.graph)
    checked = None
    if chosen.num_streams > 1 and not keep_slower:
        checked = compilation.check_speed(chosen)
    artifact = compilation.artifact(chosen, checked)
    if out is not None:
        artifact.save(out)
    return artifact


def program_graph(program: Program) -> OpGraph:
    """The dependencies between a program's operators."""
    return OpGraph.from_edges([op.name for op in program.operators], program.edges())


def _cpu_target(target: Any) -> Any:
    import tvm

    try:
        resolved = tvm.target.Target(target)
    except Exception as error:
        raise DeviceError(f"`{target}` is no target TVM knows: {error}") from error
    if resolved.kind.name != "llvm":
        raise DeviceError(f"target `{resolved.kind.name}` is not supported; give `llvm`")
    attrs = dict(resolved.attrs)
    elsewhere = attrs.get("mtriple") != tvm.target.Target("llvm").attrs.get("mtriple")
    if elsewhere or "mcpu" in attrs or "mattr" in attrs or not host_features():
        return resolved
    # A baseline CPU with instructions added: LLVM then uses vectors as wide as it is given.
    features = [f"+{name}" for name in host_features()]
    return tvm.target.Target({"kind": "llvm", **attrs, "mcpu": "x86-64", "mattr": features})


def _positive(what: str, given: int | None, default: int) -> int:
    if given is None:
        return default
    if given < 1:
        raise InputError(f"`{what}` must be at least 1, got {given}")
    return given
