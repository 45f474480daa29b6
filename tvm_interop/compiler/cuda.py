"""The backend that compiles models for NVIDIA GPUs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import tvm

from .._native import cuda as _cuda
from ..artifact.gpu_demand import GpuDemand, gpu_demand_of
from ..errors import DeviceError, InputError, UnsupportedModelError
from ..execution.cuda import CudaInstance, require_cuda, require_gpu
from ..execution.instance import Clock
from ..frontend import load_model
from ..kernels.build_cuda import (
    DEFAULT_ARCHS,
    Demands,
    build_cuda_kernels,
    cuda_target,
    kernels_with_workspace,
)
from ..kernels.cuda_schedule import DefaultCUDASchedule
from ..lowering.extract import extract
from ..lowering.lift_workspaces import lift_workspaces
from ..lowering.lower import LowerToUnits
from ..machine.gpu_traits import demands_arch, gpu_traits
from ..machine.kernel_libraries import (
    TVM,
    Device,
    available_providers,
    check_provider_names,
    library_version,
    why_missing,
)
from ..measure.cuda_timer import CudaStageTimer
from ..measure.measured import MeasuredLatency
from ..measure.store import LatencyStore
from ..plan.make import make_plan
from ..plan.plan import Plan
from ..plan.stream_priority import prefer_longest_chain
from ..program.concat_in_place import concat_in_place
from ..program.kernel_demand import GpuKernel, KernelDemand
from ..program.parts_in_place import parts_in_place
from ..program.program import Program
from ..program.storage import GPU_PART_ALIGNMENT
from ..program.traits import OperatorTraits
from ..scheduling.schedules import Schedule
from .backend import Kernels, Lowered
from .options import CompileOptions, positive
from .provider_choice import give_to_libraries, plain_in_time
from .time_budget import CHOICE_SHARE

_LOG = logging.getLogger("tvm_interop")

_MOST_STREAMS = 8
"""The largest default number of streams. The kernels of a few streams use the whole GPU, so with
more streams hardly more kernels run at once.
"""
_DEVICE = "cuda:0"
_UNFOLDED = frozenset({"opara"})
"""Schedulers that open as many streams as their algorithm asks for, unless the caller limits the
number. `opara` is one of them, because its paper says that a part of its gain comes from many
streams.
"""


class _BuildForCuda:
    """Compiles kernels for some architectures, and stores which resources of a GPU the kernels
    need.

    Attributes
    ----------
    demands: the GPU resources that the kernels compiled so far need, by architecture and by the
        kernel's name.
    """

    def __init__(self, archs: Sequence[str]) -> None:
        self._archs = archs
        self.demands: dict[str, dict[str, tuple[KernelDemand, ...]]] = {a: {} for a in archs}

    def __call__(self, module: tvm.IRModule, path: Path) -> None:
        build_cuda_kernels(module, path, self._archs, self._keep)

    def _keep(self, demands: Demands) -> None:
        for arch, by_kernel in demands.items():
            self.demands[arch].update(by_kernel)


@dataclass(frozen=True)
class LoweredForCuda(Lowered):
    """A model that is lowered for NVIDIA GPUs.

    Attributes
    ----------
    options: the options of the compilation. Here only `stream_priorities` and `streams` are used.
    build: compiles the kernels.
    """

    options: CompileOptions
    build: _BuildForCuda

    @property
    def gpu_kernels(self) -> dict[str, GpuKernel]:
        """The resources of a GPU that each of TVM's kernels needs, by name. The resources are read
        from compiled kernels, so the kernels are compiled first.

        Raises
        ------
        DeviceError
            The kernels cannot be compiled.
        """
        self.kernels.build()
        return self._compiled_so_far()

    def _compiled_so_far(self) -> dict[str, GpuKernel]:
        demands = self.build.demands
        flops = {op.kernel: op.kernel_flops for op in self.on_tvm_alone.operators}
        compiled = flops.keys() & next(iter(demands.values())).keys()
        return {
            kernel: GpuKernel(flops[kernel], {arch: demands[arch][kernel] for arch in demands})
            for kernel in sorted(compiled)
        }

    def traits(self, program: Program) -> list[OperatorTraits]:
        """The resources that each operator of `program` needs on a GPU of the newest architecture.

        Raises
        ------
        DeviceError
            The kernels cannot be compiled.
        """
        return gpu_traits(program, self.gpu_kernels, demands_arch(self.build.demands))

    def gpu_demand(self, program: Program, op: int) -> GpuDemand | None:
        """The resources that operator `op` needs on the newest GPU architecture; None if not known.

        Only the kernel of this operator is compiled.

        Raises
        ------
        DeviceError
            The kernel cannot be compiled.
        """
        arch = demands_arch(self.build.demands)
        if arch is None:
            return None
        operator = program.operators[op]
        if operator.library is None and operator.kernel not in self.build.demands[arch]:
            self.kernels.only({operator.kernel}).build()
        return gpu_demand_of(gpu_traits(program, self._compiled_so_far(), arch)[op], arch)

    def most_streams(self, scheduler: str) -> int | None:
        """The largest number of streams that `scheduler` may use; None for no limit."""
        return self.options.streams if scheduler in _UNFOLDED else self.streams

    def stage_timer(self, program: Program, streams: int, threads: int) -> CudaStageTimer:
        """Make a timer that measures stages on GPU 0. `threads` has no effect on a GPU."""
        return CudaStageTimer(program, self.kernels.loaded, streams=streams)

    def plan(
        self,
        program: Program,
        schedule: Schedule,
        op_us: Callable[[], dict[str, float] | None],
    ) -> Plan:
        """Make a plan for GPU 0, or for the GPUs that the schedule names.

        Stream priorities depend on the longest path through the graph of operators. The path is
        found as if copies between GPUs took no time.
        """
        plan = make_plan(program, schedule, device=_DEVICE)
        if not self.options.stream_priorities or len(plan.streams) == 1:
            return plan
        us = op_us()
        if us is None:
            return prefer_longest_chain(plan, None)
        weights = [0.0 if op.is_copy else us[op.name] for op in plan.operators]
        return prefer_longest_chain(plan, weights)

    def instance(self, plan: Plan) -> CudaInstance:
        """Allocate memory for a plan on its GPUs, so that it can run."""
        missing = _why_not_run(plan)
        if missing is not None:
            raise DeviceError(
                f"a schedule's speed is checked on a GPU: {missing}; give `keep_slower` to use the "
                "schedule unchecked"
            ) from missing
        return CudaInstance(plan, self.kernels.loaded, self.program.weights)


class CudaBackend:
    """Compiles for NVIDIA GPUs. Only measuring needs a GPU; compiling does not.

    If this machine has a GPU, each operator gets the kernel that is measured to be the fastest,
    TVM's or a library's. By default the kernels of all libraries that this machine can load are
    measured. Without a GPU, kernels cannot be measured. Then TVM's kernels run the whole model by
    default. A library that the option `providers` names runs every operator that it can run.

    Attributes
    ----------
    archs: the GPU architectures that kernels are compiled for.
    providers: the providers whose kernels an operator may get.
    target: TVM's target.
    """

    device: ClassVar[Device] = "cuda"
    clock: ClassVar[Clock] = _cuda
    prices_by_name = True
    keeps_choices = False
    counts_cores = False

    def __init__(self, options: CompileOptions) -> None:
        """Check that the options fit a GPU.

        Raises
        ------
        InputError
            An option is for a CPU.
        DeviceError
            An architecture does not exist, or this machine has a GPU but lacks a library that the
            option `providers` names.
        """
        _refuse_options_for_cpus(options)
        self._options = options
        self.providers, self._can_measure = _providers(options)
        self.archs = _archs(options)
        self.target = cuda_target(self.archs)

    def lower(
        self,
        model: Any,
        input_shapes: dict[str, tuple[int, ...]] | None,
        open_store: Callable[[], LatencyStore],
    ) -> Lowered:
        """Import the model, lower it, schedule its kernels, and choose a kernel for each operator.

        Raises
        ------
        UnsupportedModelError
            The model cannot be imported, or a kernel needs a workspace within its loops.
        InputError
            An input's shape is not known, or TF32 is allowed but no kernel library is among the
            providers.
        """
        lowered = self._lowered(model, input_shapes)
        program = lowered.program
        has_libraries = any(name != TVM for name in self.providers)
        if has_libraries and TVM in self.providers and self._can_measure:
            # Always measure on one stream, so that the choice of kernels does not depend on the
            # number of streams. Then all schedules run the same kernels.
            budget = self._options.budget.share(CHOICE_SHARE)

            def latency_of(program: Program) -> MeasuredLatency:
                return lowered.latency(program, 1, 1, open_store(), self._options.progress, budget)

            program = plain_in_time(program, self.providers, latency_of, budget)
        else:
            program = give_to_libraries(program, self.providers)
        most = min(_MOST_STREAMS, program.graph().width or 1)
        streams = positive("streams", self._options.streams, most)
        return replace(lowered, program=program, streams=streams)

    def lower_unmeasured(
        self,
        model: Any,
        input_shapes: dict[str, tuple[int, ...]] | None,
        give: Callable[[Program], Program],
    ) -> Lowered:
        """Lower the model for one stream, with the libraries' kernels that `give` chooses."""
        return self._lowered(model, input_shapes).with_choice(give)

    def _lowered(
        self, model: Any, input_shapes: dict[str, tuple[int, ...]] | None
    ) -> LoweredForCuda:
        """Import the model and lower it to TVM's kernels, for one stream."""
        libraries = tuple(name for name in self.providers if name != TVM)
        lower: Any = LowerToUnits(self.target, libraries)
        import_anew = partial(load_model, model, input_shapes)
        module = lower(import_anew())
        extracted = extract(module)
        _refuse_bfloat16_ports(extracted)
        read_in_place = parts_in_place(extracted, GPU_PART_ALIGNMENT)
        placed = concat_in_place(read_in_place, GPU_PART_ALIGNMENT)
        program = _with_tf32(placed, self._options, libraries)
        schedule_kernels: Any = DefaultCUDASchedule(self.target)
        program.kernels = schedule_kernels(program.kernels)
        program = lift_workspaces(program)
        _refuse_workspaces(program)
        build = _BuildForCuda(self.archs)
        kernels = Kernels(program.kernels, self.target, build)
        return LoweredForCuda(
            import_anew, module, program, program, kernels, 1, 1, self._options, build
        )

    def why_not_measured(self) -> DeviceError | None:
        """The error to raise if GPU 0 or TVM's CUDA runtime is missing; None if both are there."""
        try:
            require_cuda(0)
        except DeviceError as error:
            return error
        return None

    def why_not_run(self, plan: Plan) -> DeviceError | None:
        """The error to raise if a GPU of the plan or TVM's CUDA runtime is missing; None if all are
        there.
        """
        return _why_not_run(plan)

    def why_not_compared(self) -> str | None:
        """The reason why kernels cannot run on this machine; None if it has a GPU."""
        missing = self.why_not_measured()
        return None if missing is None else str(missing)

    def why_not_in_bf16(self) -> str:
        """The reason why models cannot be compiled in bf16 for a GPU."""
        return "bf16 is for CPUs"

    def cpu_features(self) -> tuple[str, ...]:
        """Return no features, because the host code of a kernel is compiled for a baseline CPU."""
        return ()


