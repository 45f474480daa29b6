"""What a compilation asks of the device that it compiles for: one protocol, a class a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import tvm

from .._native.kernels import load_kernels_from
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
from ..program.program import Program
from ..scheduling.schedules import Schedule
from ..scratch import scratch_folder
from .checked_kernels import CheckedKernels, KernelChecker
from .kept_kernels import keep_kernels, kept_kernels


class Kernels:
    """The kernels that TVM compiles for a model: each step is taken once, when it is asked for."""

    def __init__(
        self,
        module: tvm.IRModule,
        target: Any,
        build: Callable[[tvm.IRModule, Path], Any],
        write_out: Callable[[tvm.IRModule], tvm.IRModule] = lambda module: module,
        kept: KeptFiles | None = None,
        progress: Progress | None = None,
        checker: KernelChecker | None = None,
    ) -> None:
        """Nothing is compiled yet.

        Parameters
        ----------
        module: the kernels, scheduled.
        build: compiles them into a shared library at a path.
        write_out: the last pass over them, after which TVM's analyses understand them no more.
        kept: where built libraries are kept, and found again; None keeps none.
        progress: told when they are built.
        checker: checks them before they ship; None where that cannot be done.
        """
        self._checker = checker
        self._kept = kept
        self._progress = progress
        self._module = module
        self._target = target
        self._build = build
        self._write_out = write_out

    def only(self, names: Collection[str]) -> Kernels:
        """The kernels of these names."""
        functions = self._module.functions_items()
        module = tvm.IRModule({var: func for var, func in functions if var.name_hint in names})
        return Kernels(
            module,
            self._target,
            self._build,
            self._write_out,
            self._kept,
            self._progress,
            self._checker,
        )

    @cached_property
    def code(self) -> bytes:
        """The compiled kernel library; one that was kept, if there is one."""
        found = None if self._kept is None else kept_kernels(self._kept, self.hashes)
        if found is not None:
            return found
        code = self._built()
        if self._kept is not None:
            keep_kernels(self._kept, self.hashes, code)
        return code

    def _built(self) -> bytes:
        tell(self._progress, f"compiling {len(self._module.functions_items())} kernels")
        with scratch_folder() as folder:
            path = folder / "kernels.so"
            self._build(self._written_out, path)
            return path.read_bytes()

    @cached_property
    def checked(self) -> CheckedKernels:
        """The library as it ships: each kernel was checked, and one at fault is built plainly.

        Raises
        ------
        ExecutionError
            A kernel is wrong even then.
        """
        if self._checker is None:
            return CheckedKernels(self.code, KernelCheck(unchecked="they are for a GPU"))
        return self._checker.check(
            self._module, self._written_out, self.hashes, self.code, self._kept, self._progress
        )

    @cached_property
    def loaded(self) -> Any:
        """The kernel library, loaded into this process."""
        return load_kernels_from(self.code)

    @cached_property
    def _written_out(self) -> tvm.IRModule:
        return self._write_out(self._module)

    @cached_property
    def parallel(self) -> bool:
        """Whether any of them, for a CPU, splits its work over a team of threads."""
        return any(uses_parallel_loops(self._module).values())

    @cached_property
    def hashes(self) -> dict[str, str]:
        """A hash of each kernel's code, shapes and target, by name."""
        hashes = kernel_hashes(self._written_out)
        return {name: f"{self._target}:{digest}" for name, digest in hashes.items()}


@dataclass(frozen=True)
class Lowered(ABC):
    """A model as a backend hands it to the schedulers, and what can be done with it on the device.

    Attributes
    ----------
    import_anew: gives the Relax module before it was lowered. It is not kept, as it would hold
        weights a second time that were lowered to others.
    module: the Relax module of fused kernels, none of them scheduled.
    program: the operators, each with the kernel that was chosen for it, large ones divided.
    on_tvm_alone: the operators, whole, with TVM's kernels.
    kernels: TVM's kernels for `program` and `on_tvm_alone`.
    streams, threads: how many streams there will be, and the threads the kernels of each may use.
    """

    import_anew: Callable[[], Any]
    module: tvm.IRModule
    program: Program
    on_tvm_alone: Program
    kernels: Kernels
    streams: int
    threads: int

    @property
    def library_faults(self) -> Mapping[str, str]:
        """What is wrong with a library's kernel, by the name of the operator that it is not for."""
        return {}

    @abstractmethod
    def stage_timer(self, program: Program, streams: int, threads: int) -> StageTimer:
        """The timer of stages of `program`, whose kernels are these, on the device."""

    @abstractmethod
    def plan(
        self,
        program: Program,
        schedule: Schedule,
        op_us: Callable[[], dict[str, float] | None],
    ) -> Plan:
        """The plan of a schedule of `program`, whose kernels are these.

        Parameters
        ----------
        op_us: called only if needed. It returns the latency of each operator alone, by name, in
            microseconds; None where nothing is known.
        """

    @abstractmethod
    def instance(self, plan: Plan) -> PlanInstance:
        """The plan with memory under it, ready to run.

        Raises
        ------
        DeviceError
            The device is not here.
        """

    def latency(
        self,
        program: Program,
        streams: int,
        threads: int,
        store: LatencyStore,
        progress: Progress | None,
    ) -> MeasuredLatency:
        """The latency model that measures stages of `program` on the device."""
        timer = self.stage_timer(program, streams, threads)
        return self.latency_by(timer, program, store, progress)

    def latency_by(
        self,
        timer: StageTimer,
        program: Program,
        store: LatencyStore,
        progress: Progress | None,
    ) -> MeasuredLatency:
        """The latency model that has `timer` measure stages of `program`."""
        return MeasuredLatency(
            program,
            self.kernels.hashes,
            timer,
            parallel_kernels=self.kernels.parallel,
            store=store,
            progress=progress,
        )


class Backend(Protocol):
    """Compiles for one kind of device; what it makes of a model plans, measures and runs there.

    `Compilation` carries a model through and knows no device. A new kind of device is a class
    that fits here, and a line in `backends.backend_for`.

    Attributes
    ----------
    target: TVM's target.
    device: what kernels run on.
    providers: names of those whose kernels an operator may get.
    clock: times executors of its instances against each other.
    merges_operators: whether `ios-merge` and `ios-both` can merge operators for it.
    prices_by_name: whether a schedule may be priced without measuring, by the name of a device's
        description or of the database.
    keeps_choices: whether the schedule that was chosen here is taken over by later compilations.
    counts_cores: whether operators share the cores of this machine, which is what `explain` asks.
    """

    target: Any
    device: ClassVar[Device]
    providers: tuple[str, ...]
    clock: ClassVar[Clock]
    merges_operators: bool
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
        open_store: opens the database of latencies; called only if something is to be measured.

        Raises
        ------
        UnsupportedModelError, InputError, DeviceError
            The model or an option does not fit the device; says what to do.
        """
        ...

    def why_not_measured(self) -> DeviceError | None:
        """What is missing to run anything here; None where stages can be measured."""
        ...

    def why_not_run(self, plan: Plan) -> DeviceError | None:
        """What is missing here to run a plan; None where it can be run."""
        ...

    def why_not_in_bf16(self) -> str | None:
        """Why nothing can be compiled in bf16 for the target; None where it can."""
        ...

    def cpu_features(self) -> tuple[str, ...]:
        """The CPU's instructions that the kernels need, as LLVM names them."""
        ...
