"""Stage latencies measured on this machine, on the executor that will run them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tvm

from .._native import cpu as _runtime
from ..execution.cpu import as_tensor, kernel_functions
from ..latency.base import LatencyModel, pack_groups_of_stages
from ..latency.estimate import Estimate
from ..latency.record import Record, Setting, Workload, stage_key, utc
from ..machine.cpu_name import cpu_model
from ..program.host_memory import aligned_copy, aligned_empty
from ..program.program import Program
from ..program.storage import stored_shape
from .repeats import run_repeatedly
from .store import LatencyStore
from .workloads import describe_workload, workload_hash

_CHUNK = 32
"""Stages measured against each other in one go."""
_FAR_SLOWER = 3.0
"""One run tells that an operator is slower than another's time, where it took this much longer."""
_SURE = 0.005
"""A latency whose standard error is no more than this share of it need not be measured again."""
_BUSY_US = 200.0
"""For about how long streams are kept busy to tell what a wait between them costs."""

Programs = dict[str, list[list[int]]]
"""By key, the operators of each stream of a stage."""


class Progress(Protocol):
    """Told how measuring goes: `stages_done` of `stages_total`."""

    def __call__(self, stages_done: int, stages_total: int) -> None: ...


class MeasuredLatency(LatencyModel):
    """Latencies measured by running the stages, in microseconds.

    A stage runs as it will in the model: its groups packed onto the streams by the same rule, at
    once, on the same executor. Stages are interleaved in random order, each run once more, untimed,
    before each timed run: then what ran before does not tell, and a stage does not seem faster than
    its own operators because those were measured among larger ones, which emptied the caches. Its
    latency is the median of 5 to 30 runs, as its length allows. The cost of starting a run at all,
    measured alongside as an empty plan, is taken off, since a model pays it once and not once a
    stage.

    Stages of the same kernels on the same shapes share one measurement, within a model, between
    models and, through the store, between processes.

    Attributes
    ----------
    measured: how many stages were run, as opposed to known already.
    setting: what records say about where and with what they were measured.
    """

    is_costly = True

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
            self._keep({rough_key: streams}, {rough_key: Estimate(known[rough_key], None, 1)})
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

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        """Measure stages once more, as `LatencyModel.measure_again` says; how many were.

        Not those of which so many runs are known, so close together, that their median is known to
        half a percent: chance cannot have chosen them. What is kept of a stage is all of its runs,
        what it is priced from now on are the new ones.
        """
        programs = [self._on_streams(groups) for groups in stages]
        by_key = {self._key(streams): streams for streams in programs}
        earlier = self._store.estimates(by_key)
        unsure = {
            key: streams
            for key, streams in by_key.items()
            if key not in earlier or earlier[key].error_us > _SURE * earlier[key].latency_us
        }
        self._measure(unsure, earlier)
        return len(unsure)

    def known(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of those stages that were measured before, not a number for the others."""
        keys = self.keys(stages)
        self._known.update(self._store.get({key for key in keys if key not in self._known}))
        return np.array([self._known.get(key, np.nan) for key in keys], dtype=np.float64)

    def keys(self, stages: Sequence[Sequence[Sequence[int]]]) -> list[str]:
        """Names of the stages: those of one name share a measurement.

        Where a stage has more groups than there are streams, operators alone are measured first.
        """
        if any(len(groups) > self._num_streams for groups in stages):
            self._measure_ops()
        return [self._key(self._on_streams(groups)) for groups in stages]

    def wait_us(self) -> float:
        """Microseconds that a wait between streams costs, measured now and kept.

        The smallest operator runs many times on one stream, and as often on each of two: those end
        later by what it takes to get another core to work and to wait for it, a fork and a join.
        """
        if self._num_streams < 2:
            return 0.0
        op = self._smallest_op()
        once_us = max(self._time_once(self._executor(self._on_streams([[op]]))) * 1e6, 0.1)
        ops = [op] * int(np.clip(_BUSY_US / once_us, 8, 512))
        seeds = itertools.count(self._seed)
        one, two = (self._executor(self._on_streams([ops] * count)) for count in (1, 2))

        def measure(indices: Sequence[int], repeats: int) -> list[list[float]]:
            chosen = [(one, two)[i] for i in indices]
            return self._interleaved(chosen, 0, repeats, next(seeds))

        alone, waiting = (Estimate.of_runs(runs) for runs in run_repeatedly(measure, 2))
        cost_us = max(waiting.latency_us - alone.latency_us, 0.0) / 2
        streams = self._on_streams([ops[:1]])
        self._keep({self._wait_key(): streams}, {self._wait_key(): Estimate(cost_us, None, 1)})
        return cost_us

    def known_wait_us(self) -> float | None:
        """As `wait_us`, as it was measured last; None where it never was."""
        if self._num_streams < 2:
            return 0.0
        return self._store.get([self._wait_key()]).get(self._wait_key())

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
            stream_of = pack_groups_of_stages([groups], self._op_us, self._num_streams)
        for ops, s in zip(groups, stream_of, strict=True):
            streams[s].extend(ops)
        return streams

    def _key(self, streams: list[list[int]]) -> str:
        kernels = [[self._hashes[op] for op in ops] for ops in streams]
        return stage_key(self.setting, self._parallel_kernels, kernels)

    def _wait_key(self) -> str:
        return f"wait:{self._key(self._on_streams([[self._smallest_op()]]))}"

    def _smallest_op(self) -> int:
        """The operator of the fewest bytes; ties: the lowest id."""

        def nbytes(op: int) -> int:
            operator = self._program.operators[op]
            values = (*operator.inputs, *operator.outputs)
            return sum(self._program.values[v].nbytes for v in values)

        return min(range(len(self._program.operators)), key=nbytes)

    def _measure(self, programs: Programs, earlier: Mapping[str, Estimate] | None = None) -> None:
        """Measure stages, and keep the result together with what was known of them earlier."""
        done = 0
        if self._progress is not None and programs:
            self._progress(done, len(programs))
        for found in self._timed(programs):
            # Kept at once: whoever stops the search loses what is being measured at most.
            joined = {key: new.joined((earlier or {}).get(key)) for key, new in found.items()}
            self._keep({key: programs[key] for key in found}, joined)
            self._known.update((key, new.latency_us) for key, new in found.items())
            self.measured += len(found)
            done += len(found)
            if self._progress is not None:
                self._progress(done, len(programs))

    def _timed(self, programs: Programs) -> Iterator[dict[str, Estimate]]:
        """The latencies of all stages, some at a time."""
        items = list(programs.items())
        for begin in range(0, len(items), _CHUNK):
            chunk = dict(items[begin : begin + _CHUNK])
            yield dict(zip(chunk, self._time(list(chunk.values())), strict=True))

    def _keep(self, programs: Programs, found: Mapping[str, Estimate]) -> None:
        """Record what was measured."""
        measured_at = utc()
        records = [
            Record(
                key=key,
                latency_us=estimate.latency_us,
                spread_us=estimate.spread_us,
                samples=estimate.samples,
                measured_at=measured_at,
                groups=tuple(tuple(self._hashes[op] for op in ops) for ops in programs[key] if ops),
                setting=self.setting,
            )
            for key, estimate in found.items()
        ]
        ran = {op for streams in programs.values() for ops in streams for op in ops}
        self._store.put(records, [self.workload(op) for op in sorted(ran)])

    def _time(self, programs: Sequence[list[list[int]]]) -> list[Estimate]:
        executors = [self._executor([[] for _ in range(self._num_streams)])]
        executors += [self._executor(streams) for streams in programs]
        seeds = itertools.count(self._seed)

        def measure(indices: Sequence[int], repeats: int) -> list[list[float]]:
            chosen = [executors[i] for i in indices]
            return self._interleaved(chosen, 0, repeats, next(seeds))

        empty, *stages = run_repeatedly(measure, len(executors))
        start_us = Estimate.of_runs(empty).latency_us
        return [Estimate.of_runs(runs, start_us) for runs in stages]

    # What depends on the device: `CudaMeasuredLatency` has its own.

    def _describe_setting(self) -> Setting:
        return Setting(
            device=cpu_model(),
            driver="",
            cores=_runtime.num_threads(),
            tvm_version=tvm.__version__,
            streams=self._num_streams,
            threads=self._threads,
        )

    def _time_once(self, executor: Any) -> float:
        _runtime.time(executor, 1)  # What is slow only at first is not called slow.
        return _runtime.time(executor, 1)

    def _interleaved(
        self, executors: list[Any], warmup: int, repeats: int, seed: int
    ) -> list[list[float]]:
        return _runtime.measure_interleaved(executors, warmup, repeats, seed, primed=True)

    def _executor(self, streams: list[list[int]]) -> Any:
        """The stage's own plan. Its groups are independent, so nothing waits for anything."""
        placed = [(op, s) for s, ops in enumerate(streams) for op in ops]
        operators = [self._program.operators[op] for op, _ in placed]
        args = [(*operator.inputs, *operator.outputs) for operator in operators]
        values = {v: i for i, v in enumerate(dict.fromkeys(v for arg in args for v in arg))}
        return self._make_executor(
            [self._tensor(v) for v in values],
            [operator.name for operator in operators],
            [self._kernel(op) for op, _ in placed],
            [[values[v] for v in arg] for arg in args],
            [s for _, s in placed],
            [()] * len(placed),
            [operator.share for operator in operators],
        )

    def _make_executor(self, *plan: Any) -> Any:
        return _runtime.make_executor(self._num_streams, self._threads, *plan)

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
            1,
            [self._tensor(v) for v in values],
            [self._program.is_constant(v) for v in values],
        )

    def _on_device(self, array: np.ndarray) -> Any:
        return as_tensor(array)
