"""Searches for faster loops for the TVM kernels of a model with MetaSchedule, and keeps each trial.

Candidate kernels are built and run in this process, one at a time. Each candidate runs on one
thread, as kernels do when a model's operators run side by side.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.cost_model import XGBModel
from tvm.s_tir.meta_schedule.database import TuningRecord
from tvm.s_tir.meta_schedule.mutator import Mutator
from tvm.s_tir.meta_schedule.postproc import Postproc
from tvm.s_tir.meta_schedule.runner import RunnerResult
from tvm.s_tir.meta_schedule.schedule_rule import AddRFactor, ScheduleRule
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

from .._native import cpu as _runtime
from ..errors import DeviceError, InputError
from ..kernels.build import kernel_hash
from ..kernels.cpu_schedule import schedule_kernel
from ..kernels.pipeline import PIPELINE
from ..kernels.tensor_intrinsics import import_tensor_intrinsics
from ..kernels.tuned_schedule import tuned_kernel
from ..kernels.tuning_records import Comparison, TuningRecords, as_workload, seconds
from ..machine.cpu_features import vector_registers
from .compilation import Compilation

_LOG = logging.getLogger("tvm_interop.metaschedule")
_ROUND = 8
"""The number of trials in a round. After a round, the cost model learns from the round's trials,
and the search may go on with another kernel."""
_TRIALS_A_KERNEL = 64
"""The default number of trials for each kernel."""
_POPULATION = 64
"""The population size of the evolutionary search. With MetaSchedule's default of 512, the search
for a convolution takes minutes.
"""
_FAILED_S = 1e10
"""The time that MetaSchedule records for a trial that failed, in seconds."""
_COMPARED = 7
"""The number of rounds in which a kernel's tuned and default schedules are compared; each of the
two runs once in a round."""


@dataclass(frozen=True)
class KernelProgress:
    """The progress of the search for one kernel.

    Attributes
    ----------
    name: the kernel's name.
    uses: the number of operators of the model that run the kernel.
    trials: the number of trials so far. Failed trials count, and so do trials of earlier calls.
    default_us: the kernel's latency with our default schedule, in microseconds.
    tuned_us: the latency with the loops of the best trial, in microseconds; None if no trial ran.
        It is measured in turns with the default schedule.
    """

    name: str
    uses: int
    trials: int
    default_us: float
    tuned_us: float | None

    @property
    def best_us(self) -> float:
        """The smaller one of `default_us` and `tuned_us`, in microseconds."""
        return min(self.default_us, self.tuned_us or math.inf)


class KernelTuning:
    """A search for faster loops for the TVM kernels of a model.

    The search tunes the kernels of the operators that no kernel library runs. Each round of trials
    goes to one kernel. The d'Hondt method chooses this kernel. For each kernel, it divides the time
    that the model spends in the kernel by the number of trials that the kernel would have after the
    round. The kernel with the largest quotient is chosen. So a kernel in which the model spends
    little time gets few trials. Ties go to the kernel that the model uses first.

    The search space is MetaSchedule's own for CPUs, without the rule "rfactor", which divides sums
    among threads. So the results of tuned kernels do not depend on the number of threads. See Shao
    et al., "Tensor Program Optimization with Probabilistic Programs", NeurIPS 2022.

    Attributes
    ----------
    records: where trials are kept. Each trial is written to a file as soon as it is made, so the
        search can stop at any time and continue later.
    max_trials: the most trials of all kernels together, including the trials already in `records`.
    """

    def __init__(
        self,
        compilation: Compilation,
        records: TuningRecords,
        *,
        max_trials: int | None = None,
        time_budget_s: float | None = None,
        seed: int = 0,
        on_progress: Callable[[KernelTuning], None] = lambda tuning: None,
    ) -> None:
        """Prepare a search.

        Parameters
        ----------
        max_trials: the most trials of all kernels together, including the trials already in
            `records`; by default 64 for each kernel.
        time_budget_s: the number of seconds after which no further trial begins; None for no limit.
        seed: the seed of the random numbers.
        on_progress: called after each trial, and once for each kernel before the first trials.

        Raises
        ------
        DeviceError
            xgboost is not installed (extra `learned`).
        InputError
            No operator runs a kernel of TVM's, or a limit is negative.
        """
        for name, limit in (("max_trials", max_trials), ("time_budget_s", time_budget_s)):
            if limit is not None and limit < 0:
                raise InputError(f"`{name}` must be 0 or more, got {limit}")
        _require_xgboost()
        self.records = records
        self._seed = seed
        self._on_progress = on_progress
        self._time_budget_s = math.inf if time_budget_s is None else time_budget_s
        self._device = _OneThread(records.target)
        self._default_kernels = compilation.loaded_kernels
        self._cost_model = XGBModel(num_tuning_cores=1)
        registers = vector_registers(records.target)
        self._kernels = [
            _Kernel(name, uses, func, schedule_kernel(func, registers, name), records)
            for name, uses, func in _kernels_to_tune(compilation)
        ]
        if not self._kernels:
            raise InputError(
                "there is nothing to tune, because kernel libraries run every operator of the "
                "model; with `--providers tvm`, TVM's kernels run the operators"
            )
        if max_trials is None:
            max_trials = _TRIALS_A_KERNEL * len(self._kernels)
        self.max_trials = max_trials

    @property
    def trials(self) -> int:
        """The number of trials of the model's kernels so far, including trials of earlier calls."""
        return sum(kernel.trials for kernel in self._kernels)

    @property
    def progress(self) -> list[KernelProgress]:
        """The progress of each kernel that was measured already, in the order of first use."""
        return [
            KernelProgress(k.name, k.uses, k.trials, k.default_us, k.tuned_us)
            for k in self._kernels
            if k.is_timed
        ]

    def run(self) -> list[KernelProgress]:
        """Search until the trials or the time are used up, or until there are no more candidates.

        Return the progress of each kernel at the end.
        """
        deadline = time.monotonic() + self._time_budget_s
        with self._device:
            for kernel in self._kernels:
                self._time(kernel)
                self._on_progress(self)
            while self.trials < self.max_trials and time.monotonic() < deadline:
                waiting = [kernel for kernel in self._kernels if not kernel.exhausted]
                if not waiting:
                    break
                kernel = max(waiting, key=lambda k: k.uses * k.best_us / (k.trials + _ROUND))
                self._round(kernel, deadline)
        return self.progress

    def _time(self, kernel: _Kernel) -> None:
        """Measure the latency of `kernel` with our default schedule and with its best record.

        If the records already compare the kernel with these two schedules, nothing is measured.
        """
        best = self.records.best(kernel.func)
        if best is None:
            (kernel.default_us,) = self._device.median_us(kernel.func, [self._default(kernel)])
            return
        tuned = tuned_kernel(kernel.func, best)
        compared = self.records.compared(tuned, kernel.default)
        if compared is None:
            built = [self._device.built(tuned), self._default(kernel)]
            tuned_us, default_us = self._device.median_us(kernel.func, built)
            compared = Comparison(
                kernel_hash(tuned), kernel_hash(kernel.default), tuned_us, default_us
            )
            self.records.add_comparison(compared)
        kernel.default_us, kernel.tuned_us = compared.default_us, compared.tuned_us

    def _default(self, kernel: _Kernel) -> _Built:
        return _Built(self._default_kernels, kernel.name)

    def _round(self, kernel: _Kernel, deadline: float) -> None:
        context = kernel.begun(self.records, self._cost_model, self._seed)
        candidates = context.generate_measure_candidates()
        if not candidates:
            kernel.exhausted = True
            return
        best = self.records.best(kernel.func)
        made, results = [], []
        try:
            for candidate in candidates[: self.max_trials - self.trials]:
                if time.monotonic() >= deadline:
                    break
                results.append(self._trial(kernel, candidate))
                made.append(candidate)
                self._on_progress(self)
        finally:  # The latency of the best trial so far is measured even after Ctrl-C.
            if self.records.best(kernel.func) is not best:
                self._time(kernel)
        if len(made) == len(candidates):
            context.notify_runner_results(candidates, results)
            self._cost_model.update(context, candidates, results)

    def _trial(self, kernel: _Kernel, candidate: Any) -> Any:
        try:
            run_secs = self._device.run_secs(candidate.sch.mod["main"])
            error = None
        except Exception as caught:  # Many search spaces hold candidates that TVM cannot build.
            run_secs, error = None, str(caught)
            _LOG.debug("a trial of kernel `%s` failed: %s", kernel.name, caught)
        record = TuningRecord(
            candidate.sch.trace,
            kernel.workload,
            run_secs or [_FAILED_S],
            self.records.target,
            candidate.args_info,
        )
        self.records.add(record)
        kernel.trials += 1
        return RunnerResult(run_secs, error)


