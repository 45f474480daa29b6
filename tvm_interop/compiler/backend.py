"""Defines the interface between a compilation and a kind of device.

`Backend` is the protocol; `CpuBackend` and `CudaBackend` implement it. `Lowered` is a model that a
backend has lowered for its device, and `Kernels` compiles the model's kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import tvm

from .._native.kernels import load_kernels_from
from ..artifact.gpu_demand import GpuDemand
from ..artifact.manifest import KernelCheck
from ..errors import DeviceError
from ..execution.instance import Clock, PlanInstance
from ..kernels.build import kernel_hashes, uses_parallel_loops
from ..machine.kernel_libraries import Device
from ..measure.kept_files import KeptFiles
from ..measure.measured import MeasuredLatency, Progress, tell
from ..measure.stage_timer import StageTimer
from ..measure.store import LatencyStore
from ..plan.plan import Plan
from ..program.kernel_demand import GpuKernel
from ..program.program import Program
from ..program.traits import OperatorTraits, operator_traits
from ..scheduling.budget import Budget
from ..scheduling.schedules import Schedule
from ..scratch import scratch_folder
from .checked_kernels import CheckedKernels, KernelChecker
from .kept_kernels import keep_kernels, kept_kernels


class Kernels:
    """The kernels that TVM compiles for a model.

    Each step of the compilation runs when its result is first needed, and only once.
    """

    def __init__(
        self,
        module: tvm.IRModule,
        target: Any,
        build: Callable[[tvm.IRModule, Path], Any],
        write_out: Callable[[tvm.IRModule], tvm.IRModule] = lambda module: module,
        kept: KeptFiles | None = None,
        progress: Progress | None = None,
        checker: KernelChecker | None = None,
        schedule: Callable[[tvm.IRModule], tvm.IRModule] = lambda module: module,
    ) -> None:
        """Store the kernels; nothing is compiled yet.

        Parameters
        ----------
        module: the kernels before the pass `schedule` has run.
        target: TVM's target; the kernels' hashes depend on it.
        build: compiles kernels into a shared library at a path.
        write_out: the pass that runs last. TVM cannot analyse kernels after this pass.
        kept: the cache in which built libraries are kept for later compilations; None for no cache.
        progress: called with a message when the kernels are built.
        checker: checks the compiled kernels; None for a GPU, whose kernels are not checked.
        schedule: the pass that schedules the kernels. It schedules each kernel independently of the
            others. By default the kernels are scheduled already.
        """
        self._schedule = schedule
        self._scheduled: tvm.IRModule | None = None
        self._checker = checker
        self._kept = kept
        self._progress = progress
        self._module = module
        self._target = target
        self._build = build
        self._write_out = write_out

    @property
    def names(self) -> set[str]:
        """The names of the kernels."""
        return {var.name_hint for var, _ in self._module.functions_items()}

    def only(self, names: Collection[str]) -> Kernels:
        """Return only the kernels whose names are in `names`.

        Kernels that are not in `names` are not scheduled either, which saves time.
        """
        made = Kernels(
            _only(self._module, names),
            self._target,
            self._build,
            self._write_out,
            self._kept,
            self._progress,
            self._checker,
            self._schedule,
        )
        if self._scheduled is not None:
            made._scheduled = _only(self._scheduled, names)
        return made

    @property
    def scheduled(self) -> tvm.IRModule:
        """The kernels after scheduling."""
        if self._scheduled is None:
            self._scheduled = self._schedule(self._module)
        return self._scheduled

    @cached_property
    def code(self) -> bytes:
        """The bytes of the compiled kernel library.

        If an earlier compilation kept a library of the same kernels, the bytes of that library are
        reused.
        """
        found = None if self._kept is None else kept_kernels(self._kept, self.hashes)
        if found is not None:
            return found
        code = self._built()
        if self._kept is not None:
            keep_kernels(self._kept, self.hashes, code)
        return code

    def build(self) -> None:
        """Compile the kernels now, not only when they are first needed."""
        _ = self.code

    def _built(self) -> bytes:
        tell(self._progress, f"compiling {len(self.scheduled.functions_items())} kernels")
        with scratch_folder() as folder:
            path = folder / "kernels.so"
            self._build(self._written_out, path)
            return path.read_bytes()

    @cached_property
    def checked(self) -> CheckedKernels:
        """The kernel library for the artifact, and the result of checking its kernels.

        A kernel that is wrong is built again without a schedule. Some kernels stay unchecked: large
        kernels, kernels that this machine's CPU cannot run, and all kernels for a GPU.

        Raises
        ------
        ExecutionError
            A kernel is wrong even without a schedule.
        """
        if self._checker is None:
            return CheckedKernels(self.code, KernelCheck(unchecked="the kernels are for a GPU"))
        return self._checker.check(
            self.scheduled, self._written_out, self.hashes, self.code, self._kept, self._progress
        )

    @cached_property
    def loaded(self) -> Any:
        """The kernel library, loaded into this process."""
        return load_kernels_from(self.code)

    @cached_property
    def _written_out(self) -> tvm.IRModule:
        return self._write_out(self.scheduled)

    @cached_property
    def parallel(self) -> bool:
        """Whether any kernel divides its work among several CPU threads."""
        return any(uses_parallel_loops(self.scheduled).values())

    @cached_property
    def hashes(self) -> dict[str, str]:
        """A hash of each kernel's code, shapes and target, by the kernel's name."""
        hashes = kernel_hashes(self._written_out)
        return {name: f"{self._target}:{digest}" for name, digest in hashes.items()}


def _only(module: tvm.IRModule, names: Collection[str]) -> tvm.IRModule:
    """The functions of `module` whose names are in `names`."""
    functions = module.functions_items()
    return tvm.IRModule({var: func for var, func in functions if var.name_hint in names})


_L = TypeVar("_L", bound="Lowered")


@dataclass(frozen=True)
class Lowered(ABC):
    """A model that a backend has lowered for its device. It can be measured, planned and run.

    Attributes
    ----------
    import_anew: imports the model again and returns the Relax module as it was before lowering. The
        compilation does not keep this module, because it would hold a second copy of many weights.
    module: the Relax module of fused kernels, before they are scheduled.
    program: the operators, each with the kernel that was chosen for it. Large operators are divided
        into parts.
    on_tvm_alone: the same operators, all with TVM's kernels, before any operator is divided into
        parts.
    kernels: TVM's kernels for `program` and `on_tvm_alone`.
    streams: the number of streams.
    threads: the number of threads that the kernels of each stream may use.
    """

    import_anew: Callable[[], Any]
    module: tvm.IRModule
    program: Program
    on_tvm_alone: Program
    kernels: Kernels
    streams: int
    threads: int

    def with_choice(self: _L, give: Callable[[Program], Program]) -> _L:
        """Use kernel libraries for some operators of `program`.

        Keep TVM's kernels only for the other operators.

        Parameters
        ----------
        give: returns a program in which libraries run some of the operators.
        """
        program = give(self.program)
        used = {op.kernel for op in program.operators if op.library is None}
        return replace(self.with_kernels(used), program=program)

    def with_kernels(self: _L, names: Collection[str]) -> _L:
        """A copy without the TVM kernels whose names are not in `names`."""
        return replace(self, kernels=self.kernels.only(names))

    @property
    def library_faults(self) -> Mapping[str, str]:
        """The fault of each library kernel that failed its check, by the operator's name."""
        return {}

    @property
    def gpu_kernels(self) -> dict[str, GpuKernel]:
        """The resources of a GPU that each of TVM's kernels needs, by name; empty for a CPU."""
        return {}

    def traits(self, program: Program) -> list[OperatorTraits]:
        """The resources that each operator of `program` needs of the device, by id."""
        return operator_traits(program)

    def gpu_demand(self, program: Program, op: int) -> GpuDemand | None:
        """The resources of a GPU's multiprocessor that operator `op` needs; None for a CPU."""
        return None

    def most_streams(self, scheduler: str) -> int | None:
        """The largest number of streams that `scheduler` may use; None for no limit."""
        return self.streams

    @abstractmethod
    def stage_timer(self, program: Program, streams: int, threads: int) -> StageTimer:
        """Make a timer that measures stages of `program`, with its kernels, on the device."""

    @abstractmethod
    def plan(
        self,
        program: Program,
        schedule: Schedule,
        op_us: Callable[[], dict[str, float] | None],
    ) -> Plan:
        """Turn a schedule of `program` into a plan that runs the program's kernels.

        Parameters
        ----------
        op_us: a function that returns the latency of each operator alone, in microseconds, by name;
            or None if latencies are unknown. It is called only if latencies are needed.
        """

    @abstractmethod
    def instance(self, plan: Plan) -> PlanInstance:
        """Allocate memory for a plan, so that it can run.

        Raises
        ------
        DeviceError
            This machine lacks the device.
        """

    def latency(
        self,
        program: Program,
        streams: int,
        threads: int,
        store: LatencyStore,
        progress: Progress | None,
        budget: Budget | None = None,
    ) -> MeasuredLatency:
        """Make the latency model that measures stages of `program` on the device.

        Parameters
        ----------
        budget: the time in which stages may be measured; None for no limit.
        """
        timer = self.stage_timer(program, streams, threads)
        return self.latency_by(timer, program, store, progress, budget)

    def latency_by(
        self,
        timer: StageTimer,
        program: Program,
        store: LatencyStore,
        progress: Progress | None,
        budget: Budget | None = None,
    ) -> MeasuredLatency:
        """Make the latency model that measures stages of `program` with `timer`."""
        return MeasuredLatency(
            program,
            self.kernels.hashes,
            timer,
            parallel_kernels=self.kernels.parallel,
            store=store,
            progress=progress,
            budget=budget,
        )


