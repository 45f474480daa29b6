"""One model on its way to an artifact: lowered, measured, scheduled, planned, its speed checked."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tvm_ffi

from . import _runtime
from ._version import __version__
from .artifact import Artifact, Manifest, SpeedCheck
from .compile_options import MERGING, CompileOptions, positive
from .cpu_features import target_features
from .cpu_target import cpu_target
from .errors import InputError, ScheduleError
from .frontend import load_model
from .instance import Instance, aligned_copy, load_kernels
from .kernel_libraries import TVM, available_providers
from .kernel_traits import operator_traits
from .kernels import build_kernels, kernel_hashes, uses_parallel_loops
from .latency import LatencyModel
from .latency.active import ActiveSearch, active_search
from .latency.farm import FarmLatency
from .latency.kernel_choice import choose_kernels
from .latency.measured import MeasuredLatency
from .latency.store import LatencyStore
from .merging import MergedCompilations, MergingLatency, OperatorMerges, merged_stages
from .plan import Plan, make_plan
from .program import Program
from .remote import ServerAddress
from .scheduling import OperatorTraits, Schedule, options_of
from .scheduling import schedule as run_scheduler
from .scheduling.one_after_another import one_after_another
from .speed_check import interleaved_us, speed_check
from .transform.concat_in_place import concat_in_place
from .transform.cpu_schedule import DefaultCPUSchedule
from .transform.extract import extract
from .transform.lower import LowerToUnits
from .transform.split_operators import split_operators
from .transform.tuned_schedule import TunedSchedule
from .tuning_records import TuningRecords


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
        self.target = cpu_target(self.options.target)
        if self.options.stream_priorities:
            raise InputError("`stream_priorities` is for GPUs: a CPU's streams are all alike")
        if self.options.allow_tf32:
            raise InputError("`allow_tf32` is for GPUs: no CPU rounds to TF32")
        self.providers = available_providers(self.options.providers)
        libraries = tuple(name for name in self.providers if name != TVM)
        lower: Any = LowerToUnits(self.target, libraries)
        self._imported = load_model(model, input_shapes)
        self.module = lower(self._imported)
        program = concat_in_place(extract(self.module))
        if self.options.tuning_records is not None:
            apply_tuned: Any = TunedSchedule(self.options.tuning_records, self.target)
            program.kernels = apply_tuned(program.kernels)
        apply: Any = DefaultCPUSchedule(self.target)
        program.kernels = apply(program.kernels)
        for v, array in program.weights.items():
            program.weights[v] = aligned_copy(array)  # One copy, used by every instance.
        self._on_tvm_alone = self.program = program
        cores = _runtime.allowed_cores()
        self.streams = positive("streams", self.options.streams, cores)
        self.threads = positive("threads", self.options.threads, max(cores // self.streams, 1))
        if libraries:
            # On one thread, whatever the streams will be: with the same latencies at hand, the same
            # model always gets the same kernels, and so gives the same bits.
            program = choose_kernels(
                program, self.providers, lambda program: self._latency_of(program, 1, 1)
            )
        # Teams of threads and parts are two ways to share an operator out: one is enough.
        usual = self.streams if self.threads == 1 else 1
        parts = positive("parts", self.options.parts, usual)
        self.program = split_operators(program, parts)
        self.graph = self.program.graph()

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
        with tempfile.TemporaryDirectory(prefix="tvm_interop_") as folder:
            path = Path(folder) / "kernels.so"
            path.write_bytes(self.kernels)
            return load_kernels(path)

    @cached_property
    def parallel_kernels(self) -> bool:
        """Whether any kernel splits its work over a team of threads."""
        return any(uses_parallel_loops(self.program.kernels).values())

    @cached_property
    def measured_latency(self) -> MeasuredLatency:
        """The latency model that measures stages here, on as many streams as there will be."""
        return self._latency_of(self.program, self.streams, self.threads)

    @cached_property
    def traits(self) -> list[OperatorTraits]:
        """What each operator computes and moves."""
        return operator_traits(self.program, self.module)

    def require_tuning_records(self) -> None:
        """Check that the tuning records, where some were given, are of this model.

        Not done on construction: where operators are merged, what comes out may have none.

        Raises
        ------
        InputError
            None of them is of a kernel of the model.
        """
        if self.options.tuning_records is not None:
            records = TuningRecords(self.options.tuning_records, self.target)
            records.require_some_of(self.module[op.kernel] for op in self.program.operators)

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
        self,
        scheduler: str,
        latency: LatencyModel | Literal["learned"] | None = None,
        **options: Any,
    ) -> Schedule:
        """Run a scheduler on the model.

        Parameters
        ----------
        latency: by default that of the options, or else measured here, as far as the scheduler
            asks for latencies at all.
            `learned`, for scheduler `ios`, which `auto` then stands for: most stages are predicted,
            see `search`.
        options: the scheduler's own; what the compilation knows (streams, tensors, what operators
            compute and move, how to measure) is given where it takes it. With `learned` those of
            `ActiveSearch`.
        """
        if isinstance(latency, str):
            _check_learned(latency, scheduler)
            return self.search(**options).run()
        latency = latency or self.options.latency
        if scheduler == "sequential" and not options:
            return self.sequential()
        known: dict[str, Callable[[], Any]] = {
            "streams": lambda: self.streams,
            "baseline": self.sequential,
            "parts": self.program.parts,
            "buffers": self.program.buffers,
            "traits": lambda: self.traits,
            "evaluate": lambda: self.measure,
        }
        for name in known.keys() & set(options_of(scheduler)) - options.keys():
            options[name] = known[name]()
        if scheduler in MERGING:
            if self.program.is_divided:
                raise ScheduleError(
                    f"`{scheduler}` merges whole operators, and here they are divided into parts; "
                    "compile with `CompileOptions(parts=1)`"
                )
            latency = latency or self._merging_latency(scheduler)
        elif scheduler != "sequential":
            latency = latency or self.measured_latency
        return run_scheduler(self.graph, scheduler, latency=latency, **options)

    def farm_latency(self, address: ServerAddress) -> FarmLatency:
        """The latency model that measures stages on servers of TVM's RPC.

        Raises
        ------
        DeviceError
            There is no such tracker, or no free server that has our runtime.
        InputError
            An operator's kernel is not TVM's.
        """
        return FarmLatency(
            address,
            self.program,
            self.loaded_kernels,
            self.kernels,
            self._kernel_hashes,
            streams=self.streams,
            threads=self.threads,
            parallel_kernels=self.parallel_kernels,
            store=self._store,
            progress=self.options.progress,
        )

    def search(self, latency: MeasuredLatency | None = None, **options: Any) -> ActiveSearch:
        """IOS with most stages predicted and few measured, ready to `run`.

        Parameters
        ----------
        latency: what measures; by default this machine. See `farm_latency`.
        options: `ActiveSearch`'s, such as `max_measurements` and `time_budget_s`.

        Raises
        ------
        DeviceError
            xgboost is not installed (extra `learned`).
        """
        options.setdefault("streams", self.streams)
        options.setdefault("parts", self.program.parts())
        return active_search(self.graph, latency or self.measured_latency, self._store, **options)

    @cached_property
    def merges(self) -> OperatorMerges:
        """The operators that could be merged."""
        return OperatorMerges(self._imported, self.graph.names)

    @cached_property
    def _merged(self) -> MergedCompilations:
        options = replace(self.options, streams=self.streams, threads=self.threads, latency=None)
        return MergedCompilations(self.merges, lambda module: Compilation(module, options))

    def _merging_latency(self, scheduler: str) -> LatencyModel:
        """Measured latencies, merged operators too; `ios-merge` runs on one stream."""
        streams, threads = self.streams, self.threads
        if scheduler == "ios-merge":
            streams, threads = 1, streams * threads
        base = self._latency_of(self.program, streams, threads)
        options = replace(self.options, streams=streams, threads=threads, latency=None)
        return MergingLatency(base, self.merges, lambda module: Compilation(module, options))

    def realized(self, schedule: Schedule) -> tuple[Compilation, Schedule]:
        """Where the merged stages of a schedule are merged: a compilation, and the schedule for it.

        Itself and the schedule where there are none.

        Raises
        ------
        ScheduleError
            Operators cannot be merged; says why.
        """
        if not merged_stages(schedule):
            return self, schedule
        schedule.validate(self.graph)
        return self._merged.realized(schedule)

    def plan(self, schedule: Schedule) -> Plan:
        """The plan of a schedule: one stream gets all the threads, several share them out.

        Raises
        ------
        ScheduleError
            It does not fit the model, or has merged stages: plan what `realized` gives.
        """
        if merged_stages(schedule):
            raise ScheduleError(
                "the schedule merges operators, and this compilation has them apart; plan what "
                "`realized` gives"
            )
        shares_out = schedule.num_streams == 1 and not self.program.is_divided
        threads = self.streams * self.threads if shares_out else self.threads
        return self._make_plan(self.program, schedule, threads)

    def instance(self, plan: Plan) -> Any:
        """The plan with memory under it, ready to run."""
        return Instance(plan, self.loaded_kernels, self.program.weights)

    def sequential(self) -> Schedule:
        """Every operator in turn, divided over all streams: what others are measured against."""
        return one_after_another(self.program, self.streams)

    def measure(self, schedules: Sequence[Schedule]) -> list[float]:
        """Run schedules against each other, interleaved: the median of each in microseconds."""
        realized = [self.realized(schedule) for schedule in schedules]
        instances = [home.instance(home.plan(schedule)) for home, schedule in realized]
        executors = [instance.executor for instance in instances]
        return interleaved_us(executors, self._measure_interleaved)

    def check_speed(self, schedule: Schedule) -> SpeedCheck:
        """Run `schedule` and sequential execution against each other, interleaved.

        Sequential execution takes part twice; how far the two differ is the noise.
        """
        sequential = self.sequential()
        first, second, scheduled = self.measure([sequential, sequential, schedule])
        return speed_check(min(first, second), abs(first - second), scheduled)

    def _measure_interleaved(
        self, executors: list[Any], warmup: int, repeats: int, seed: int = 0
    ) -> list[list[float]]:
        return _runtime.measure_interleaved(executors, warmup, repeats, seed)

    def _cpu_features(self) -> tuple[str, ...]:
        return target_features(self.target)

    def artifact(self, schedule: Schedule, speed_check: SpeedCheck | None = None) -> Artifact:
        """The model as it ships: with `schedule`, or sequential where `speed_check` says so."""
        import tvm

        slower = speed_check is not None and speed_check.shipped == "sequential"
        home, shipped = self.realized(self.sequential() if slower else schedule)
        return Artifact(
            plan=home.plan(shipped),
            schedule=shipped,
            kernels=home.kernels,
            weights=home.program.weights,
            fallback=home._fallback(),
            manifest=Manifest(
                tvm_interop_version=__version__,
                tvm_version=tvm.__version__,
                target=str(self.target),
                scheduler=schedule.scheduler,
                cpu_features=self._cpu_features(),
                structural_hash=f"{tvm_ffi.structural_hash(home.module) % 2**64:016x}",
                speed_check=speed_check,
            ),
        )

    def _fallback(self) -> Plan | None:
        """What runs where the kernel libraries are missing; None where none is used."""
        if all(op.library is None for op in self.program.operators):
            return None
        in_turn = one_after_another(self._on_tvm_alone, 1)
        return self._make_plan(self._on_tvm_alone, in_turn, self.streams * self.threads)

    def _make_plan(self, program: Program, schedule: Schedule, threads: int) -> Plan:
        """The plan of a schedule of `program`, with so many threads for each stream's kernels."""
        return make_plan(program, schedule, threads, self.parallel_kernels)


def _check_learned(latency: str, scheduler: str) -> None:
    if latency != "learned":
        raise InputError(
            f"`latency` is {latency!r}; give `learned`, a LatencyModel, or nothing to measure here"
        )
    if scheduler not in ("auto", "ios"):
        raise InputError(
            f"learned latencies are for scheduler `ios`; `{scheduler}` asks for few stages, "
            "which are measured: leave `latency` out"
        )