class _Kernel:
    """A kernel to tune, and the state of the search for its loops."""

    default_us = math.inf
    tuned_us: float | None = None
    exhausted = False

    def __init__(
        self, name: str, uses: int, func: Any, default: Any, records: TuningRecords
    ) -> None:
        self.name, self.uses, self.func, self.default = name, uses, func, default
        self.trials = records.trials_of(func)
        self.workload: Any = None
        self._context: Any = None

    @property
    def is_timed(self) -> bool:
        return self.default_us < math.inf

    @property
    def best_us(self) -> float:
        return min(self.default_us, self.tuned_us or math.inf)

    def begun(self, records: TuningRecords, cost_model: Any, seed: int) -> Any:
        """Begin the search if it has not begun yet, and return its `TuneContext` of MetaSchedule.

        When the search begins, `cost_model` learns from the trials of earlier calls.
        """
        if self._context is not None:
            return self._context
        known = [
            record
            for record in records.database.get_all_tuning_records()
            if kernel_hash(record.workload.mod["main"]) == kernel_hash(self.func)
        ]
        self.workload = records.database.commit_workload(as_workload(self.func))
        # `TuneContext` would import the intrinsics itself, but that takes ten times as long.
        import_tensor_intrinsics()
        self._context = context = ms.TuneContext(
            as_workload(self.func),
            target=_with_cores(records.target),
            space_generator=_space(),
            search_strategy=EvolutionarySearch(
                population_size=_POPULATION, init_min_unmeasured=_POPULATION // 4
            ),
            task_name=self.name,
            rand_state=seed + 1,  # MetaSchedule takes no seed below 1.
            num_threads=_runtime.allowed_cores(),
            logger=_LOG,
        )
        context.pre_tuning(
            2**31 - 1, _ROUND, context.generate_design_space(), records.database, cost_model
        )
        if known:
            results = [RunnerResult([seconds(record)], None) for record in known]
            candidates = [record.as_measure_candidate() for record in known]
            cost_model.update(context, candidates, results)
        return context


