"""Defines `Compilation`, which lowers, measures, schedules and plans one model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..artifact.artifact import Artifact
from ..artifact.gpu_demand import GpuDemand
from ..artifact.manifest import MergeCheck, Precision, SpeedCheck
from ..errors import DeviceError, InputError, NoLatencyError, OutOfTimeError, ScheduleError
from ..execution.rpc_server import ServerAddress
from ..latency import LatencyModel
from ..latency.base import op_latencies
from ..measure.active import ActiveSearch, active_search
from ..measure.farm_timer import farm_timer
from ..measure.measured import MeasuredLatency
from ..measure.store import LatencyStore, open_store
from ..plan.plan import Plan
from ..program.traits import OperatorTraits
from ..scheduling import Schedule, options_of
from ..scheduling import schedule as run_scheduler
from ..scheduling.one_after_another import one_after_another
from .backends import backend_for
from .few_measurements import FewMeasurements
from .merge_check import compare_merged
from .merging import MergedCompilations, MergingLatency, OperatorMerges, merged_stages
from .offers import Offer, offers_for
from .options import MERGING, CompileOptions
from .price_source import ByName, Given, Learned, MeasuredHere, price_source
from .prices import DATABASE, named_prices
from .shipping import fallback_of, manifest_of
from .speed_check import check_rounds, interleaved_rounds
from .time_budget import SCHEDULE_SHARE, TimeBudget
from .timed_search import latency_in_time, options_in_time, with_refused

_LOG = logging.getLogger("tvm_interop")


class Compilation:
    """The compilation of one model. It can run several schedulers without compiling again.

    Attributes
    ----------
    module: the Relax module of fused kernels, before they are scheduled.
    program: the model's operators and tensors.
    streams, threads: the number of streams, and of threads that each stream's kernels use.
    graph: the dependencies between the operators.
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
            The target names an unknown device, or the device does not support the options.
        """
        self.options = options or CompileOptions()
        self.backend = backend_for(self.options)
        self._lowered = self.backend.lower(model, input_shapes, lambda: self._store)
        self.module = self._lowered.module
        self.program = self._lowered.program
        self.streams, self.threads = self._lowered.streams, self._lowered.threads
        self.graph = self.program.graph()
        self._merge_checks: dict[tuple[tuple[str, ...], ...], MergeCheck] = {}

    @property
    def target(self) -> Any:
        """The TVM target that the model is compiled for."""
        return self.backend.target

    @property
    def kernels(self) -> bytes:
        """The compiled library of TVM's kernels. It is compiled at the first access."""
        return self._lowered.kernels.code

    @property
    def kernel_hashes(self) -> dict[str, str]:
        """A hash of the code, shapes and target of each of TVM's kernels, by name."""
        return self._lowered.kernels.hashes

    @property
    def loaded_kernels(self) -> Any:
        """The compiled library of TVM's kernels, loaded into this process."""
        return self._lowered.kernels.loaded

    @cached_property
    def measured_latency(self) -> MeasuredLatency:
        """The latency model that measures stages on this machine, on `streams` streams."""
        return self._latency_of(self.streams, self.threads)

    @cached_property
    def traits(self) -> list[OperatorTraits]:
        """The traits of each operator: its FLOPs, the bytes it moves, and the resources it needs.

        For a GPU, resources are read from the compiled kernels, so the kernels are compiled first.

        Raises
        ------
        DeviceError
            The kernels cannot be compiled.
        """
        return self._lowered.traits(self.program)

    def gpu_demand(self, name: str) -> GpuDemand | None:
        """Compile operator `name`; return the resources of a GPU that it needs; None for a CPU."""
        return self._lowered.gpu_demand(self.program, self.graph.names.index(name))

    @cached_property
    def _store(self) -> LatencyStore:
        return open_store(self.options.latency_db)

    @cached_property
    def time_for_schedule(self) -> TimeBudget:
        """The time for the search for a schedule and for its speed check."""
        return self.options.budget.share(SCHEDULE_SHARE)

    def _latency_of(self, streams: int, threads: int) -> MeasuredLatency:
        progress, budget = self.options.progress, self.time_for_schedule
        return self._lowered.latency(self.program, streams, threads, self._store, progress, budget)

    def schedule(
        self,
        scheduler: str,
        latency: LatencyModel | str | None = None,
        **options: Any,
    ) -> Schedule:
        """Run a scheduler on the model.

        Parameters
        ----------
        scheduler: one of `schedulers()`.
        latency: the latency model. By default it is the latency model in the compilation's options.
            If the options have none and the scheduler needs latencies, they are measured on this
            machine. `learned` predicts most latencies (see `FewMeasurements`). For a GPU, `latency`
            may also be the name of a device description (see `latency.described.DEVICES`),
            `database`, or `database:NAME`. With such a name nothing is measured, and
            `stats["prices"]` names the source of the latencies. If there is no GPU and `latency` is
            None, a scheduler that needs latencies gets them from the database.
        options: options of the scheduler, and with `learned` also of the search `ActiveSearch`. The
            compilation adds options that the scheduler takes and that the caller did not give:
            streams, tensors, traits of operators, and how to measure.

        Raises
        ------
        OutOfTimeError
            The compilation's time is over before every operator has been measured alone.
        """
        by_name = self.backend.prices_by_name
        source = price_source(latency, self.options.latency, scheduler, prices_by_name=by_name)
        missing = self.backend.why_not_measured()
        match source:
            case ByName(name):
                return self._schedule_by_name(scheduler, name, options)
            case Learned():
                if missing is not None:
                    raise missing
                few = FewMeasurements(
                    self.program, self.measured_latency, self._store, self._schedule_here,
                    self.search, self.time_for_schedule, self.options.link,
                )  # fmt: skip
                return few.schedule(scheduler, options)
            case Given(model) if missing is not None:
                return self._run(scheduler, model, options)
            case Given(model):
                return self._schedule_here(scheduler, model, options)
            case MeasuredHere() if missing is not None:
                return self._schedule_unmeasured(scheduler, options, missing)
            case MeasuredHere():
                return self._schedule_here(scheduler, None, options)

    def _run(
        self,
        scheduler: str,
        latency: LatencyModel | None,
        options: dict[str, Any],
        known: Mapping[str, Callable[[], Any]] | None = None,
    ) -> Schedule:
        """Run a scheduler. If the caller left options out, they come from `known` if possible.

        Parameters
        ----------
        known: functions that give further options, by the option's name. Each is called only if the
            scheduler takes the option. `streams` is always among them.
        """
        known = {
            "streams": lambda: self._lowered.most_streams(scheduler),
            "traits": lambda: self.traits,
            **(known or {}),
        }
        for name in known.keys() & set(options_of(scheduler)) - options.keys():
            options[name] = known[name]()
        options = options_in_time(scheduler, options, self.time_for_schedule)
        return run_scheduler(self.graph, scheduler, latency=latency, **options)

    def _schedule_here(
        self, scheduler: str, latency: LatencyModel | None, options: dict[str, Any]
    ) -> Schedule:
        """Schedule with `latency`. For None, latencies are measured on this machine."""
        if scheduler == "sequential" and not options:
            return self.sequential()
        if scheduler in MERGING:
            latency = latency or self._merging_latency(scheduler)
        elif scheduler != "sequential":
            latency = latency or latency_in_time(
                scheduler, self.measured_latency, self.program, self.time_for_schedule
            )
        known: dict[str, Callable[[], Any]] = {
            # Schedulers use one GPU here, because copies between GPUs are not measured.
            "gpus": lambda: 1,
            # At most this many operators may start together on a GPU, one on each stream.
            "window": lambda: min(self.streams, 2),
            "baseline": self.sequential,
            "parts": self.program.parts,
            "buffers": self.program.buffers,
            "evaluate": lambda: self.measure,
        }
        return with_refused(self._run(scheduler, latency, options, known), latency)

    def _schedule_unmeasured(
        self, scheduler: str, options: dict[str, Any], missing: DeviceError
    ) -> Schedule:
        """Schedule without latencies. If the scheduler needs some, they come from the database.

        Parameters
        ----------
        missing: why nothing can be measured on this machine.
        """
        try:
            return self._run(scheduler, None, options)
        except NoLatencyError:
            pass  # The scheduler needs latencies: try the database.
        try:
            return self._schedule_by_name(scheduler, DATABASE, options)
        except InputError as error:
            raise DeviceError(
                f"`{scheduler}` needs latencies, which cannot be measured here: {missing}. They "
                f"cannot be looked up either: {error}; or give a latency model, or a scheduler "
                "that needs no latencies, such as `nimble`"
            ) from error

    def _schedule_by_name(self, scheduler: str, name: str, options: dict[str, Any]) -> Schedule:
        """Schedule with latencies from a device description or the database."""
        prices = named_prices(name, self._lowered, self._store, self.options.link)
        latency = prices.latency
        if scheduler in MERGING:
            latency = MergingLatency(latency, self.merges, prices.price_alone(self.backend))
        made = self._run(scheduler, latency, options)
        return replace(made, stats={**made.stats, "prices": prices.source})

    def can_check_speed(self, schedule: Schedule) -> bool:
        """Whether this machine has the devices of a schedule. If not, the reason is logged."""
        home, realized = self.realized(schedule)
        missing = self.backend.why_not_run(home.plan(realized))
        if missing is not None:
            _LOG.warning("the schedule's speed is not checked: %s", missing)
        return missing is None

    def farm_latency(self, address: ServerAddress, **options: Any) -> MeasuredLatency:
        """Make the latency model that measures stages on remote machines, by TVM's RPC.

        The latency model reserves all free servers. The model's method `close` releases them.

        Parameters
        ----------
        address: the tracker and the key of the servers.
        options: options of `farm_timer`, such as `answer_s`.

        Raises
        ------
        DeviceError
            The tracker cannot be reached, or no free server has the runtime of this package.
        InputError
            An operator's kernel is not TVM's.
        """
        timer = farm_timer(
            address, self.program, self.kernels,
            streams=self.streams, threads=self.threads, **options,
        )  # fmt: skip
        return self._lowered.latency_by(timer, self.program, self._store, self.options.progress)

    def search(self, latency: MeasuredLatency | None = None, **options: Any) -> ActiveSearch:
        """Prepare IOS's search for a schedule with few measurements: most latencies are predicted.

        Call the method `run` of the returned search to begin the search.

        Parameters
        ----------
        latency: the latency model that measures stages. By default stages are measured on this
            machine; `farm_latency` makes a model that measures on servers.
        options: options of `ActiveSearch`, such as `max_measurements` and `time_budget_s`.

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
        """Sets of operators that could be merged. All parts of an operator are in one set."""
        return self.merges_among([op.whole or op.name for op in self.program.operators])

    def merges_among(self, names: Sequence[str]) -> OperatorMerges:
        """Find out which operators could be merged, from their names (see `OperatorMerges`).

        In the result, an operator is its index in `names`.
        """
        return OperatorMerges(self._lowered.import_anew(), names)

    @cached_property
    def _merged(self) -> MergedCompilations[Compilation]:
        return MergedCompilations(self.merges, partial(self._compiled, self.streams, self.threads))

    def _compiled(self, streams: int, threads: int, module: Any) -> Compilation:
        """Compile a module with merged operators. On a GPU the number `threads` has no effect."""
        chosen = threads if self.backend.device == "cpu" else None
        options = replace(self.options, streams=streams, threads=chosen, latency=None)
        return Compilation(module, options)

    def _merging_latency(self, scheduler: str) -> LatencyModel:
        """Make the latency model that also measures merged operators.

        For `ios-merge`, the latency model measures on a single stream that has the threads of all
        streams. If operators are divided into parts, it measures on all streams instead.
        """
        streams, threads = self.streams, self.threads
        if scheduler == "ios-merge" and not self.program.is_divided:
            streams, threads = 1, streams * threads
        base = self._latency_of(streams, threads)
        compile_alone = partial(self._compiled, streams, threads)
        return MergingLatency.measuring(base, self.merges, compile_alone)

    def realized(self, schedule: Schedule) -> tuple[Compilation, Schedule]:
        """Merge the operators of a schedule's merged stages.

        Returns
        -------
        The compilation of the merged model, and the schedule for it. Without merged stages, the
        result is this compilation and `schedule` itself.

        Raises
        ------
        ScheduleError
            Operators cannot be merged; the message says why.
        """
        if not merged_stages(schedule):
            return self, schedule
        schedule.validate(self.graph)
        return self._merged.realized(schedule)

    def merge_check(self, schedule: Schedule) -> MergeCheck:
        """Compare the merged operators of a schedule with the operators that they replace.

        Raises
        ------
        ScheduleError
            Operators cannot be merged, or the results differ too much; the message names the
            operators.
        """
        groups = tuple(merged_stages(schedule))
        if groups not in self._merge_checks:
            shipped = self.program, self.realized(schedule)[0].program
            found = compare_merged(self.merges, groups, shipped, self.options)
            self._merge_checks[groups] = found
        return self._merge_checks[groups]

    def plan(self, schedule: Schedule) -> Plan:
        """Turn a schedule into a plan.

        Raises
        ------
        ScheduleError
            The schedule does not fit the model, or has merged stages (see `realized`).
        """
        if merged_stages(schedule):
            raise ScheduleError(
                "the schedule merges operators, but they are separate in this compilation; use the "
                "compilation and the schedule that `realized` returns"
            )
        return self._lowered.plan(self.program, schedule, self._op_us)

    def _op_us(self) -> dict[str, float] | None:
        """The latency of each operator alone, by name, in microseconds; None if unknown."""
        latency = self.options.latency
        if latency is None:
            if self.backend.why_not_measured() is not None:
                return None
            latency = self.measured_latency
        names = self.graph.names
        try:
            return dict(zip(names, op_latencies(latency, names).tolist(), strict=True))
        except OutOfTimeError:
            return None

    def offers(self, name: str, *, measure: bool = True) -> tuple[Offer, ...]:
        """The kernels that providers offer for an undivided operator on row-major tensors.

        Parameters
        ----------
        name: the operator's name.
        measure: whether to measure kernels that were never measured. If False, their latencies are
            unknown.

        Raises
        ------
        GraphError
            The model has no operator `name`.
        """
        return offers_for(self.backend, self._lowered, self._store, name, measure)

    def instance(self, plan: Plan) -> Any:
        """Allocate memory for a plan, so that it can run."""
        return self._lowered.instance(plan)

    def sequential(self) -> Schedule:
        """The baseline schedule: operators run in order, each with its parts on all streams."""
        return one_after_another(self.program, self.streams)

    def measure(self, schedules: Sequence[Schedule]) -> Iterator[npt.NDArray[np.float64]]:
        """Run schedules in turns, in rounds, until the caller stops the iteration.

        Yields
        ------
        The latencies of one round, in microseconds, of shape (len(schedules),). Each schedule runs
        once in a round, in a new random order.
        """
        realized = [self.realized(schedule) for schedule in schedules]
        instances = [home.instance(home.plan(schedule)) for home, schedule in realized]
        executors = [instance.executor for instance in instances]
        yield from interleaved_rounds(executors, self.backend.clock)

    def check_speed(self, schedule: Schedule, rough: bool = False) -> SpeedCheck:
        """Compare the speed of `schedule` and of sequential execution in interleaved runs.

        Each round measures sequential execution twice, and the difference between the two
        measurements is noise. The schedule passes the check if it is faster by more than 1%, at a
        significance level of 5% (see `scheduling.paired_rounds`). `check_rounds` explains `rough`.
        """
        sequential = self.sequential()
        rounds = self.measure([sequential, sequential, schedule])
        return check_rounds(rounds, self.time_for_schedule.left_s(), rough)

    def artifact(
        self,
        schedule: Schedule,
        speed_check: SpeedCheck | None = None,
        precision: Precision | None = None,
    ) -> Artifact:
        """Make the artifact. It runs `schedule`, or sequentially if `speed_check` says so.

        Parameters
        ----------
        speed_check: the result of the speed check; None if there was no check.
        precision: the error of a model in bf16 (see `measured_precision`); None for float32.
        """
        slower = speed_check is not None and speed_check.shipped == "sequential"
        home, shipped = self.realized(self.sequential() if slower else schedule)
        merge_check = None if home is self else self.merge_check(schedule)
        kernels, kernel_check = home._lowered.kernels.checked
        return Artifact(
            plan=home.plan(shipped),
            schedule=shipped,
            kernels=kernels,
            weights=home.program.weights,
            fallback=fallback_of(home._lowered, home._op_us) if self.options.fallback else None,
            manifest=manifest_of(
                home._lowered,
                self.backend,
                self.options.budget,
                scheduler=schedule.scheduler,
                speed_check=speed_check,
                precision=precision,
                kernel_check=kernel_check,
                merge_check=merge_check,
            ),
        )
