"""`Compilation` for NVIDIA GPUs. Kernels are compiled without a GPU; only measuring needs one."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import tvm

from . import _cuda
from .compilation import Compilation
from .compile_options import CompileOptions, parts_for, positive
from .cuda_instance import CudaInstance, require_cuda, require_gpu
from .cuda_kernels import DEFAULT_ARCHS, build_cuda_kernels, cuda_target, kernels_with_workspace
from .errors import DeviceError, InputError, ScheduleError, UnsupportedModelError
from .frontend import load_model
from .kernel_libraries import (
    TVM,
    available_providers,
    check_provider_names,
    library_version,
    why_missing,
)
from .latency import LatencyModel
from .latency.base import op_latencies
from .latency.cuda_measured import CudaMeasuredLatency
from .latency.provider_choice import fastest_plain, give_to_libraries
from .plan import Plan, make_plan
from .program import Program
from .scheduling import Schedule, options_of
from .scheduling import schedule as run_scheduler
from .storage import GPU_PART_ALIGNMENT
from .stream_priority import prefer_longest_chain
from .transform.concat_in_place import concat_in_place
from .transform.cuda_schedule import DefaultCUDASchedule
from .transform.extract import extract
from .transform.lift_workspaces import lift_workspaces
from .transform.lower import LowerToUnits

_LOG = logging.getLogger("tvm_interop")

_MOST_STREAMS = 8
"""More hardly ever run at once: the kernels of a few fill the GPU."""
_DEVICE = "cuda:0"


class CudaCompilation(Compilation):
    """One model on its way to an artifact for a GPU.

    Where a GPU is at hand, each operator gets whichever kernel is measured to be the fastest, TVM's
    or a library's; by default of all libraries that load. Without one there is nothing to measure
    by: by default TVM's kernels run all of it, and where libraries are named, each runs whatever
    it can. So it does too where `tvm` is not among the providers.

    Attributes
    ----------
    archs: architectures that its kernels are compiled for.
    """

    def __init__(
        self,
        model: Any,
        options: CompileOptions | None = None,
        input_shapes: dict[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Import and lower the model, and schedule its kernels.

        Raises
        ------
        UnsupportedModelError
            The model cannot be imported, or a kernel needs a workspace within its loops.
        InputError
            An input's shape is not known, an option is for a CPU, or TF32 is allowed and no library
            takes part.
        DeviceError
            No such architecture, or a library that was named is missing where there is a GPU.
        """
        self.options = options or CompileOptions("cuda")
        _refuse_options_for_cpus(self.options)
        self.providers, can_measure = _providers(self.options)
        libraries = tuple(name for name in self.providers if name != TVM)
        self.archs = _archs(self.options)
        self.target = cuda_target(self.archs)
        lower: Any = LowerToUnits(self.target, libraries)
        self.module = lower(load_model(model, input_shapes))
        placed = concat_in_place(extract(self.module), GPU_PART_ALIGNMENT)
        self.program = _with_tf32(placed, self.options, libraries)
        schedule_kernels: Any = DefaultCUDASchedule(self.target)
        self.program.kernels = schedule_kernels(self.program.kernels)
        self.program = lift_workspaces(self.program)
        _refuse_workspaces(self.program)
        self._on_tvm_alone = self.program
        if libraries and TVM in self.providers and can_measure:
            # On one stream, whatever the streams will be: all schedules run the same kernels.
            self.program = fastest_plain(
                self.program, self.providers, lambda program: self._latency_of(program, 1, 1)
            ).program
        else:
            self.program = give_to_libraries(self.program, libraries)
        self.graph = self.program.graph()
        most = min(_MOST_STREAMS, self.graph.width or 1)
        self.streams = positive("streams", self.options.streams, most)
        self.threads = 1

    @cached_property
    def kernels(self) -> bytes:
        """The compiled kernel library."""
        with tempfile.TemporaryDirectory(prefix="tvm_interop_") as folder:
            path = Path(folder) / "kernels.so"
            build_cuda_kernels(self.program.kernels, path, self.archs)
            return path.read_bytes()

    @property
    def parallel_kernels(self) -> bool:
        """Teams of threads are a CPU's."""
        return False

    def plan(self, schedule: Schedule) -> Plan:
        """The plan of a schedule: for GPU 0, unless it names GPUs."""
        plan = self._make_plan(self.program, schedule, self.threads)
        if not self.options.stream_priorities or len(plan.streams) == 1:
            return plan
        return prefer_longest_chain(plan, self._op_us(plan))

    def instance(self, plan: Plan) -> CudaInstance:
        """The plan with memory under it, ready to run."""
        _require_gpu_to_run(plan)
        return CudaInstance(plan, self.loaded_kernels, self.program.weights)

    def schedule(
        self,
        scheduler: str,
        latency: LatencyModel | Literal["learned"] | None = None,
        **options: Any,
    ) -> Schedule:
        """Run a scheduler on the model.

        Parameters
        ----------
        latency: by default that of the options, or else measured on the GPU. Without a GPU
            schedulers get none, and those that can do without it weigh all operators alike.
            `learned` measures some stages, and needs the GPU.
        options: the scheduler's own.

        Raises
        ------
        DeviceError
            There is no GPU, and the scheduler has to have latencies.
        """
        latency = latency or self.options.latency
        if parts_for(scheduler) is not None:
            raise ScheduleError(f"`{scheduler}` merges operators, and does so for CPUs only")
        try:
            require_gpu(self.plan(self.sequential()))
        except DeviceError as error:
            if isinstance(latency, str):
                raise
            return self._schedule_unmeasured(scheduler, latency, options, error)
        return super().schedule(scheduler, latency, **options)

    def _schedule_unmeasured(
        self,
        scheduler: str,
        latency: LatencyModel | None,
        options: dict[str, Any],
        missing: DeviceError,
    ) -> Schedule:
        if "streams" in options_of(scheduler):
            options.setdefault("streams", self.streams)
        try:
            return run_scheduler(self.graph, scheduler, latency=latency, **options)
        except ScheduleError as error:
            if latency is not None or "latency model" not in str(error):
                raise
            raise DeviceError(
                f"`{scheduler}` needs latencies, and they are measured on a GPU: {missing}; or "
                "give `latency`, or a scheduler that does without, such as `nimble`"
            ) from error

    def _make_plan(self, program: Program, schedule: Schedule, threads: int) -> Plan:
        return make_plan(program, schedule, device=_DEVICE)  # Threads are a CPU's.

    def _op_us(self, plan: Plan) -> list[float] | None:
        """What each of the plan's operators takes; None where there is nothing to tell by.

        Copies between GPUs are not measured, and count nothing.
        """
        latency = self.options.latency
        if latency is None:
            try:
                require_gpu(plan)
            except DeviceError:
                return None
            latency = self.measured_latency
        names = self.graph.names
        us = dict(zip(names, op_latencies(latency, names), strict=True))
        return [0.0 if op.is_copy else float(us[op.name]) for op in plan.operators]

    def _latency_of(self, program: Program, streams: int, threads: int) -> CudaMeasuredLatency:
        return CudaMeasuredLatency(
            program,
            self.loaded_kernels,
            self._kernel_hashes,
            streams=streams,
            store=self._store,
            progress=self.options.progress,
        )

    def _measure_interleaved(
        self, executors: list[Any], warmup: int, repeats: int, seed: int = 0
    ) -> list[list[float]]:
        return _cuda.measure_interleaved(executors, warmup, repeats, seed)

    def _cpu_features(self) -> tuple[str, ...]:
        return ()  # The host's part of a kernel is compiled for any CPU of its kind.


