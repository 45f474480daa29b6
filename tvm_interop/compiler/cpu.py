"""The backend that compiles models for CPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from .._native import cpu as _native
from ..errors import DeviceError, InputError
from ..execution.cpu import Instance
from ..execution.instance import Clock
from ..frontend import load_model
from ..kernels.build import build_kernels
from ..kernels.cpu_schedule import DefaultCPUSchedule
from ..kernels.linker import find_linker
from ..kernels.tuned_schedule import TunedSchedule
from ..kernels.vectorize_math import VectorizeMath
from ..lowering.extract import extract
from ..lowering.lower import LowerToUnits, is_lowered
from ..lowering.narrow_storage import NarrowStorage, is_kept
from ..lowering.split_operators import split_operators
from ..machine.cpu_features import (
    host_features,
    missing_features,
    runs_own_kernels,
    target_features,
)
from ..machine.cpu_target import NOT_THIS_CPU, cpu_target, runs_here
from ..machine.kernel_libraries import TVM, Device, available_providers, blocked_layout
from ..measure.cpu_timer import CpuStageTimer
from ..measure.kept_files import kept_beside
from ..measure.measured import MeasuredLatency, counter, tell
from ..measure.stage_operators import SharedTensors
from ..measure.store import LatencyStore
from ..plan.make import make_plan
from ..plan.plan import Plan
from ..program.concat_in_place import concat_in_place
from ..program.host_memory import aligned_copy
from ..program.parts_in_place import parts_in_place
from ..program.program import Program
from ..program.storage import Layout
from ..scheduling.schedules import Schedule
from .backend import Kernels, Lowered
from .carried_kernels import with_kernels
from .checked_kernels import KernelChecker
from .checked_libraries import LibraryChecker
from .kernel_choice import choose_in_time
from .needed_memory import check_fits
from .options import CompileOptions, positive
from .row_kernels import with_row_kernels
from .settled_kernels import SettledKernels
from .time_budget import CHOICE_SHARE
from .winograd_choice import winograd_us, with_winograd


@dataclass(frozen=True)
class LoweredForCpu(Lowered):
    """A model that is lowered for a CPU.

    Attributes
    ----------
    libraries: the checker of the kernels that kernel libraries offer for the model's operators.
    tensors: the tensors that all timers of the model's stages share.
    """

    libraries: LibraryChecker
    tensors: SharedTensors = field(default_factory=SharedTensors)

    @property
    def library_faults(self) -> Mapping[str, str]:
        """The faults that the checks of library kernels found, by the operator's name."""
        return self.libraries.faults

    def stage_timer(self, program: Program, streams: int, threads: int) -> CpuStageTimer:
        """Make a timer that measures stages on this CPU."""
        return CpuStageTimer(
            program, self.kernels.loaded, streams=streams, threads=threads, shared=self.tensors
        )

    def plan(
        self,
        program: Program,
        schedule: Schedule,
        op_us: Callable[[], dict[str, float] | None],
    ) -> Plan:
        """Make a plan. If the schedule has a single stream and no operator is divided into parts,
        this stream gets all threads.
        """
        shares_out = schedule.num_streams == 1 and not program.is_divided
        threads = self.streams * self.threads if shares_out else self.threads
        return make_plan(program, schedule, threads, self.kernels.parallel)

    def instance(self, plan: Plan) -> Instance:
        """Allocate memory for a plan, so that it can run."""
        return Instance(plan, self.kernels.loaded, self.program.weights)


