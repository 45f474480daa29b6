"""Stage latencies measured on this machine, on the executor that will run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tvm

from .. import _runtime
from ..instance import aligned_copy, aligned_empty, as_tensor, kernel_functions
from ..machine import cpu_model
from ..planning import pack_groups
from ..program import Program
from ..storage import stored_shape
from .base import LatencyModel
from .record import Record, Setting, Workload, stage_key, utc
from .store import LatencyStore
from .workloads import describe_workload, workload_hash

_CHUNK = 32
"""Stages measured against each other in one go."""
_STAGE_BUDGET_S = 0.025
"""A stage is repeated until about this much time went into it, within the limits below; half of it
goes into untimed runs."""
_MIN_REPEATS = 5
_MAX_REPEATS = 30
_FAR_SLOWER = 3.0
"""One run tells that an operator is slower than another's time, where it took this much longer."""


class Progress(Protocol):
    """Told how measuring goes: `stages_done` of `stages_total`."""

    def __call__(self, stages_done: int, stages_total: int) -> None: ...


class MeasuredLatency(LatencyModel):
    """Latencies measured by running the stages, in microseconds.

    A stage runs as it will in the model: its groups packed onto the streams by the same rule, at
    once, on the same executor. Stages are interleaved in random order, each run once more, untimed,
    before each timed run: then what ran before does not tell, and a stage does not seem faster than
    its own operators because those were measured among larger ones, which emptied the caches. Its
    latency is the median. The cost of starting a run at all, measured alongside as an empty plan,
    is taken off, since a model pays it once and not once a stage.

    Stages of the same kernels on the same shapes share one measurement, within a model, between
    models and, through the store, between processes.

    Attributes
    ----------
    measured: how many stages were run, as opposed to known already.
    setting: what records say about where and with what they were measured.
    """

    def __init__(
        self,
        program: Program,
        kernels: Any,
        kernel_hashes: dict[str, str],
        *,
        streams: int,
        threads: int = 1,
        parallel_kernels: bool = False,
        store: LatencyStore | None = None,
        progress: Progress | None = None,
        seed: int = 0,
    ) -> None:
        """Prepare to measure `program`'s operators.

        Parameters
        ----------
        kernels: the loaded kernels of TVM.
        kernel_hashes: a hash of each such kernel's code and shapes, by name.
        streams, threads: streams there will be, and threads the kernels of each may use.
        store: where latencies are kept; None keeps them in memory only.
        """
        self.measured = 0
        self._program = program
        self._hashes = [workload_hash(op, kernel_hashes) for op in program.operators]
        self._num_streams = streams
        self._store = store if store is not None else LatencyStore(":memory:")
        self._progress = progress
        self._seed = seed
        self._known: dict[str, float] = {}
        self._op_us: list[float] = []
        self._threads = threads
        self._parallel_kernels = parallel_kernels
        self.setting = self._describe_setting()
        self._workloads: dict[str, Workload] = {}
        self._streams = self._make_streams()
        ours = {op.kernel for op in program.operators if op.library is None}
        self._functions = kernel_functions(kernels, sorted(ours))
        self._library_kernels: dict[int, Any] = {}
        self._tensors: dict[int, Any] = {}
        self._rng = np.random.default_rng(seed)

    def op(self, op: int) -> float:
        """Microseconds that operator `op` takes alone; the first call measures all operators."""
        self._measure_ops()
        return self._op_us[op]

    def can_run(self, op: int) -> bool:
        """Whether operator `op` has a kernel here, as it should: its library said that it could."""
        return True

    def takes_longer(self, op: int, than_us: float) -> bool:
        """Whether operator `op` takes longer than `than_us`, found out no better than need be.

        One that is far slower is run only once, and what that run said is kept and asked first
        ever after: with the same latencies at hand the answer is always the same.
        """
        streams = self._on_streams([[op]])
        key = self._key(streams)
        rough_key = f"once:{key}"
        known = self._store.get([key, rough_key])
        if rough_key not in known and key not in known and key not in self._known:
            known[rough_key] = self._time_once(self._executor(streams)) * 1e6
            self._keep({rough_key: (streams, known[rough_key])}, samples=1)
        if known.get(rough_key, 0.0) > _FAR_SLOWER * than_us:
            return True
        return self.op(op) > than_us

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Microseconds that `groups` take, run at once."""
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of each stage, shape (len(stages),); those not known are measured now."""
        if any(len(groups) > self._num_streams for groups in stages):
            self._measure_ops()
        programs = [self._on_streams(groups) for groups in stages]
        keys = [self._key(streams) for streams in programs]
        unknown = {k: p for k, p in zip(keys, programs, strict=True) if k not in self._known}
        self._known.update(self._store.get(unknown))
        self._measure({k: p for k, p in unknown.items() if k not in self._known})
        return np.array([self._known[k] for k in keys])

    def known(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of those stages that were measured before, not a number for the others."""
        keys = self.keys(stages)
        self._known.update(self._store.get({key for key in keys if key not in self._known}))
        return np.array([self._known.get(key, np.nan) for key in keys], dtype=np.float64)

    def keys(self, stages: Sequence[Sequence[Sequence[int]]]) -> list[str]:
        """Names of the stages: those of one name share a measurement."""
        self._measure_ops()
        return [self._key(self._on_streams(groups)) for groups in stages]

    def workload(self, op: int) -> Workload:
        """What operator `op` computes, apart from this program."""
        hash_ = self._hashes[op]
        if hash_ not in self._workloads:
            self._workloads[hash_] = describe_workload(self._program, op, hash_)
        return self._workloads[hash_]

    def _measure_ops(self) -> None:
        """Measure each operator alone, all in one go: taken one by one they would drift apart."""
        if not self._op_us:
            ops = range(len(self._program.operators))
            self._op_us = self.stages([[[op]] for op in ops]).tolist()

    def _on_streams(self, groups: Sequence[Sequence[int]]) -> list[list[int]]:
        """The operators of each stream, as the plan will lay this stage out."""
        streams: list[list[int]] = [[] for _ in range(self._num_streams)]
        if len(groups) <= self._num_streams:
            stream_of: Sequence[int] = range(len(groups))
        else:
            weights = [sum(self._op_us[op] for op in ops) for ops in groups]
            stream_of = pack_groups(weights, self._num_streams)
        for ops, s in zip(groups, stream_of, strict=True):
            streams[s].extend(ops)
        return streams

    def _key(self, streams: list[list[int]]) -> str:
        kernels = [[self._hashes[op] for op in ops] for ops in streams]
        return stage_key(self.setting, self._parallel_kernels, kernels)

    def _measure(self, unknown: dict[str, list[list[int]]]) -> None:
        items = list(unknown.items())
        for begin in range(0, len(items), _CHUNK):
            if self._progress is not None:
                self._progress(begin, len(items))
            chunk = items[begin : begin + _CHUNK]
            latencies, samples = self._time([streams for _, streams in chunk])
            found = {
                key: (streams, us) for (key, streams), us in zip(chunk, latencies, strict=True)
            }
            # Kept at once: whoever stops the search loses this chunk at most.
            self._keep(found, samples)
            self._known.update((key, us) for key, (_, us) in found.items())
            self.measured += len(found)
        if self._progress is not None and items:
            self._progress(len(items), len(items))

    def _keep(self, found: dict[str, tuple[list[list[int]], float]], samples: int) -> None:
        """Record what was measured: by key, the operators of each stream and microseconds."""
        measured_at = utc()
        records = [
            Record(
                key=key,
                latency_us=us,
                samples=samples,
                measured_at=measured_at,
                groups=tuple(tuple(self._hashes[op] for op in ops) for ops in streams if ops),
                setting=self.setting,
            )
            for key, (streams, us) in found.items()
        ]
        ran = {op for streams, _ in found.values() for ops in streams for op in ops}
        self._store.put(records, [self.workload(op) for op in sorted(ran)])

    def _time(self, programs: list[list[list[int]]]) -> tuple[list[float], int]:
        """Microseconds of each, and how many runs they are the median of."""
        executors = [self._executor([[] for _ in range(self._num_streams)])]
        executors += [self._executor(streams) for streams in programs]
        first = self._interleaved(executors, 0, 1, self._seed)
        more = repeats_for(first) - 1
        timed = self._interleaved(executors, 0, more, self._seed + 1)
        empty, *stages = (float(np.median(a + b)) * 1e6 for a, b in zip(first, timed, strict=True))
        return [max(us - empty, 0.0) for us in stages], 1 + more

    # What depends on the device: `CudaMeasuredLatency` has its own.

    def _describe_setting(self) -> Setting:
        return Setting(
            device=cpu_model(),
            driver="",
            cores=_runtime.allowed_cores(),
            tvm_version=tvm.__version__,
            streams=self._num_streams,
            threads=self._threads,
        )

    def _make_streams(self) -> Any:
        return _runtime.make_cpu_streams(self._num_streams, self._threads, self._parallel_kernels)

    def _time_once(self, executor: Any) -> float:
        _runtime.time(executor, 1)  # What is slow only at first is not called slow.
        return _runtime.time(executor, 1)

    def _interleaved(
        self, executors: list[Any], warmup: int, repeats: int, seed: int
    ) -> list[list[float]]:
        return _runtime.measure_interleaved(executors, warmup, repeats, seed, primed=True)

    def _executor(self, streams: list[list[int]]) -> Any:
        """The stage's own plan. Its groups are independent, so nothing waits for anything."""
        ops = [(op, s) for s, ops in enumerate(streams) for op in ops]
        operators = [self._program.operators[op] for op, _ in ops]
        args = [(*operator.inputs, *operator.outputs) for operator in operators]
        values = {v: i for i, v in enumerate(dict.fromkeys(v for arg in args for v in arg))}
        return self._make_executor(
            [self._tensor(v) for v in values],
            [operator.name for operator in operators],
            [self._kernel(op) for op, _ in ops],
            [[values[v] for v in arg] for arg in args],
            [s for _, s in ops],
            [()] * len(ops),
            [operator.share for operator in operators],
        )

    def _make_executor(self, *plan: Any) -> Any:
        return _runtime.make_executor(self._streams, *plan)

    def _kernel(self, op: int) -> Any:
        """What runs operator `op`: a library's kernel, prepared once, or TVM's."""
        operator = self._program.operators[op]
        if operator.library is None or operator.description is None:
            return self._functions[operator.kernel]
        if op not in self._library_kernels:
            self._library_kernels[op] = self._library_kernel(op)
        return self._library_kernels[op]

    def _tensor(self, value: int) -> Any:
        """Memory of the value's own, filled once with numbers of a model's usual size."""
        if value not in self._tensors:
            described = self._program.values[value]
            if value in self._program.weights:
                array = aligned_copy(self._program.weights[value])
            else:
                shape = stored_shape(described.shape, described.layout)
                array = aligned_empty(shape, described.dtype)
                # Zeros are valid indices; floats get values that are neither special nor denormal.
                array[...] = self._rng.standard_normal(shape) if array.dtype.kind == "f" else 0
            self._tensors[value] = self._on_device(array)
        return self._tensors[value]

    def _library_kernel(self, op: int) -> Any:
        operator = self._program.operators[op]
        assert operator.library is not None
        assert operator.description is not None
        values = (*operator.inputs, *operator.outputs)
        return _runtime.prepare_kernel(
            operator.library,
            operator.description.fields(),
            self._threads,
            [self._tensor(v) for v in values],
            [self._program.is_constant(v) for v in values],
        )

    def _on_device(self, array: np.ndarray) -> Any:
        return as_tensor(array)


def repeats_for(first: Sequence[Sequence[float]] | npt.NDArray[np.float64]) -> int:
    """How often to run each of some stages, whose first run took `first` seconds each."""
    mean_s = max(sum(times[0] for times in first) / len(first), 1e-9)
    return int(np.clip(_STAGE_BUDGET_S / 2 / mean_s, _MIN_REPEATS, _MAX_REPEATS))
