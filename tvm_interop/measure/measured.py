"""Measures the latencies of stages on a device, in the same way on every kind of device."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import OutOfTimeError
from ..latency.base import LatencyModel, pack_groups_of_stages
from ..latency.estimate import Estimate
from ..latency.measurement import Record, Workload, stage_key, utc
from ..program.program import Program
from ..scheduling.budget import Budget
from .jobs import Programs, in_jobs
from .repeats import QUICK, THOROUGH, Care, run_repeatedly
from .stage_timer import Job, Rounds, StageTimer, Streams
from .store import LatencyStore
from .workloads import describe_workload, workload_hash

_FAR_SLOWER = 3.0
"""An operator counts as far slower than a given latency if one run of the operator takes this many
times that latency.
"""
_SURE = 0.005
"""A latency is not measured again if its standard error is at most this fraction of the latency."""
_HELD_UP = 1.5
"""A stage that takes this many times as long as its longest group alone is measured a second time,
because the system may have run two streams on one core during the whole first measurement."""
_SIDE_BY_SIDE = 1.25
"""A stage that takes at most this many times as long as its longest group runs well side by side.
"""
_WITNESS_US = 100.0
"""Only a stage of this many microseconds or more shows in one run whether streams share a core."""
_LOOK_EVERY_S = 0.25
_WAIT_AT_MOST_S = 5.0
"""The total time in seconds that measurements of one model may wait until each stream has its own
core. On a virtual machine of two cores, a stream waited 0.1 to 2 seconds for its own core (`python
-m benchmarks.shared_cores`). Longer waits do not help, because another program may use a core for
hours."""
_BUSY_US = 200.0
"""About how many microseconds two streams run in a measurement of the wait between them."""

_IN_A_HURRY = 8
"""The most stages in one job if there is a time budget, which is checked only between jobs."""


class Progress(Protocol):
    """Report that `stages_done` of `stages_total` stages are measured.

    The object may also have a method `say`, which is called with a text that describes the current
    step (see `tell`).
    """

    def __call__(self, stages_done: int, stages_total: int) -> None: ...


def tell(progress: Progress | None, what: str) -> None:
    """Tell `progress` the step that begins now, for example `compiling 57 kernels`."""
    say = getattr(progress, "say", None)
    if say is not None:
        say(what)


def counter(progress: Progress | None) -> Progress | None:
    """Return `progress` if it can count other things than stages, such as kernels; otherwise None.

    To do so, `progress` needs the method `say`, which tells users what is counted (see `tell`).
    Without this method, users would think that stages are counted.
    """
    return progress if hasattr(progress, "say") else None


class MeasuredLatency(LatencyModel):
    """Latencies measured by running stages on a device, in microseconds.

    A stage runs as it will in the model: its groups are packed onto the streams as in a plan, and
    run at once on the model's executor. Stages run interleaved, in random order. Before each timed
    run, the same stage runs untimed, so that its time does not depend on the work before it.
    Otherwise larger operators could empty the caches just before a single operator is timed. The
    operator could then seem slower than a stage that contains it.

    The latency is the median of 5 to 30 runs. Runs that other programs delayed do not count (see
    `undisturbed`). Stages run less often if they are long, or if their runs agree. The first
    measurement of a stage is less exact (`QUICK`) than the measurements of `measure_again`
    (`THOROUGH`). The latency of an empty stage is subtracted. It is the time to start a run, which
    a model needs only once, not for each stage. On a GPU, `CudaStageTimer` also leaves out the time
    to begin a CUDA graph.

    Stages of the same kernels on the same shapes are measured only once, even if they are in
    different models. Through the database, other processes use the measurement too.

    Attributes
    ----------
    measured: how many stages were measured, without stages that were known already.
    timer: runs the stages.
    setting: the device and the software of the measurements; part of each record.
    """

    is_costly = True

    def __init__(
        self,
        program: Program,
        kernel_hashes: dict[str, str],
        timer: StageTimer,
        *,
        parallel_kernels: bool = False,
        store: LatencyStore | None = None,
        progress: Progress | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Prepare to measure `program`'s operators.

        Parameters
        ----------
        kernel_hashes: for each of TVM's kernels, by name, a hash of its code and shapes.
        timer: runs stages of `program`.
        parallel_kernels: whether kernels divide their loops over a team of threads.
        store: where latencies are kept; with None, they are kept in memory only.
        budget: the time in which stages may be measured; None for no limit. After this time,
            `OutOfTimeError` is raised for a stage that is not known yet.
        """
        self.measured = 0
        self.timer = timer
        self.setting = timer.setting
        self._program = program
        self._hashes = [workload_hash(op, kernel_hashes) for op in program.operators]
        self._num_streams = timer.setting.streams
        self._parallel_kernels = parallel_kernels
        self._store = store if store is not None else LatencyStore(":memory:")
        self._progress = progress
        self._budget = Budget(math.inf) if budget is None else budget
        most = timer.stages_per_job
        self._per_job = most if math.isinf(self._budget.left_s()) else min(most, _IN_A_HURRY)
        self._known: dict[str, float] = {}
        self._only_reference: dict[str, bool] = {}
        self._op_us: list[float] = []
        self._workloads: dict[str, Workload] = {}
        self._witness: tuple[Streams, float] | None = None
        self._wait_left_s = _WAIT_AT_MOST_S

    def close(self) -> None:
        """Release the devices that the timer has reserved."""
        self.timer.close()

    def op(self, op: int) -> float:
        """Microseconds that operator `op` takes alone; the first call measures all operators."""
        self._measure_ops()
        return self._op_us[op]

    def why_not(self, op: int) -> str:
        """The reason why the device has no kernel for operator `op`; "" if it has a kernel."""
        return self.timer.why_not(op)

    def has_only_reference(self, op: int) -> bool:
        """Whether the library of operator `op` has only its reference implementation for it.

        A reference implementation computes one number after the other, without vector instructions.
        It takes up to a thousand times as long as other kernels, so it need not be measured. If the
        operator was measured before, its latency is known, so the library is not asked and the
        result is False.
        """
        if not np.isnan(self.known([[[op]]])[0]):
            return False
        (key,) = self.keys([[[op]]])
        if key not in self._only_reference:
            # The library can name its implementation only after it has prepared the kernel and
            # packed the operator's weights. That takes time, so the library is asked only once
            # about equal operators.
            self._only_reference[key] = self.timer.implementation(op).startswith("ref")
        return self._only_reference[key]

    def near(self, ops: Sequence[int], than_us: Sequence[float]) -> list[int]:
        """Return the operators in `ops` that are not far slower than their bounds.

        `than_us` has a bound for each operator, in microseconds.

        Each operator whose latency is unknown runs once. If it is far slower than its bound, it
        runs once more, because another program may have used the core. An operator that is far
        slower in both runs is not measured further. The shorter of its two times is stored, so that
        later calls give the same answer.
        """
        return [op for op, us in zip(ops, than_us, strict=True) if not self._is_far_slower(op, us)]

    def take_longer(self, ops: Sequence[int], than_us: Sequence[float]) -> list[bool]:
        """Whether each operator takes longer than its bound in `than_us` (in microseconds).

        Only the operators that `near` returns are measured exactly, all in one call. The other
        operators take longer than their bounds.
        """
        near = self.near(ops, than_us)
        us = dict(zip(near, self.stages([[[op]] for op in near]).tolist(), strict=True))
        return [op not in us or us[op] > bar for op, bar in zip(ops, than_us, strict=True)]

    def rough_us(self, ops: Sequence[int]) -> list[float]:
        """Microseconds of each operator: its latency if it is known, or the shorter of two runs."""
        known = dict(zip(ops, self.known([[[op]] for op in ops]).tolist(), strict=True))
        return [self._once_us(op) if math.isnan(us) else us for op, us in known.items()]

    def _is_far_slower(self, op: int, than_us: float) -> bool:
        return self._once_us(op, _FAR_SLOWER * than_us) > _FAR_SLOWER * than_us

    def _once_us(self, op: int, enough_us: float = 0.0) -> float:
        """The time of one run, or of the shorter of two if the first takes over `enough_us`; 0 if
        the operator was not run because its latency is known.
        """
        streams = self._on_streams([[op]])
        key = self._key(streams)
        rough_key = f"once:{key}"
        known = self._store.get([key, rough_key])
        if rough_key not in known and key not in known and key not in self._known:
            us = known[rough_key] = self._time_once_us(streams, enough_us)
            self._keep({rough_key: streams}, {rough_key: Estimate(us, None, 1)})
        return known.get(rough_key, 0.0)

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """Microseconds that the stage with the groups of operators `groups` takes."""
        return float(self.stages([groups])[0])

    def stages(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of each stage, shape (len(stages),); unknown stages are measured now.

        Raises
        ------
        OutOfTimeError
            The time budget is spent, and a stage is unknown. Earlier measurements are kept.
        """
        if any(len(groups) > self._num_streams for groups in stages):
            self._measure_ops()
        programs = [self._on_streams(groups) for groups in stages]
        keys = [self._key(streams) for streams in programs]
        unknown = {k: p for k, p in zip(keys, programs, strict=True) if k not in self._known}
        self._known.update(self._store.get(unknown))
        unknown = {k: p for k, p in unknown.items() if k not in self._known}
        self._measure(unknown)
        held_up = {k: p for k, p in unknown.items() if self._side_by_side(k, p) > _HELD_UP}
        self._find_witness({k: p for k, p in unknown.items() if k not in held_up})
        if held_up:
            # If the time budget is spent, the first measurements are used.
            with contextlib.suppress(OutOfTimeError):
                self._wait_for_cores()
                self._measure(held_up, shorter=True)
        return np.array([self._known[k] for k in keys])

    def _side_by_side(self, key: str, streams: Streams) -> float:
        """The latency of a measured stage, divided by the latency of its longest stream.

        The latency of a stream is the sum of the latencies of its operators. The result is 0 if the
        stage has fewer than two streams, or if its operators were not measured alone.
        """
        running = [ops for ops in streams if ops]
        if len(running) < 2 or not self._op_us:
            return 0.0
        return self._known[key] / max(sum(self._op_us[op] for op in ops) for ops in running)

    def _find_witness(self, measured: Programs) -> None:
        """Remember the shortest stage whose groups run well side by side.

        `_wait_for_cores` runs this stage later, to see whether two threads still have a core each.
        """
        for key, streams in measured.items():
            us = self._known[key]
            if us < _WITNESS_US or not 0 < self._side_by_side(key, streams) <= _SIDE_BY_SIDE:
                continue
            if self._witness is None or us < self._witness[1]:
                self._witness = (streams, us)

    def _wait_for_cores(self) -> None:
        """Wait, for a limited time, until this machine's virtual cores run on separate cores again.

        The host of a virtual machine sometimes runs two virtual cores on one core. Work that runs
        side by side then takes twice as long. The virtual machine's own counters do not show this,
        because both threads seem to run all the time. So this method repeatedly times a stage that
        ran well side by side before, until the stage is fast again.
        """
        if self._witness is None:
            return
        streams, us = self._witness
        began = time.monotonic()
        ends = began + self._wait_left_s
        while time.monotonic() < ends:
            if min(self._time_once_us(streams) for _ in range(3)) <= _HELD_UP * us:
                break
            time.sleep(_LOOK_EVERY_S)
        self._wait_left_s -= time.monotonic() - began

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        """Measure stages again, and return how many were measured (see
        `LatencyModel.measure_again`).

        A stage is left out if many runs agree, so that its median is known to half a percent. Such
        a stage does not seem fast by chance. The database keeps an estimate from all runs of a
        stage, old and new. This object uses only the new runs from now on. When the time budget is
        spent, the remaining stages are left out.
        """
        programs = [self._on_streams(groups) for groups in stages]
        by_key = {self._key(streams): streams for streams in programs}
        earlier = self._store.estimates(by_key)
        unsure = {
            key: streams
            for key, streams in by_key.items()
            if key not in earlier or earlier[key].error_us > _SURE * earlier[key].latency_us
        }
        before = self.measured
        # If the time budget is spent, the earlier latencies are used.
        with contextlib.suppress(OutOfTimeError):
            self._measure(unsure, earlier)
        return self.measured - before

    def answer_from_store(self, stages: Sequence[Sequence[Sequence[int]]]) -> None:
        """Use, for `stages`, the latencies that a later process would read from the database.

        The database holds the estimates from all runs of a stage (see `measure_again`).
        """
        for key in self.keys(stages):
            self._known.pop(key, None)

    def known(self, stages: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.float64]:
        """Microseconds of the stages that were measured before; nan for the other stages."""
        keys = self.keys(stages)
        self._known.update(self._store.get({key for key in keys if key not in self._known}))
        return np.array([self._known.get(key, np.nan) for key in keys], dtype=np.float64)

    def keys(self, stages: Sequence[Sequence[Sequence[int]]]) -> list[str]:
        """A key for each stage. Stages with the same key share a measurement.

        The key depends on how the groups are packed onto streams. If a stage has more groups than
        there are streams, the packing depends on the latencies of single operators, so they are
        measured first.
        """
        if any(len(groups) > self._num_streams for groups in stages):
            self._measure_ops()
        return [self._key(self._on_streams(groups)) for groups in stages]

    def wait_us(self) -> float:
        """Measure the microseconds of a wait between streams; keep the result in the database.

        Two stages are compared. The first stage runs the smallest operator many times on one
        stream. The second stage does this on each of two streams. The difference between the two is
        the time of `timer.waits_of_stage` waits. The result is 0 if there is only one stream.
        """
        if self._num_streams < 2:
            return 0.0
        op = self._smallest_op()
        once_us = max(self._time_once_us(self._on_streams([[op]])), 0.1)
        ops = [op] * int(np.clip(_BUSY_US / once_us, 8, 512))
        stages = [self._on_streams([ops]), self._on_streams([ops, ops])]

        def measure(rounds: Rounds) -> list[Estimate]:
            return [Estimate.of_runs(runs) for runs in run_repeatedly(rounds(stages), 2)]

        ((alone, waiting),) = self.timer.do([measure])
        both_us = max(waiting.latency_us - alone.latency_us, 0.0)
        cost_us = both_us / self.timer.waits_of_stage
        streams = self._on_streams([ops[:1]])
        self._keep({self._wait_key(): streams}, {self._wait_key(): Estimate(cost_us, None, 1)})
        return cost_us

    def known_wait_us(self) -> float | None:
        """The last result of `wait_us`, in microseconds; None if it was never measured."""
        if self._num_streams < 2:
            return 0.0
        return self._store.get([self._wait_key()]).get(self._wait_key())

    def workload(self, op: int) -> Workload:
        """The description of what operator `op` computes, independent of this program."""
        hash_ = self._hashes[op]
        if hash_ not in self._workloads:
            self._workloads[hash_] = describe_workload(self._program, op, hash_)
        return self._workloads[hash_]

    def _measure_ops(self) -> None:
        """Measure all operators in one call. Their latencies are compared, and the machine's speed
        may change between calls.
        """
        if not self._op_us:
            ops = range(len(self._program.operators))
            self._op_us = self.stages([[[op]] for op in ops]).tolist()

    def _on_streams(self, groups: Sequence[Sequence[int]]) -> Streams:
        """The operators on each stream, with the stage's `groups` placed as a plan places them."""
        streams: Streams = [[] for _ in range(self._num_streams)]
        if len(groups) <= self._num_streams:
            stream_of: Sequence[int] = range(len(groups))
        else:
            stream_of = pack_groups_of_stages([groups], self._op_us, self._num_streams)
        for ops, s in zip(groups, stream_of, strict=True):
            streams[s].extend(ops)
        return streams

    def _key(self, streams: Streams) -> str:
        kernels = [[self._hashes[op] for op in ops] for ops in streams]
        return stage_key(self.setting, self._parallel_kernels, kernels)

    def _wait_key(self) -> str:
        return f"wait:{self._key(self._on_streams([[self._smallest_op()]]))}"

    def _smallest_op(self) -> int:
        """The operator with the fewest bytes of inputs and outputs; ties: the lowest id."""

        def nbytes(op: int) -> int:
            operator = self._program.operators[op]
            values = (*operator.inputs, *operator.outputs)
            return sum(self._program.values[v].nbytes for v in values)

        return min(range(len(self._program.operators)), key=nbytes)

    def _measure(
        self,
        programs: Programs,
        earlier: Mapping[str, Estimate] | None = None,
        shorter: bool = False,
    ) -> None:
        """Measure stages, and store the results.

        Parameters
        ----------
        earlier: earlier estimates of some stages. For these stages, the earlier and the new
            estimate are combined and stored.
        shorter: whether a stage keeps its known latency if the new latency is longer.
        """
        done = 0
        if self._progress is not None and programs:
            self._progress(done, len(programs))
        for found in self._timed(programs, QUICK if earlier is None else THOROUGH):
            # Store the results of each job immediately. Then an interrupted search loses only the
            # job in progress.
            done += len(found)
            if shorter:
                found = {k: new for k, new in found.items() if new.latency_us < self._known[k]}
            joined = {key: new.joined((earlier or {}).get(key)) for key, new in found.items()}
            self._keep({key: programs[key] for key in found}, joined)
            self._known.update((key, new.latency_us) for key, new in found.items())
            self.measured += 0 if shorter else len(found)
            if self._progress is not None:
                self._progress(done, len(programs))

    def _timed(self, programs: Programs, care: Care) -> Iterator[dict[str, Estimate]]:
        """Measure all stages in several jobs, and yield the estimates of each job by key."""
        chunks = in_jobs(self._program, programs, self._per_job)
        return self.timer.do([self._job(chunk, care) for chunk in chunks])

    def _job(self, programs: Programs, care: Care) -> Job[dict[str, Estimate]]:
        """Make a job that runs the stages in turns, with an empty stage among them."""
        nothing: Streams = [[] for _ in range(self._num_streams)]
        stages = [nothing, *programs.values()]

        def measure(rounds: Rounds) -> dict[str, Estimate]:
            self._check_time()
            empty, *of_stages = run_repeatedly(rounds(stages), len(stages), care)
            start_us = Estimate.of_runs(empty).latency_us
            estimates = [Estimate.of_runs(runs, start_us) for runs in of_stages]
            return dict(zip(programs, estimates, strict=True))

        return measure

    def _check_time(self) -> None:
        if self._budget.left_s() <= 0:
            raise OutOfTimeError(
                "the time budget is spent before all stages are measured: give a larger "
                "`time_budget`"
            )

    def _time_once_us(self, streams: Streams, enough_us: float = math.inf) -> float:
        def measure(rounds: Rounds) -> float:
            self._check_time()
            run = rounds([streams])
            seconds = float(run([0], 1)[0][0])
            return min(seconds, float(run([0], 1)[0][0])) if seconds > enough_us / 1e6 else seconds

        (seconds,) = self.timer.do([measure])
        return seconds * 1e6

    def _keep(self, programs: Programs, found: Mapping[str, Estimate]) -> None:
        """Put estimates into the store as records."""
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
        self._store.keep(records, [self.workload(op) for op in sorted(ran)])