def is_cuda(target: Any) -> bool:
    """Whether a target is an NVIDIA GPU's; what is no target at all is not."""
    try:
        # A name alone leaves TVM to ask the GPU for its architecture.
        return target == "cuda" or bool(tvm.target.Target(target).kind.name == "cuda")
    except Exception:  # Whatever TVM raises: `Compilation` says what is wrong with it.
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
    if options.threads is not None:
        raise InputError("`threads` is for CPUs: a kernel on a GPU has as many as it likes")
    if options.tuning_records is not None:
        raise InputError("tuning records are of kernels for a CPU; leave `tuning_records` out")


def _providers(options: CompileOptions) -> tuple[tuple[str, ...], bool]:
    """Whose kernels to take, and whether they can be measured here."""
    wanted = tuple(dict.fromkeys(options.providers or ()))
    check_provider_names(wanted, "cuda")
    try:
        require_cuda(0)
    except DeviceError as error:
        if not wanted:
            _LOG.info("kernels of TVM alone, since none can be measured: %s", error)
        return wanted or (TVM,), False
    missing = [name for name in wanted if name != TVM and library_version(name) is None]
    if missing:
        raise DeviceError(
            f"kernel library `{missing[0]}` is missing here: {why_missing(missing[0])}; install "
            f"`tvm-interop[{missing[0]}]`, or leave it out of the providers"
        )
    return wanted or available_providers(None, "cuda"), True


def _with_tf32(program: Program, options: CompileOptions, libraries: Sequence[str]) -> Program:
    """`program` with the permission to round to TF32, where the options give it."""
    if not options.allow_tf32:
        return program
    if not libraries:
        raise InputError(
            "`allow_tf32` is for kernels of libraries, and none takes part: TVM's round nothing; "
            "name `cudnn` or `cublaslt` among the providers"
        )
    operators = [
        replace(op, description=msgspec.structs.replace(op.description, allow_tf32=True))
        if op.description is not None and op.description.dtype == "float32"
        else op
        for op in program.operators
    ]
    return replace(program, operators=operators)


def _refuse_workspaces(program: Program) -> None:
    kernels = kernels_with_workspace(program.kernels)
    ops = [op.name for op in program.operators if op.kernel in kernels]
    if ops:
        raise UnsupportedModelError(
            f"the kernels of {', '.join(f'`{op}`' for op in ops)} keep intermediate results within "
            "their loops, in memory that TVM lends to other streams before the GPU is done with "
            "it; schedule these kernels so that they need none there, or compile for `llvm`"
        )


def _require_gpu_to_run(plan: Plan) -> None:
    try:
        require_gpu(plan)
    except DeviceError as error:
        raise DeviceError(
            f"a schedule's speed is checked on a GPU: {error}; `keep_slower` ships it unchecked"
        ) from error