class CpuBackend:
    """Compiles for this machine's CPU, or for a CPU that the target describes.

    Attributes
    ----------
    target: TVM's target.
    providers: the providers whose kernels an operator may get: `tvm`, and kernel libraries.
    """

    device: ClassVar[Device] = "cpu"
    clock: ClassVar[Clock] = _native
    prices_by_name = False
    keeps_choices = True
    counts_cores = True

    def __init__(self, options: CompileOptions) -> None:
        """Check that the options fit a CPU.

        Raises
        ------
        DeviceError
            The target is not a CPU, or the option `precision` is bf16 and the CPU cannot compute in
            bf16.
        InputError
            An option is for GPUs.
        """
        self._options = options
        self.target = cpu_target(options.target)
        if options.stream_priorities:
            raise InputError(
                "`stream_priorities` is for GPUs: all streams of a CPU are alike; leave it out"
            )
        if options.allow_tf32:
            raise InputError("`allow_tf32` is for GPUs: no CPU rounds to TF32; leave it out")
        self.providers = available_providers(options.providers)
        if options.precision == "bf16":
            missing = why_no_bf16(self.target, self.providers)
            if missing is not None:
                raise missing

    def lower(
        self,
        model: Any,
        input_shapes: dict[str, tuple[int, ...]] | None,
        open_store: Callable[[], LatencyStore],
    ) -> Lowered:
        """Import the model, lower it, choose kernels, and divide large operators into parts."""
        lowered = self._lowered(model, input_shapes)
        program = lowered.program
        _check_kept(program, self._options.keep_f32)
        measures = self._options.like is None and not self._options.budget.measures_nothing
        ships_all = self._options.fallback or measures
        own_kernels = runs_own_kernels(self.target)
        if own_kernels:
            program = with_row_kernels(program)
        tuned = self._options.tuning_records is not None
        settled = SettledKernels(
            lowered, self.providers, tuned or not measures, self._options.fallback
        )
        if self._options.budget.is_limited and ships_all:
            # Build the kernels first. Each step below gets a fraction of the remaining time, and
            # must not spend this time on building kernels.
            settled.settle(program)
            settled.lowered.kernels.build()
        if any(name != TVM for name in self.providers):
            # Always measure on one thread, so that the choice of kernels does not depend on the
            # number of streams. Then the model gives the same bits with any number of streams.
            tell(self._options.progress, "choosing kernels")
            budget = self._options.budget.share(CHOICE_SHARE)
            blocked = _blocked_layout(self.providers, self.target)

            def latency_of(program: Program) -> MeasuredLatency:
                return settled.lowered.latency(
                    program, 1, 1, open_store(), self._options.progress, budget
                )

            def how(program: Program) -> Program:
                like, winograd = self._options.like, self._options.winograd and own_kernels
                if like is not None:
                    return with_kernels(like, program, self.providers, blocked, winograd=winograd)
                if not winograd:
                    return choose_in_time(program, self.providers, latency_of, budget, blocked)
                faster = partial(winograd_us, latency_of=latency_of)
                chosen = choose_in_time(
                    program, self.providers, latency_of, budget, blocked, faster
                )
                return with_winograd(chosen, latency_of, budget)

            def choose(program: Program) -> Program:
                return settled.choose(program, how)

            program = lowered.libraries.without_faults(program, choose)
        if not self._options.fallback:
            lowered = settled.lowered.with_choice(lambda _: program)
        program = replace(program, kernels=lowered.kernels.scheduled)
        # By default, operators are not divided into parts if each kernel may use several threads.
        usual = lowered.streams if lowered.threads == 1 else 1
        divided = split_operators(program, positive("parts", self._options.parts, usual))
        return replace(lowered, program=divided)

    def lower_unmeasured(
        self,
        model: Any,
        input_shapes: dict[str, tuple[int, ...]] | None,
        give: Callable[[Program], Program],
    ) -> Lowered:
        """Lower the model with the libraries' kernels that `give` chooses, and check these kernels.

        If the time budget is 0, the libraries' kernels are not checked.
        """
        lowered = self._lowered(model, input_shapes)
        chosen = lowered.with_choice(
            lambda program: lowered.libraries.without_faults(program, give)
        )
        program = replace(chosen.program, kernels=chosen.kernels.scheduled)
        return replace(chosen, program=program)

    def _lowered(
        self, model: Any, input_shapes: dict[str, tuple[int, ...]] | None
    ) -> LoweredForCpu:
        """Import the model and lower it to TVM's kernels, which are scheduled when first needed.

        Raises
        ------
        InputError
            The option `precision` is bf16, and the given module is lowered already, in float32.
        """
        libraries = tuple(name for name in self.providers if name != TVM)
        narrow = None
        if self._options.precision == "bf16":
            narrow = NarrowStorage(self._options.keep_f32)
        has_int8 = INT8_FEATURE in target_features(self.target)
        int8_libraries = libraries if has_int8 and not missing_features([INT8_FEATURE]) else ()
        lower: Any = LowerToUnits(self.target, libraries, narrow, int8_libraries)
        linker = find_linker(self.target, self._options.cross_compiler)
        tell(self._options.progress, "reading the model")
        import_anew = partial(load_model, model, input_shapes)
        imported = import_anew()
        if narrow is not None and is_lowered(imported):
            raise InputError(
                "the module is lowered already, in float32; for `precision` bf16 give the module "
                "as it was before lowering"
            )
        tell(self._options.progress, "lowering the model to kernels")
        module = lower(imported)
        del imported  # Free the imported weights that lowering has replaced by new weights.
        program = concat_in_place(parts_in_place(extract(module)))
        check_fits(program, input_shapes or {})
        as_written = program.kernels
        if self._options.tuning_records is not None:
            apply_tuned: Any = TunedSchedule(self._options.tuning_records, self.target)
            program.kernels = apply_tuned(program.kernels)
        for v, array in program.weights.items():
            # All instances share this one copy of the weights.
            program.weights[v] = aligned_copy(array)
        cores = _native.num_threads()
        streams = positive("streams", self._options.streams, cores)
        threads = positive("threads", self._options.threads, max(cores // streams, 1))
        kept = kept_beside(self._options.latency_db, self._options.fresh)
        budget = self._options.budget
        progress, like = self._options.progress, self._options.like
        library_checker = LibraryChecker(as_written, kept, progress, budget, like)
        write_out: Any = VectorizeMath()
        schedule: Any = DefaultCPUSchedule(self.target)
        kernels = Kernels(
            program.kernels,
            self.target,
            lambda module, path: build_kernels(
                module, self.target, path, count=counter(progress), linker=linker
            ),
            write_out,
            # The key of a kept library names only this machine's compiler. So libraries that a
            # cross compiler linked are not kept for later compilations.
            kept if self._options.cross_compiler is None else None,
            progress,
            KernelChecker(as_written, _parameters(program), self.target, library_checker, budget),
            schedule,
        )
        return LoweredForCpu(
            import_anew, module, program, program, kernels, streams, threads, library_checker
        )

    def why_not_measured(self) -> None:
        """Return None, because every machine can measure stages on its own CPU."""
        return None

    def why_not_run(self, plan: Plan) -> None:
        """Return None, because every machine can run plans for a CPU."""
        return None

    def why_not_compared(self) -> str | None:
        """The reason why kernels cannot run on this CPU; None if they can."""
        return None if runs_here(self.target) else NOT_THIS_CPU

    def why_not_in_bf16(self) -> str | None:
        """The CPU feature or library that is missing for bf16; None if nothing is missing."""
        missing = why_no_bf16(self.target, self.providers)
        return None if missing is None else str(missing)

    def cpu_features(self) -> tuple[str, ...]:
        """The CPU features of the target beyond the architecture's baseline."""
        return target_features(self.target)


def _blocked_layout(providers: Sequence[str], target: Any) -> Layout:
    """The blocked layout (8 or 16 channels) for `target` and the first library of `providers`."""
    wide_here, wide_there = (_WIDE in f for f in (host_features(), target_features(target)))
    if wide_here == wide_there:
        return blocked_layout(next(name for name in providers if name != TVM))
    return "blocked16" if wide_there else "blocked8"


_WIDE = "avx512bw"
"""The CPU feature, by LLVM's name, with which a vector holds 16 numbers of float32."""


def _parameters(program: Program) -> dict[str, tuple[list[str], list[str]]]:
    """The types of each kernel's inputs and outputs, by the kernel's name."""

    def types(values: Sequence[int]) -> list[str]:
        return [program.values[v].dtype for v in values]

    return {op.kernel: (types(op.inputs), types(op.outputs)) for op in program.operators}


def _check_kept(program: Program, keep: Sequence[str]) -> None:
    kinds = [(op.name, op.description.op if op.description else None) for op in program.operators]
    for pattern in keep:
        if not any(is_kept(name, kind, [pattern]) for name, kind in kinds):
            raise InputError(
                f"`keep_f32` has `{pattern}`, and the model has no operator of that name or kind; "
                "`tvm-interop show` lists them"
            )


BF16_FEATURE = "avx512bf16"
"""The CPU feature that multiplies bfloat16 numbers, by LLVM's name."""


INT8_FEATURE = "avx512vnni"
"""The CPU feature that multiplies integers of 8 bits, by LLVM's name. Without it, oneDNN's kernels
sum products in 16 bits, which may overflow."""


def why_no_bf16(target: Any, providers: Sequence[str]) -> DeviceError | None:
    """The reason why products of bfloat16 cannot be computed; None if they can.

    Parameters
    ----------
    target: a TVM target for a CPU.
    providers: the names of the providers whose kernels an operator may get.
    """
    if BF16_FEATURE not in target_features(target) or missing_features([BF16_FEATURE]):
        return DeviceError(
            "`precision` bf16 needs a CPU with AVX512-BF16 (`avx512_bf16` in /proc/cpuinfo), and "
            "the target or this CPU lacks it; compile with `precision` f32"
        )
    if "onednn" not in providers:
        return DeviceError(
            "`precision` bf16 needs oneDNN, whose kernels multiply bfloat16, and it is missing or "
            "not among the providers; install `tvm-interop[onednn]`, or compile with `precision` "
            "f32"
        )
    return None