class Backend(Protocol):
    """Compiles models for one kind of device.

    `Compilation` itself has no code for a particular device. To support a new kind of device, write
    a class that implements this protocol, and add a line to `backends.backend_for`.

    Attributes
    ----------
    target: TVM's target.
    device: the kind of device that kernels run on.
    providers: the names of the providers whose kernels an operator may get.
    clock: times several executors on the device against each other.
    prices_by_name: whether the caller may name a source of latencies: a device description or the
        database.
    keeps_choices: whether later compilations may reuse the schedule that this compilation chose.
    counts_cores: whether operators run on the cores of this machine's CPU. `explain` supports only
        such devices.
    """

    target: Any
    device: ClassVar[Device]
    providers: tuple[str, ...]
    clock: ClassVar[Clock]
    prices_by_name: bool
    keeps_choices: bool
    counts_cores: bool

    def lower(
        self,
        model: Any,
        input_shapes: dict[str, tuple[int, ...]] | None,
        open_store: Callable[[], LatencyStore],
    ) -> Lowered:
        """Import the model, lower it, schedule its kernels and choose a kernel for each operator.

        Parameters
        ----------
        open_store: opens the database of latencies. It is called only if latencies must be
            measured.

        Raises
        ------
        UnsupportedModelError, InputError, DeviceError
            The model or an option does not fit the device; the message says what to do.
        """
        ...

    def lower_unmeasured(
        self,
        model: Any,
        input_shapes: dict[str, tuple[int, ...]] | None,
        give: Callable[[Program], Program],
    ) -> Lowered:
        """Import the model and lower it without measurements; no operator is divided.

        Parameters
        ----------
        give: takes the program with TVM's kernels for all operators, and returns a program in
            which libraries run some of the operators.

        Raises
        ------
        UnsupportedModelError, InputError
            The model or an option does not fit the device.
        """
        ...

    def why_not_measured(self) -> DeviceError | None:
        """The reason why stages cannot be measured on this machine; None if they can."""
        ...

    def why_not_run(self, plan: Plan) -> DeviceError | None:
        """The reason why a plan cannot run on this machine; None if it can."""
        ...

    def why_not_compared(self) -> str | None:
        """The reason why this machine cannot compare results of kernels; None if it can.

        To compare results, a machine must be able to run kernels for the target.
        """
        ...

    def why_not_in_bf16(self) -> str | None:
        """The reason why models cannot be compiled in bf16 for the target; None if they can."""
        ...

    def cpu_features(self) -> tuple[str, ...]:
        """The CPU features that the kernels need, by LLVM's names."""
        ...