def is_cuda(target: Any) -> bool:
    """Whether a target is an NVIDIA GPU. False for an invalid target."""
    try:
        # Compare the text first, because `Target("cuda")` would ask the GPU for its architecture.
        return target == "cuda" or bool(tvm.target.Target(target).kind.name == "cuda")
    # TVM may raise any error for an invalid target. `CpuBackend` then reports what is wrong.
    except Exception:
        return False


def native_arch() -> str:
    """The architecture of GPU 0, such as `sm_90`.

    Raises
    ------
    DeviceError
        There is no GPU.
    """
    found = re.search(r"\bsm_\d+\b", _cuda.describe_device(0))
    assert found is not None
    return found.group()


def _archs(options: CompileOptions) -> Sequence[str]:
    if options.archs is not None:
        return tuple(options.archs)
    if options.target != "cuda":
        named = tvm.target.Target(options.target).attrs.get("arch")
        if named is not None:
            return (str(named),)
    try:
        return (native_arch(),)
    except DeviceError:
        return DEFAULT_ARCHS


def _refuse_options_for_cpus(options: CompileOptions) -> None:
    if options.precision != "f32":
        raise InputError("`precision` bf16 is for CPUs; for a GPU leave it at f32")
    if options.threads is not None:
        raise InputError(
            "`threads` is for CPUs: a GPU kernel chooses its number of threads itself; leave it out"
        )
    if options.tuning_records is not None:
        raise InputError("tuning records are of kernels for a CPU; leave `tuning_records` out")
    if options.like is not None:
        raise InputError("`like` is for CPUs: kernels for a GPU are chosen anew; leave `like` out")


