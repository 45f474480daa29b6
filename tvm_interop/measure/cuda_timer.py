"""Times stages on a GPU, by the GPU's own clock."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm

from .._native import cuda as _cuda
from ..errors import ExecutionError
from ..execution.cpu import as_tensor
from ..execution.cuda import aligned_nbytes
from ..execution.kernels import cuda_kernels
from ..latency.estimate import undisturbed
from ..latency.measurement import Setting
from ..program.program import Program
from .repeats import Measure
from .stage_operators import StageOperators, tensor_nbytes
from .stage_timer import Job, Result, Streams

_IN_A_ROW = 4
"""A short stage is timed by two CUDA graphs. The shorter graph runs the stage this many times."""
_LONG_US = 100.0
"""If a graph with `_IN_A_ROW` runs of a stage takes more microseconds than this, the stage is long.
Then one graph runs the stage once, and the other graph runs it twice.
"""
_LEAST_RUNS = 3
"""How often each graph runs before the first latency is computed, so that one delayed run does no
harm. Runs that are not needed yet are used for later latencies.
"""
_LEAST_S = 1e-9
"""The least latency in seconds. A latency is the difference of two measured times, which may be 0
or less, and this limit replaces it then.
"""


@dataclass
class _Chain:
    """Two CUDA graphs that run one stage repeatedly.

    The graph `short` runs the stage `times` times in a row, and the graph `long` twice as often.
    """

    times: int
    short: _cuda.CudaExecutor
    long: _cuda.CudaExecutor
    short_s: list[float] = field(default_factory=list)
    unused_s: list[float] = field(default_factory=list)
    """Times in seconds of those runs of the longer graph from which no latency was computed yet."""

    def missing(self, repeats: int) -> int:
        """How often each graph must run, so that `latencies_s` can give `repeats` latencies."""
        return max(repeats - len(self.unused_s), _LEAST_RUNS - len(self.short_s), 0)

    def add(self, short_s: Sequence[float], long_s: Sequence[float]) -> None:
        """Add the times of new runs of each graph, in seconds."""
        self.short_s += short_s
        self.unused_s += long_s

    def latencies_s(self, repeats: int) -> list[float]:
        """One latency of the stage, in seconds, from each of `repeats` runs of the longer graph.

        Each run of the longer graph gives one latency: its time minus the median time of all runs
        of the shorter graph. The median is used because a single run might have been delayed.
        """
        long_s, self.unused_s = self.unused_s[:repeats], self.unused_s[repeats:]
        base_s = float(np.median(undisturbed(self.short_s)))
        return [max((s - base_s) / self.times, _LEAST_S) for s in long_s]


class CudaStageTimer:
    """Runs and times stages on GPU 0.

    A stage's latency is the time that the stage adds to a CUDA graph. One graph runs the stage
    `_IN_A_ROW` times in a row, and another graph runs it twice as often. CUDA events before and
    after a graph give its time. The latency is the difference of the two times, divided by
    `_IN_A_ROW`. It does not include the time to begin a graph, which is longer than many operators
    take. It includes the gap between two operators.

    A CUDA graph repeats the stage, so each repetition finds the stage's data in the L2 cache. So
    operators that are limited by memory seem faster than in a model, where other operators run
    before them.

    Attributes
    ----------
    setting: the GPU's name, its driver's version, and the number of streams that stages run on.
    """

    stages_per_job = 32
    waits_of_stage = 1  # Between two repetitions, each stream waits once for all other streams.

    def __init__(self, program: Program, kernels: Any, *, streams: int, seed: int = 0) -> None:
        """Prepare to run stages of `program`.

        Parameters
        ----------
        kernels: TVM's kernels, loaded.
        streams: the number of streams.
        seed: seed of the order in which stages run, and of the numbers in their tensors.

        Raises
        ------
        DeviceError
            There is no GPU.
        ArtifactError
            The library lacks a kernel of the program.
        """
        self.setting = Setting(
            device=_cuda.describe_device(0),
            driver="",  # `device` already includes the driver's version.
            cores=0,
            tvm_version=tvm.__version__,
            streams=streams,
            threads=1,
        )
        self._streams = _cuda.make_streams([0] * streams)
        # The kernels and the arena refer to the streams, and not to this timer. A reference to the
        # timer would make a cycle. Tensors would then stay on the GPU after the timer is deleted.
        self._operators = StageOperators(
            program,
            cuda_kernels(kernels, program.operators, self._streams),
            _Arena(self._streams, program),
            seed,
        )
        self._seed = seed

    def why_not(self, op: int) -> str:
        """Why the library of operator `op` has no kernel for this GPU; "" if it has one.

        To find out, the library is asked to prepare a kernel for the operator. A kernel that cannot
        be part of a CUDA graph does not count.
        """
        try:
            self._executor([[op]], 1)
        except ExecutionError as error:
            return str(error)
        return ""

    def implementation(self, op: int) -> str:
        """Return "": a GPU library chooses its implementation by itself and does not name it."""
        return ""

    def do(self, jobs: Sequence[Job[Result]]) -> Iterator[Result]:
        """Do the jobs, which measure stages, one after the other.

        Raises
        ------
        ExecutionError
            No CUDA graph can be made of a stage. A time measured without a graph cannot be compared
            with the times of stages in graphs.
        """
        return (job(self._rounds) for job in jobs)

    def close(self) -> None:
        """Do nothing: this timer reserves no device, so none must be released."""

    def _rounds(self, stages: Sequence[Streams]) -> Measure:
        chains = [self._chain(streams) for streams in stages]
        seeds = itertools.count(self._seed)

        def measure(indices: Sequence[int], repeats: int) -> list[list[float]]:
            chosen = [chains[i] for i in indices]
            times = max((chain.missing(repeats) for chain in chosen), default=0)
            if times > 0:
                both = [graph for chain in chosen for graph in (chain.short, chain.long)]
                # No untimed runs come first. A cold cache delays both graphs of a stage equally, so
                # the difference of their times does not include the delay.
                runs = _cuda.measure_interleaved(both, 0, times, next(seeds))
                for chain, short, long in zip(chosen, runs[::2], runs[1::2], strict=True):
                    chain.add(short, long)
            return [chain.latencies_s(repeats) for chain in chosen]

        return measure

    def _chain(self, streams: Streams) -> _Chain:
        """Make the two CUDA graphs that time a stage.

        The graphs of a long stage repeat it less often, because the time to begin a graph is small
        in comparison with the stage's latency.
        """
        once = self._executor(streams, 1)
        us = _cuda.time(once, 1) * 1e6
        if us > _LONG_US:
            return _Chain(1, once, self._executor(streams, 2))
        return _Chain(
            _IN_A_ROW, self._executor(streams, _IN_A_ROW), self._executor(streams, 2 * _IN_A_ROW)
        )

    def _executor(self, streams: Streams, times: int) -> _cuda.CudaExecutor:
        bound = self._operators.bind_in_a_row(streams, times)
        executor = _cuda.make_executor(self._streams, *bound)
        reason = _cuda.why_no_graph(executor)
        if reason:
            names = "`, `".join(self._operators.names(streams))
            raise ExecutionError(
                f"`{names}` cannot be timed in a CUDA graph: {reason}; give latencies with "
                "`latency`, or kernels of other providers with `providers`"
            )
        return executor


class _Arena:
    """The memory of all tensors of a timer. It is one block, which is allocated for the first
    tensor.
    """

    def __init__(self, streams: _cuda.CudaStreams, program: Program) -> None:
        self._streams, self._end = streams, 0
        self._nbytes = sum(tensor_nbytes(program, aligned_nbytes))

    def __call__(self, array: np.ndarray) -> Any:
        """Return a new tensor on the GPU with the numbers of `array`.

        This method may return before the GPU has copied all numbers. The GPU copies them before it
        runs any later work. After the return, the caller may change `array`.
        """
        tensor = _cuda.tensor_within(self._block, self._end, array.shape, str(array.dtype))
        self._end += aligned_nbytes(array.nbytes)
        _cuda.load(self._loader, as_tensor(array), tensor)
        return tensor

    @functools.cached_property
    def _block(self) -> _cuda.CudaMemory:
        return _cuda.make_memory(0, self._nbytes)

    @functools.cached_property
    def _loader(self) -> _cuda.CudaLoader:
        return _cuda.make_loader(self._streams)