class _OneThread:
    """Builds kernels, and runs them, with their parallel loops, on one separate thread."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._thread: ThreadPoolExecutor | None = None

    def __enter__(self) -> None:
        # TVM's runtime keeps a team size for each thread that runs kernels. A separate thread keeps
        # the caller's team size unchanged.
        self._thread = ThreadPoolExecutor(1, "tvm_interop_tuning", _run_alone)

    def __exit__(self, *error: Any) -> None:
        assert self._thread is not None
        self._thread.shutdown()

    def built(self, kernel: tirx.PrimFunc) -> _Built:
        """Compile `kernel` into memory."""
        module = as_workload(kernel)
        compiled = tvm.compile(module, target=self._target, tir_pipeline=PIPELINE)
        return _Built(compiled.jit(), "main")

    def run_secs(self, kernel: tirx.PrimFunc) -> list[float]:
        """Measure `kernel` three times, and return the seconds that one run took each time.

        A measurement repeats the kernel for at least 5 ms.
        """
        return self._timed(self.built(kernel), _arguments(kernel), repeat=3)

    def median_us(self, kernel: tirx.PrimFunc, built: Sequence[_Built]) -> list[float]:
        """The median latency of each build of `kernel`, in microseconds. The builds run in
        turns.
        """
        arguments = _arguments(kernel)
        rounds = [
            [self._timed(one, arguments, repeat=1)[0] for one in built] for _ in range(_COMPARED)
        ]
        return [float(us) for us in np.median(rounds, axis=0) * 1e6]

    def _timed(self, built: _Built, arguments: list[Any], repeat: int) -> list[float]:
        assert self._thread is not None, "outside of `with`"

        def time_it() -> list[float]:
            timer = built.library.time_evaluator(
                built.name, tvm.cpu(), number=1, repeat=repeat, min_repeat_ms=5
            )
            return [float(s) for s in timer(*arguments).results]

        return self._thread.submit(time_it).result()


@dataclass(frozen=True)
class _Built:
    """A compiled kernel: the loaded library and the kernel's name in it."""

    library: Any
    name: str


def _run_alone() -> None:
    tvm_ffi.get_global_func("runtime.config_threadpool")(1, 1)


def _arguments(kernel: tirx.PrimFunc) -> list[Any]:
    """Random tensors to run `kernel` on. Integer tensors are zeros, which are valid as indices."""
    rng = np.random.default_rng(0)
    shapes = [tuple(int(dim) for dim in param.ty.shape) for param in kernel.params]
    return [
        tvm.runtime.tensor(rng.random(shape).astype(str(param.ty.dtype)))
        for shape, param in zip(shapes, kernel.params, strict=True)
    ]


def _kernels_to_tune(compilation: Compilation) -> list[tuple[str, int, Any]]:
    """The name, number of uses and PrimFunc of each kernel that no library runs.

    Equal kernels are listed once, under the name that the model uses first. The kernels are in the
    order in which the model first uses them.
    """
    found: dict[str, tuple[str, int, Any]] = {}
    operators = [op for op in compilation.program.operators if op.library is None]
    for _, name in dict.fromkeys((op.whole or op.name, op.kernel) for op in operators):
        func = compilation.module[name]
        key = kernel_hash(func)
        first, uses, _ = found.get(key, (name, 0, func))
        found[key] = (first, uses + 1, func)
    return list(found.values())


def _space() -> Any:
    """MetaSchedule's search space for CPUs, without the rule that splits sums."""
    rules = [rule for rule in ScheduleRule.create("llvm") if not isinstance(rule, AddRFactor)]
    return PostOrderApply(
        sch_rules=rules, postprocs=Postproc.create("llvm"), mutator_probs=Mutator.create("llvm")
    )


def _with_cores(target: Any) -> Any:
    """Add the number of cores to `target`. MetaSchedule needs the number for parallel loops."""
    if "num-cores" in target.attrs:
        return target
    return tvm.target.Target({**target.export(), "num-cores": _runtime.allowed_cores()})


def _require_xgboost() -> None:
    try:
        import xgboost  # noqa: F401
    except ImportError as error:
        raise DeviceError(
            "the search for kernels learns with xgboost, which is not installed; install "
            "`tvm-interop[learned]`"
        ) from error