def _providers(options: CompileOptions) -> tuple[tuple[str, ...], bool]:
    """The providers of kernels, and whether kernels can be measured on this machine.

    Raises
    ------
    DeviceError
        This machine has a GPU but lacks a library that the option `providers` names.
    """
    wanted = tuple(dict.fromkeys(options.providers or ()))
    check_provider_names(wanted, "cuda")
    try:
        require_cuda(0)
    except DeviceError as error:
        if not wanted:
            _LOG.info("only TVM's kernels are used, because no kernel can be measured: %s", error)
        return wanted or (TVM,), False
    missing = [name for name in wanted if name != TVM and library_version(name) is None]
    if missing:
        raise DeviceError(
            f"kernel library `{missing[0]}` is missing here: {why_missing(missing[0])}; install "
            f"`tvm-interop[{missing[0]}]`, or leave it out of the providers"
        )
    return wanted or available_providers(None, "cuda"), True


def _with_tf32(program: Program, options: CompileOptions, libraries: Sequence[str]) -> Program:
    """Allow the operators of `program` to round to TF32, if the options say so.

    Raises
    ------
    InputError
        The options allow TF32, but no kernel library is among the providers.
    """
    if not options.allow_tf32:
        return program
    if not libraries:
        raise InputError(
            "`allow_tf32` is for kernels of libraries, and no library is among the providers: "
            "TVM's kernels round nothing; name `cudnn` or `cublaslt` among the providers"
        )
    operators = [
        replace(op, description=op.description.with_tf32())
        if op.description is not None and op.description.dtype == "float32"
        else op
        for op in program.operators
    ]
    return replace(program, operators=operators)


def _refuse_bfloat16_ports(program: Program) -> None:
    for kind, values in (("input", program.inputs), ("output", program.outputs)):
        for value in (program.values[v] for v in values):
            if value.dtype == "bfloat16":
                raise UnsupportedModelError(
                    f"{kind} `{value.name}` is bfloat16, which models for GPUs cannot have: make "
                    "it float32, and let the model cast it"
                )


def _refuse_workspaces(program: Program) -> None:
    kernels = kernels_with_workspace(program.kernels)
    ops = [op.name for op in program.operators if op.kernel in kernels]
    if ops:
        raise UnsupportedModelError(
            f"the kernels of {', '.join(f'`{op}`' for op in ops)} keep intermediate results in "
            "memory that TVM lends to other streams before the GPU is done with it; schedule these "
            "kernels so that they need no such memory, or compile for `llvm`"
        )


def _why_not_run(plan: Plan) -> DeviceError | None:
    try:
        require_gpu(plan)
    except DeviceError as error:
        return error
    return None
