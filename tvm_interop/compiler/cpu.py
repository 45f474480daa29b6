"""The backend for CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from .._native import cpu as _native
from ..errors import InputError
from ..execution.cpu import Instance
from ..execution.instance import Clock
from ..frontend import load_model
from ..kernels.build import build_kernels
from ..kernels.cpu_schedule import DefaultCPUSchedule
from ..kernels.tuned_schedule import TunedSchedule
from ..kernels.vectorize_math import VectorizeMath
from ..lowering.extract import extract
from ..lowering.lower import LowerToUnits
from ..lowering.split_operators import split_operators
from ..machine.cpu_features import target_features
from ..machine.cpu_target import cpu_target
from ..machine.kernel_libraries import TVM, available_providers
from ..measure.cpu_timer import CpuStageTimer
from ..measure.store import LatencyStore
from ..plan.make import make_plan
from ..plan.plan import Plan
from ..program.concat_in_place import concat_in_place
from ..program.host_memory import aligned_copy
from ..program.program import Program
from ..scheduling.schedules import Schedule
from .backend import Kernels, Lowered, measured_latency
from .kernel_choice import choose_kernels
from .options import CompileOptions, positive


class CpuBackend:
    """Compiles for this machine's CPU, or for one that the target describes.

    Attributes
    ----------
    providers: names of those whose kernels an operator may get: `tvm`, and kernel libraries.
    """

    clock: ClassVar[Clock] = _native
    merges_operators = True

    def __init__(self, options: CompileOptions) -> None:
        """See whether the options fit a CPU.

        Raises
        ------
        DeviceError
            The target is not a CPU's.
        InputError
            An option is for GPUs.
        """
        self._options = options
        self.target = cpu_target(options.target)
        if options.stream_priorities:
            raise InputError("`stream_priorities` is for GPUs: a CPU's streams are all alike")
        if options.allow_tf32:
            raise InputError("`allow_tf32` is for GPUs: no CPU rounds to TF32")
        self.providers = available_providers(options.providers)

    def lower(
        self,
        model: Any,
        input_shapes: dict[str, tuple[int, ...]] | None,
        open_store: Callable[[], LatencyStore],
    ) -> Lowered:
        """Import the model, lower it, choose kernels, and divide large operators into parts."""
        libraries = tuple(name for name in self.providers if name != TVM)
        lower: Any = LowerToUnits(self.target, libraries)
        imported = load_model(model, input_shapes)
        module = lower(imported)
        program = concat_in_place(extract(module))
        if self._options.tuning_records is not None:
            apply_tuned: Any = TunedSchedule(self._options.tuning_records, self.target)
            program.kernels = apply_tuned(program.kernels)
        apply: Any = DefaultCPUSchedule(self.target)
        program.kernels = apply(program.kernels)
        for v, array in program.weights.items():
            program.weights[v] = aligned_copy(array)  # One copy, used by every instance.
        cores = _native.num_threads()
        streams = positive("streams", self._options.streams, cores)
        threads = positive("threads", self._options.threads, max(cores // streams, 1))
        write_out: Any = VectorizeMath()
        kernels = Kernels(
            program.kernels,
            self.target,
            lambda module, path: build_kernels(module, self.target, path),
            write_out,
        )
        lowered = Lowered(imported, module, program, program, kernels, streams, threads)
        if libraries:
            # On one thread, whatever the streams will be: with the same latencies at hand, the same
            # model always gets the same kernels, and so gives the same bits.
            program = choose_kernels(
                program,
                self.providers,
                lambda program: measured_latency(
                    self.stage_timer(lowered, program, 1, 1),
                    lowered,
                    program,
                    open_store(),
                    self._options.progress,
                ),
            )
        # Teams of threads and parts are two ways to share an operator out: one is enough.
        usual = streams if threads == 1 else 1
        divided = split_operators(program, positive("parts", self._options.parts, usual))
        return Lowered(imported, module, divided, lowered.on_tvm_alone, kernels, streams, threads)

    def why_not_measured(self) -> None:
        """A CPU is always here."""
        return None

    def stage_timer(
        self, lowered: Lowered, program: Program, streams: int, threads: int
    ) -> CpuStageTimer:
        """Times stages on this CPU."""
        return CpuStageTimer(program, lowered.kernels.loaded, streams=streams, threads=threads)

    def plan(
        self,
        lowered: Lowered,
        program: Program,
        schedule: Schedule,
        op_us: Callable[[], dict[str, float] | None],
    ) -> Plan:
        """One stream gets all the threads, several share them out."""
        shares_out = schedule.num_streams == 1 and not program.is_divided
        threads = lowered.streams * lowered.threads if shares_out else lowered.threads
        return make_plan(program, schedule, threads, lowered.kernels.parallel)

    def instance(self, lowered: Lowered, plan: Plan) -> Instance:
        """The plan with memory under it, ready to run."""
        return Instance(plan, lowered.kernels.loaded, lowered.program.weights)

    def cpu_features(self) -> tuple[str, ...]:
        """What the target has beyond the oldest processor of its kind."""
        return target_features(self.target)
